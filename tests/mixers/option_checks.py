"""Checks for mixers with options other than the defaults, which the contract tests run over."""

import torch
from torch import Tensor
from torch.func import jacrev


def randomised(model_class, config, seed=0):
    """A model in float64 whose linear weights are large enough to matter, none of them zero."""
    torch.manual_seed(seed)
    model = model_class(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2 and not parameter.any():
                parameter.normal_(std=0.3)
    return model


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def assert_laws(model, length=9) -> None:
    """Split law in training mode, mask law and size of the state, in float64."""
    model.train()
    width, rows = model.config.hidden_size, 3
    embeds = torch.randn(rows, length, width, dtype=torch.float64)
    whole = model(inputs_embeds=embeds, use_cache=True)
    for cut in range(1, length):
        first = model(inputs_embeds=embeds[:, :cut], use_cache=True)
        second = model(inputs_embeds=embeds[:, cut:], cache=first.cache, use_cache=True)
        close(torch.cat([first.last_hidden_state, second.last_hidden_state], dim=1), whole.last_hidden_state)
        for ours, theirs in zip(second.cache.states, whole.cache.states, strict=True):
            for name in theirs:
                close(ours[name], theirs[name])
    assert whole.cache.state_size() == model.state_size(length)
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[0, :4], mask[1, [2, 3, 6]], mask[2, 5:] = 0, 0, 0
    padded = model(inputs_embeds=embeds, attention_mask=mask, use_cache=True)
    after = model(inputs_embeds=embeds[:, :2], cache=padded.cache).last_hidden_state
    for row in range(rows):
        real = embeds[row : row + 1, mask[row].bool()]
        alone = model(inputs_embeds=torch.cat([real, embeds[row : row + 1, :2]], dim=1)).last_hidden_state
        close(padded.last_hidden_state[row, mask[row].bool()], alone[0, :-2])
        close(after[row], alone[0, -2:])


def assert_equals_definition(mixer, definition, inputs: Tensor) -> None:
    """Outputs and the gradients of all parameters are those of ``definition(mixer, inputs)``, in float64."""
    weights, parameters = torch.randn_like(inputs), list(mixer.parameters())
    outputs, expected = mixer(inputs)[0], definition(mixer, inputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-11)
    ours = torch.autograd.grad((outputs * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def assert_adds_up(mixer, inputs: Tensor) -> None:
    """The memory before a step (1, 1, D) moves that after it one to one, and the spectrum is 1."""
    memory = torch.rand_like(mixer.initial_state(1)["memory"])
    jacobian = jacrev(lambda flat: mixer(inputs, {"memory": flat.view_as(memory)})[1]["memory"].flatten())
    assert torch.equal(jacobian(memory.flatten()), torch.eye(memory.numel(), dtype=torch.float64))
    assert torch.equal(mixer.transition_spectrum(inputs), torch.ones(1, 1, 2, dtype=torch.float64))


def assert_spectrum(mixer, hidden_states: Tensor, encode=None, decode=None) -> None:
    """``transition_spectrum`` holds the real parts of the eigenvalues of every step's Jacobian.

    Args:
        mixer: In float64.
        hidden_states: Inputs (1, T, D).
        encode: From a state to the one whose Jacobian is taken; the identity if None.
        decode: Back.
    """
    state = mixer.initial_state(1)
    encode, decode = encode or (lambda leaves: leaves), decode or (lambda leaves: leaves)
    shapes = {name: leaf.shape for name, leaf in encode(state).items()}

    def flat(leaves):
        return torch.cat([leaf.flatten() for leaf in encode(leaves).values()])

    def leaves_of(vector):
        parts = vector.split([shape.numel() for shape in shapes.values()])
        return decode({name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)})

    spectrum = mixer.transition_spectrum(hidden_states)
    for t, column in enumerate(hidden_states.split(1, dim=1)):

        def step(vector, column=column):
            return flat(mixer(column, leaves_of(vector))[1])

        real = torch.linalg.eigvals(jacrev(step)(flat(state))).real
        # The shift of a buffer is a nilpotent block, whose eigenvalues come out of rounding as roots of it.
        close(spectrum[0, t], torch.stack([real.min(), real.max()]), 1e-3)
        state = {name: leaf.detach() for name, leaf in leaves_of(step(flat(state))).items()}


def assert_the_filter_stays_in_float32(model_class, config, folder) -> None:
    """An implicit filter is untouched by every way to bfloat16, and logits move by less than 1 %.

    Its inner weights are as large as training makes them: rounded to bfloat16, those of Hyena move logits by 12 %.
    """
    torch.manual_seed(0)
    model = model_class(config).eval().requires_grad_(False)
    for layer in model.model.layers:
        for linear in list(layer.mixer.filter_mlp)[1:-1]:
            linear.weight.mul_(3)
    model.save_pretrained(folder)
    filters = {n: p.clone() for n, p in model.named_parameters() if "filter_mlp" in n or "filter_frequency" in n}
    assert len(filters) == 8 * len(model.model.layers)
    ids = torch.randint(0, config.vocab_size, (4, config.max_position_embeddings // 2))
    expected = model(ids).logits
    # An adapter moves parameters down by a name, and they stay what they are there too.
    adapted = model_class.from_pretrained(folder).eval().requires_grad_(False)
    for layer in adapted.model.layers:
        layer.mixer.filter_mlp[1] = torch.nn.Sequential(layer.mixer.filter_mlp[1])
    ways = {
        "loaded": model_class.from_pretrained(folder, dtype=torch.bfloat16).eval(),
        "to": model_class.from_pretrained(folder).eval().to(torch.bfloat16),
        "bfloat16": model_class.from_pretrained(folder).eval().bfloat16(),
        "adapted": adapted.to(torch.bfloat16),
    }
    for way, half in ways.items():
        assert half.model.embed_tokens.weight.dtype == torch.bfloat16, way
        for name, parameter in half.named_parameters():
            if "filter_mlp" in name or "filter_frequency" in name:
                assert torch.equal(parameter, filters[name.replace("1.0.", "1.")]), (way, name)
        actual = half(ids).logits.float()
        assert (actual - expected).norm() < 0.01 * expected.norm(), way
    assert {p.dtype for n, p in model.half().named_parameters() if n in filters} == {torch.float32}

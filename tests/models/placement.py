"""Runs every model on a device whose tensors hold no numbers: torch refuses every operation that mixes devices.

It is a script, since a device that is registered from Python stays for as long as the process lives. It prints one line
for each fault, and how many models it ran.
"""

import sys
import traceback

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "faraway"
_setup_privateuseone_for_python_backend(DEVICE)
getattr(torch, DEVICE).get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]

from hf_memory.mixers.auto import HEADS, mixer_config, mixer_model, model_keys  # noqa: E402

LENGTH = 40


def move(model: torch.nn.Module) -> None:
    """Replace each parameter and buffer by one on the other device."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is not None:
                    new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=DEVICE)
                    tensors[name] = torch.nn.Parameter(new) if tensors is module._parameters else new


def run(key: str, head: str, positions: str, regression: bool) -> None:
    """A training step with labels and a mask, an evaluation that hands on its state, and one token after it."""
    kind = (
        {"problem_type": "regression", "num_labels": 1} if regression else {} if head == "causal" else {"num_labels": 3}
    )
    config = mixer_config(
        key,
        vocab_size=11,
        hidden_size=16,
        block_conv_kernel=3,
        intermediate_size=8,
        position_embedding=positions,
        **kind,
    )
    model = mixer_model(config, head)
    with FakeTensorMode():
        move(model)
        ids = torch.randint(0, 11, (3, LENGTH), device=DEVICE)
        mask = torch.ones_like(ids)
        if head == "base":
            model.train()(ids, attention_mask=mask).last_hidden_state.sum().backward()
        else:
            labels = ids.float() if regression else ids % model.head.out_features
            for options in ({}, {"num_items_in_batch": torch.full((), 7, device=DEVICE)}):
                model.train()(ids, attention_mask=mask, labels=labels, **options).loss.backward()
        with torch.no_grad():
            first = model.eval()(ids, attention_mask=mask, use_cache=True)
            rest = model(ids[:, :1], cache=first.cache, use_cache=True)
            model(ids, position_ids=torch.arange(LENGTH, device=DEVICE), use_cache=False)
        leaves = [leaf for state in rest.cache.states for leaf in state.values()]
        places = {
            tensor.device.type for tensor in (*leaves, *(p.grad for p in model.parameters() if p.grad is not None))
        }
        if places != {DEVICE}:
            raise ValueError(f"states and gradients lie on {sorted(places)}")


def main(keys: list[str]) -> None:
    """Run all models, or those that are named."""
    count = 0
    for key in keys or model_keys():
        cases = [(head, "none", False) for head in HEADS]
        cases += [("causal", "learned", False), ("causal", "sinusoidal", False), ("token_classification", "none", True)]
        for case in cases:
            count += 1
            try:
                run(key, *case)
            except Exception as error:  # noqa: BLE001 (each is a fault to be shown)
                frames = traceback.extract_tb(error.__traceback__)
                own = [f"{frame.filename}:{frame.lineno}" for frame in frames if "hf_memory/" in frame.filename]
                text = str(error).strip().splitlines()[0][:200]
                print(f"{key} {case}: {type(error).__name__}: {text} {own[-1:]}")
    print(count, "models")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The spine: everything around a mixer that all models share.

Padding is moved here, positions are counted here, labels are shifted here, weights are tied here; a mixer only sees
rows that start at column 0 and are padded on the right.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput, logging
from transformers.utils.generic import can_return_tuple

from hf_memory.models.cache import MemoryCache, check_owner, one_cache, state_owner
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.groups import optim_groups
from hf_memory.models.inputs import check_inputs, check_kwargs, check_tensors
from hf_memory.models.layers import (
    MLP,
    RMSNorm,
    ShortConvolution,
    State,
    StatefulLayer,
    bare,
    join_state,
    make_norm,
    sinusoidal_positions,
    split_state,
)
from hf_memory.models.padding import RowLayout
from hf_memory.models.stepwise import run_stepwise
from hf_memory.models.values import is_seen, require
from hf_memory.ops.backends.dispatch import allow_hub_kernels, keep_backend, requested_backend

logger = logging.get_logger(__name__)


@dataclass
class MemoryModelOutput(ModelOutput):
    """Output of the base models.

    Attributes:
        last_hidden_state: Outputs of the final norm (B, T, D); zero at padded positions.
        cache: State after the last column, where ``use_cache``.
        hidden_states: Embeddings and the output of each block, where ``output_hidden_states``.
        states: Per block, each leaf of the state after each column (B, T, ...), where ``output_states``.
    """

    last_hidden_state: torch.Tensor | None = None
    cache: MemoryCache | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    states: tuple[State, ...] | None = None


class Mixer(StatefulLayer):
    """A sequence mixer: the part of a block that moves information between positions."""

    def __init__(self, config: MemoryConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx

    def decays(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Moduli (B, T, K) of the eigenvalues of a diagonal transition; None for any other."""
        return None

    def transition_spectrum(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Smallest and largest real part of the eigenvalues of d state_t / d state_{t-1} at these inputs.

        Args:
            hidden_states: Inputs (B, T, D), from the initial state on.

        Returns:
            (B, T, 2), or None where there is no state of fixed size.
        """
        return None

    @staticmethod
    def unresolved_rows(state: State) -> torch.Tensor | None:
        """Rows (B,) in which a state is too large to resolve an input; None where no state grows so large."""
        return None

    @classmethod
    def build_mlp(cls, config: MemoryConfig, layer_idx: int) -> StatefulLayer | None:
        """The third part of the block; a mixer with a feed-forward part of its own overrides this."""
        return MLP(config) if config.intermediate_size else None


class MemoryBlock(GradientCheckpointingLayer):
    """Norm, optional short convolution, mixer, residual; then norm, MLP, residual where there is an MLP."""

    def __init__(self, config: MemoryConfig, layer_idx: int, mixer_class: type[Mixer]):
        super().__init__()
        self.residual = config.residual
        self.norm = make_norm(config)
        kernel = config.block_conv_kernel
        self.conv = ShortConvolution(config.hidden_size, kernel, activation="silu") if kernel else None
        self.mixer = mixer_class(config, layer_idx)
        self.mlp = mixer_class.build_mlp(config, layer_idx)
        self.mlp_norm = make_norm(config) if self.mlp is not None else None
        self.dropout = nn.Dropout(config.residual_dropout)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the block. Recomputed in a thread of the backward pass it keeps the backend of the forward one."""
        return super().__call__(*args, backend=requested_backend(), **kwargs)

    @property
    def parts(self) -> dict[str, StatefulLayer]:
        """The parts of the block that may carry a state, by the prefix of their leaves, without what wraps them."""
        named = {"conv": self.conv, "mixer": self.mixer, "mlp": self.mlp}
        return {name: bare(part) for name, part in named.items() if part is not None}

    def forward(
        self,
        hidden_states: torch.Tensor,
        state: State | None = None,
        lengths: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        return_state: bool = True,
        backend: str | None = None,
    ) -> tuple[torch.Tensor, State | None]:
        """See :class:`StatefulLayer`; ``backend`` is the one that ``use_backend`` asked for."""
        with keep_backend(backend):
            return self._run(hidden_states, state, lengths, position_ids, return_state)

    def _run(self, hidden_states, state, lengths, position_ids, return_state):
        new: dict[str, State | None] = {}

        def run(name: str, inputs: torch.Tensor) -> torch.Tensor:
            part = getattr(self, name)
            outputs, new[name] = part(inputs, split_state(state, name), lengths, position_ids, return_state)
            return outputs

        mixed = self.norm(hidden_states)
        if self.conv is not None:
            mixed = run("conv", mixed)
        hidden_states = self._add(hidden_states, run("mixer", mixed))
        if self.mlp is not None:
            hidden_states = self._add(hidden_states, run("mlp", self.mlp_norm(hidden_states)))
        return hidden_states, join_state(new) if return_state else None

    def _add(self, hidden_states: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        update = self.dropout(update)
        return hidden_states + update if self.residual else update

    def initial_state(self, batch_size: int) -> State:
        """The state of all parts before the first token."""
        return join_state({name: part.initial_state(batch_size) for name, part in self.parts.items()})

    def state_size(self, length: int | None = None) -> int:
        """Numbers held per sequence after ``length`` tokens."""
        return sum(part.state_size(length) for part in self.parts.values())

    def reset_state(self, state: State, mask: torch.Tensor) -> State:
        """Put the rows where ``mask`` (B,) is True back to the initial state."""
        return join_state({n: part.reset_state(split_state(state, n) or {}, mask) for n, part in self.parts.items()})


class MemoryPreTrainedModel(PreTrainedModel):
    """Loading, initialisation and optimiser groups."""

    config_class = MemoryConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["MemoryBlock"]
    _is_stateful = True
    _head_keys: ClassVar[tuple[str, ...]] = ("lm_head.", "score.")
    publisher: ClassVar[Callable[..., Any] | None] = None
    """What pushes a model with its code and card: set by the package, absent where the code runs without it."""

    def __init__(self, config: MemoryConfig):
        if not isinstance(config, self.config_class):
            raise ValueError(f"{type(self).__name__} needs a {self.config_class.__name__}, got {type(config).__name__}")
        config.validate()
        super().__init__(config)

    def _init_weights(self, module: nn.Module) -> None:
        """Children come first, so what a mixer says of its own parts wins over the law for linear layers."""
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            if self.config.scale_residual_init and getattr(module, "writes_residual", False):
                std = std / (2 * self.config.num_hidden_layers) ** 0.5
            init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=std)
        elif isinstance(module, nn.LayerNorm | RMSNorm):
            init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, StatefulLayer):
            module.reset_parameters()

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load as in transformers, but refuse a checkpoint whose tensors are not those of the model.

        Only the head may be missing or left over, and pickled weights are read only with ``use_safetensors=False``.
        ``use_kernels=True`` allows this process to take compiled kernels from the Hub, as ``HF_MEMORY_HUB_KERNELS=1``
        does; they run where they have proved to be right and faster.

        Raises:
            ValueError: Names the checkpoint, and the tensors that it lacks or has in excess.
        """
        if kwargs.pop("use_kernels", False):
            allow_hub_kernels()
        kwargs.setdefault("use_safetensors", True)
        try:
            model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        except TypeError as error:  # of the constructor, to which transformers hands what is no field
            cls.config_class.refuse_argument(error, kwargs)
            raise
        source = (*args, kwargs.get("pretrained_model_name_or_path"))[0] or "state_dict"
        check_tensors(f"{source}: for {cls.__name__}", info, cls._head_keys)
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: Any, *args: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Save as in transformers; ``push_to_hub=True`` then pushes as :meth:`push_to_hub` does."""
        if os.path.isfile(save_directory):
            raise ValueError(f"save_directory must be a folder, and {str(save_directory)!r} is a file")
        publish = type(self).publisher
        if not push_to_hub or publish is None:
            return super().save_pretrained(save_directory, *args, push_to_hub=push_to_hub, **kwargs)
        names = ("token", "commit_message", "private", "create_pr", "revision")
        options = {name: kwargs.pop(name) for name in names if name in kwargs}
        repo_id = kwargs.pop("repo_id", os.path.basename(os.path.normpath(save_directory)))
        super().save_pretrained(save_directory, *args, **kwargs)
        return publish(self, repo_id, **options)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> Any:
        """Push weights, config, code and a card.

        The arguments are those of transformers and of ``hf_memory.hub.checkpoints.push``.
        """
        publish = type(self).publisher
        return super().push_to_hub(repo_id, **kwargs) if publish is None else publish(self, repo_id, **kwargs)

    def optim_groups(
        self,
        learning_rate: float,
        weight_decay: float,
        mode: str = "documented",
        ssm_learning_rate: float | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser.

        Biases, norms and parameters of the recurrence take no weight decay in either mode.

        Args:
            learning_rate: Rate of all other parameters.
            weight_decay: Decay of all other parameters.
            mode: ``"documented"`` gives the parameters that the authors of S4D, H3, Hyena and LRU train slowly at most
                ``ssm_learning_rate``; ``"uniform"`` gives one rate to all, as learning-rate windows need it.
            ssm_learning_rate: Rate of slow parameters; default min(learning_rate, 1e-3).
        """
        return optim_groups(self, learning_rate, weight_decay, mode, ssm_learning_rate)


class MemoryModel(MemoryPreTrainedModel):
    """Token embeddings, a stack of blocks with one mixer each, and a final norm."""

    mixer_class: ClassVar[type[Mixer]]

    def __init__(self, config: MemoryConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        learned = config.position_embedding == "learned"
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(
            MemoryBlock(layer_config, index, mixer_class)
            for index, (layer_config, mixer_class) in enumerate(self.layer_plan(config))
        )
        self.norm = make_norm(config)
        self.cache_owner = state_owner(config)
        self.gradient_checkpointing = False
        self._keep_in_fp32_modules_strict = {
            name
            for layer in self.modules()
            if isinstance(layer, StatefulLayer)
            for name in (*layer.fp32_parameters, *layer.fp32_modules)
        }
        self.post_init()

    def layer_plan(self, config: MemoryConfig) -> list[tuple[MemoryConfig, type[Mixer]]]:
        """Config and mixer of each block."""
        return [(config, self.mixer_class)] * config.num_hidden_layers

    def initial_state(self, batch_size: int) -> MemoryCache:
        """A cache that holds the state of every block before the first token."""
        positions = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        return MemoryCache([layer.initial_state(batch_size) for layer in self.layers], positions, 0, self.cache_owner)

    def state_size(self, length: int | None = None) -> int:
        """Numbers held per sequence by all blocks after ``length`` tokens."""
        return sum(layer.state_size(length) for layer in self.layers)

    def reset_rows(self, cache: MemoryCache, mask: torch.Tensor) -> MemoryCache:
        """A new cache in which the rows where ``mask`` (B,) is True start again."""
        states = [layer.reset_state(state, mask) for layer, state in zip(self.layers, cache.states, strict=True)]
        return MemoryCache(states, cache.positions.masked_fill(mask, 0), cache.num_columns, cache.owner)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: MemoryCache | None = None,
        past_key_values: MemoryCache | None = None,
        cache_params: MemoryCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_states: bool = False,
        **kwargs: Any,
    ) -> MemoryModelOutput:
        """Run the stack.

        Args:
            input_ids: Tokens (B, T), at least one row and one column; or give ``inputs_embeds`` (B, T, D).
            attention_mask: 1 for real tokens, 0 for padding (B, S), S >= T; its last T columns are read. At a masked
                position no state moves, and the output is zero.
            position_ids: Positions (B, T); default: the real tokens of each row are counted.
            cache: Where to continue from. It is not written to: the new one is ``outputs.cache``.
            past_key_values: The same under the name of older versions of transformers.
            cache_params: The same under the name that transformers uses for Mamba.
            inputs_embeds: Embeddings instead of tokens.
            use_cache: Return the state. Default: ``config.use_cache`` in evaluation mode, False in training mode.
            output_hidden_states: Return the output of every block.
            output_states: Return the state after each column; the stack is then run one column at a time.
            **kwargs: Passed by transformers; packed sequences are refused.

        Raises:
            ValueError: Names the argument, and the accepted range.
        """
        check_kwargs(kwargs)
        check_inputs(self.config, input_ids, inputs_embeds, attention_mask, position_ids)
        cache = one_cache(cache, past_key_values, cache_params)
        if cache is not None:
            check_owner(cache, self.cache_owner, len(self.layers))
        use_cache = self._resolve_use_cache(use_cache)
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        layout = RowLayout.from_mask(attention_mask, *embeds.shape[:2], embeds.device)
        start = layout.start_positions(cache.positions if cache is not None else None)
        position_ids = layout.position_ids(start, position_ids)
        hidden = self.dropout(self._add_positions(layout.gather(embeds), position_ids))
        states = cache.states if cache is not None and cache.layers else [None] * len(self.layers)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if output_states:
            hidden, every, states, trace = run_stepwise(self, hidden, states, layout, position_ids)
        else:
            show = layout.show if wanted else None
            hidden, every, states = self.run_layers(hidden, states, layout.lengths, position_ids, use_cache, show)
        columns = embeds.shape[1] + (0 if cache is None else cache.num_columns)
        return MemoryModelOutput(
            last_hidden_state=layout.scatter(self.norm(hidden)),
            cache=MemoryCache(states, start + layout.counts, columns, self.cache_owner) if use_cache else None,
            hidden_states=tuple(every) if wanted else None,
            states=tuple(map(layout.scatter_states, trace)) if output_states else None,
        )

    def run_layers(self, hidden, states, lengths, position_ids, return_state, show=None):
        """Run the layers; ``show`` is asked what to keep of each layer's input, and with what to go on."""
        every, new = [], []
        for layer, state in zip(self.layers, states, strict=True):
            if show is not None:
                shown, hidden = show(hidden)
                every.append(shown)
            hidden, state = layer(hidden, state, lengths, position_ids, return_state)
            new.append(state)
        if show is not None:
            shown, hidden = show(hidden)
            every.append(shown)
        return hidden, every, new

    def _add_positions(self, embeds: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        if self.config.position_embedding == "sinusoidal":
            return embeds + sinusoidal_positions(position_ids, self.config.hidden_size).to(embeds.dtype)
        if self.embed_positions is None:
            return embeds
        limit = self.embed_positions.num_embeddings
        last = position_ids.max()
        asked = f", and position {int(last)} was asked for" if is_seen(last >= limit) else ""
        require(
            last < limit,
            f"max_position_embeddings={limit} is the longest input of a model with learned positions{asked}",
        )
        return embeds + self.embed_positions(position_ids.clamp(min=0))

    def _resolve_use_cache(self, use_cache: bool | None) -> bool:
        if use_cache is None:
            return self.config.use_cache and not self.training
        if use_cache and self.gradient_checkpointing and self.training:
            logger.warning_once("gradient checkpointing recomputes the states: `use_cache=True` is ignored in training")
            return False
        return use_cache

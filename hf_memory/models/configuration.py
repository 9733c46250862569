"""The configuration that every mixer shares: the fields that the spine reads."""

import dataclasses
import difflib
import importlib.metadata
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from packaging.version import InvalidVersion, Version
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Keys that transformers and Trainer write into saved configs, or accept, without declaring them as fields.
_TRANSFORMERS_KEYS = {
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "experts_implementation",
    "finetuning_task",
    "is_decoder",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "pad_token_id",
    "per_layer_config",
    "quantization_config",
    "sep_token_id",
    "task_specific_params",
    "tie_last_hidden_states",
    "tokenizer_class",
    "torch_dtype",
}


Real = float | int
"""Type of a field that takes integers too and holds a float. Fields of subclasses say ``float``."""


def later_field(default: Any) -> Any:
    """A field that joins a config after results were published: at its default it is no part of the config's digest."""
    return dataclasses.field(default=default, metadata={"later": True})


def unchanged_later_fields(config: PreTrainedConfig) -> set[str]:
    """Names of the fields that joined later and are at their defaults."""
    return {
        field.name
        for field in dataclasses.fields(config)
        if field.metadata.get("later") and getattr(config, field.name) == field.default
    }


@strict
class MemoryConfig(PreTrainedConfig):
    """Fields common to all models of the package. A mixer's config adds its own.

    Attributes:
        vocab_size: Number of input ids.
        hidden_size: Width D of the residual stream.
        num_hidden_layers: Number of blocks.
        intermediate_size: Width of the block's MLP; 0 for blocks without one.
        hidden_act: Activation of the MLP, a name of ``transformers.activations``.
        mlp_gated: Multiply the activated projection with a second, linear one (GLU).
        norm: Norm before each part of a block and before the head.
        norm_eps: Epsilon of the norms.
        residual: Add each part of a block to its input; False gives the plain stacks of classical recurrent nets.
        block_conv_kernel: Width W of a short causal depthwise convolution before every mixer; 0 for none. A mixer's own
            convolution is its field ``conv_kernel``.
        position_embedding: Position code added to the token embeddings.
        max_position_embeddings: Longest input where something is built for a length: learned positions, the filters of
            Hyena and BaseConv (:attr:`limited_length`). A longer one is refused.
        embedding_dropout: Dropout on the embeddings.
        residual_dropout: Dropout on what each part of a block adds to the residual stream.
        initializer_range: Standard deviation of linear and embedding weights.
        scale_residual_init: Divide the initial output projections by sqrt(2 * num_hidden_layers) (Radford et al.,
            2019).
        tie_word_embeddings: Share the input embedding with the causal head.
        use_cache: Return the state by default outside of training.
        hf_memory_version: Version that wrote the config.
    """

    model_type: ClassVar[str] = "memory"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]

    vocab_size: int = 8192
    hidden_size: int = 64
    num_hidden_layers: int = 2
    intermediate_size: int = 0
    hidden_act: str = "gelu"
    mlp_gated: bool = False
    norm: Literal["rms", "layer", "none"] = "rms"
    norm_eps: Real = 1e-5
    residual: bool = True
    block_conv_kernel: int = 0
    position_embedding: Literal["none", "sinusoidal", "learned"] = "none"
    max_position_embeddings: int = 2048
    embedding_dropout: Real = 0.0
    residual_dropout: Real = 0.0
    initializer_range: Real = 0.02
    scale_residual_init: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    hf_memory_version: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A strict dataclass takes no integer for a float, where transformers' own configs do.
        for field in dataclasses.fields(cls):
            for plain, wider in ((float, Real), (float | None, Real | None)):
                if field.type == plain:
                    field.type = wider

    def __setattr__(self, name: str, value: Any) -> None:
        field = type(self).__dataclass_fields__.get(name)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if field is not None and field.type in (Real, Real | None) and is_integer:
            value = float(value) if abs(value) < 2**63 else math.inf
        super().__setattr__(name, value)

    @property
    def limited_length(self) -> bool:
        """Whether ``max_position_embeddings`` builds something, which then belongs to the trained function."""
        return self.position_embedding == "learned"

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        super().__post_init__(**kwargs)
        self.hf_memory_version = installed_version() or self.hf_memory_version

    def _refuse_unknown(self, given: dict[str, Any]) -> None:
        known = _TRANSFORMERS_KEYS | set(GenerationConfig().to_dict())
        unknown = [name for name in given if name not in known and not name.startswith("_")]
        if not unknown:
            return
        if _is_newer(self.hf_memory_version, installed_version()) or _is_newer(
            self.transformers_version, importlib.metadata.version("transformers")
        ):
            logger.warning(f"{type(self).__name__}: keys of a newer version are kept but not read: {unknown}")
            return
        raise ValueError(self.unknown_field(unknown[0]))

    @classmethod
    def unknown_field(cls, name: str) -> str:
        """What is said of a name that is no field, with the nearest that is."""
        own = [field.name for field in dataclasses.fields(cls)]
        near = difflib.get_close_matches(name, own, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return f"{cls.__name__} has no field {name!r}{hint} Its fields: {', '.join(sorted(own))}"

    @classmethod
    def refuse_argument(cls, error: TypeError, given: Iterable[str]) -> None:
        """Raise a ``ValueError`` where an error says that a constructor takes none of this name, which was given."""
        for name in given:
            if f"unexpected keyword argument {name!r}" in str(error):
                raise ValueError(cls.unknown_field(name)) from error

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "MemoryConfig":
        """Build the config from a dictionary. Raises a ``ValueError`` if it is one of another mixer."""
        saved = config_dict.get("model_type", cls.model_type)
        if saved != cls.model_type:
            raise ValueError(
                f"model_type: this is a config of {saved!r}, and {cls.__name__} reads {cls.model_type!r}; "
                "load it with AutoConfig, AutoModel or the classes of its own mixer"
            )
        if not kwargs.get("return_unused_kwargs"):  # else it is the caller who looks at what is left over
            own = [field.name for field in dataclasses.fields(cls)]
            for name in set(kwargs) - {*own, *_TRANSFORMERS_KEYS}:
                if not hasattr(cls, name) and difflib.get_close_matches(name, own, n=1, cutoff=0.8):
                    raise ValueError(cls.unknown_field(name))
        return super().from_dict(config_dict, **kwargs)

    def validate_sizes(self) -> None:
        """Check the ranges of the shared fields."""
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("intermediate_size", "block_conv_kernel", "initializer_range"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("embedding_dropout", "residual_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.norm_eps <= 0:
            raise ValueError(f"norm_eps must be above 0, got {self.norm_eps}")

    def validate_finite(self) -> None:
        """Check that no field is NaN or infinite: comparisons with a bound let NaN through."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name} must be finite, got {value}")
            if isinstance(value, bool) and field.type in (Real, Real | None):  # a number to older checks of types
                raise ValueError(f"{field.name} must be a number, got {value}")

    def validate_activation(self) -> None:
        """Check that the activation has a name that transformers knows."""
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act must be one of {', '.join(sorted(ACT2FN))}; got {self.hidden_act!r}")

    def validate_heads(self) -> None:
        """Check that the heads, where a mixer has some, divide its width."""
        num_heads = getattr(self, "num_heads", None)
        if num_heads is not None and (num_heads < 1 or self.hidden_size % num_heads):
            raise ValueError(f"num_heads must divide hidden_size={self.hidden_size}, got {num_heads}")


def installed_version() -> str | None:
    """Version of the installed package; None where the code runs without being installed."""
    try:
        return importlib.metadata.version("hf_memory")
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_newer(saved: str | None, installed: str | None) -> bool:
    if saved is None or installed is None:
        return False
    try:
        return Version(saved) > Version(installed)
    except InvalidVersion:
        return False

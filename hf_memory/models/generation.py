"""Generation with the cache of the package: what ``generate`` asks of a model, and what it cannot have."""

import copy
from typing import Any, NoReturn

from torch import Tensor
from transformers import GenerationMixin
from transformers.generation import utils as generation_utils
from transformers.generation.configuration_utils import GenerationMode

from hf_memory.models.inputs import check_columns


class MemoryGenerationMixin(GenerationMixin):
    """``generate`` for models whose past is a state.

    transformers asks by the signature of a method what a model takes, so arguments that it looks for are named here.
    """

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the model makes its own cache in the first step

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Leave the positions to the spine, which counts real tokens.

        Those of ``generate`` go on from the last column of the prompt, and are wrong where that column is padding.
        """
        inputs = super().prepare_inputs_for_generation(input_ids, inputs_embeds=inputs_embeds, **kwargs)
        inputs.pop("position_ids", None)
        return inputs

    def generate_batch(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse, see :meth:`init_continuous_batching`."""
        self.init_continuous_batching()

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a state has no pages of keys and values to be handed out.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "generate_batch: continuous batching hands out pages of keys and values, and a state has none; "
            "call generate on a batch, padded on the left with an attention_mask"
        )

    def _validate_generation_mode(self, generation_mode, generation_config, generation_mode_kwargs):
        if generation_mode == GenerationMode.ASSISTED_GENERATION:
            raise ValueError(
                "assisted decoding takes tokens back, and a state does not remember what it was; generate without "
                "assistant_model and prompt_lookup_num_tokens"
            )
        if generation_config.output_attentions and generation_config.return_dict_in_generate:
            raise ValueError("output_attentions: no map of attention is ever built; ask for output_hidden_states")
        if generation_config.prefill_chunk_size is not None and generation_config.use_cache is False:
            raise ValueError("prefill_chunk_size hands the state from piece to piece, and needs use_cache=True")
        if generation_config.num_beams is not None and generation_config.num_beams < 1:
            raise ValueError(f"num_beams must be at least 1, got {generation_config.num_beams}")
        _check_end(generation_config.eos_token_id, self.config.vocab_size)
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        embeds = model_kwargs.get("inputs_embeds")
        ids = inputs if inputs is not None else model_kwargs.get("input_ids")
        if embeds is None and ids is None and bos_token_id is None:
            raise ValueError("generate needs a prompt of at least one token: give input_ids or inputs_embeds")
        if embeds is not None or ids is not None:
            check_columns(self.config, ids if embeds is None else None, embeds)
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)

    def _prepare_attention_mask_for_generation(self, inputs_tensor, generation_config, model_kwargs):
        mask = super()._prepare_attention_mask_for_generation(inputs_tensor, generation_config, model_kwargs)
        pad, reserved = generation_config.pad_token_id, getattr(self.config, "pad_token_id", None)
        if pad != reserved and not mask.all():  # a reserved one is a word for padding alone
            raise ValueError(
                f"pad_token_id: the prompt holds {pad}, which would be hidden wherever it stands; give an "
                "attention_mask of 1 at real tokens and 0 at padding"
            )
        return mask

    def _prefill(self, input_ids, generation_config, model_kwargs, is_first_iteration=True):
        size = generation_config.prefill_chunk_size
        if size is None:
            return super()._prefill(input_ids, generation_config, model_kwargs, is_first_iteration)
        whole = copy.copy(generation_config)
        whole.prefill_chunk_size = None
        return GenerationMixin._prefill(_InPieces(self, size), input_ids, whole, model_kwargs, is_first_iteration)

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, *args, **kwargs):
        model_kwargs = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        # Versions up to 5.23 hand the state on as `past_key_values`, later ones as `cache`.
        names = generation_utils.ALL_CACHE_NAMES
        for name in names:
            model_kwargs.pop(name, None)
        if outputs.cache is not None:
            model_kwargs["cache" if "cache" in names else "past_key_values"] = outputs.cache
        return model_kwargs


def _check_end(eos_token_id: int | list[int] | None, vocab_size: int) -> None:
    """Refuse ends that the model can never write, with which it would write on to the longest length."""
    for token in [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id or []:
        if token >= vocab_size:
            raise ValueError(f"eos_token_id must be below vocab_size={vocab_size}, got {token}")


class _InPieces:
    """A model that reads its columns in pieces of a size, and hands the state on."""

    def __init__(self, model: MemoryGenerationMixin, size: int):
        self._model = model
        self._size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, **inputs: Any) -> Any:
        name = "input_ids" if inputs.get("inputs_embeds") is None else "inputs_embeds"
        columns, mask, outputs = inputs.pop(name), inputs.pop("attention_mask", None), None
        seen = 0 if mask is None else mask.shape[1] - columns.shape[1]
        for piece in columns.split(self._size, dim=1):
            seen += piece.shape[1]
            inputs |= {name: piece, "attention_mask": None if mask is None else mask[:, :seen]}
            outputs = self._model(**inputs)
            for other in ("past_key_values", "cache_params"):
                inputs.pop(other, None)
            inputs["cache"] = outputs.cache
        return outputs

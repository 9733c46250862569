"""Models with a head: the loss at the supervised positions, predictions without logits, generation."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from hf_memory.models.cache import MemoryCache, one_cache
from hf_memory.models.configuration import MemoryConfig
from hf_memory.models.generation import MemoryGenerationMixin
from hf_memory.models.inputs import IGNORE_INDEX, check_columns, check_labels, kept_columns
from hf_memory.models.layers import State
from hf_memory.models.modeling import MemoryModel, MemoryPreTrainedModel
from hf_memory.models.values import is_opaque
from hf_memory.ops.backends.dispatch import in_function_transform
from hf_memory.ops.linear_cross_entropy import linear_cross_entropy, takes

_CHUNK_LOGITS = 2**24  # numbers in the largest logits tensor that a loss builds: 64 MiB in float32


@dataclass
class MemoryHeadOutput(ModelOutput):
    """Output of the models with a head.

    Attributes:
        loss: Summed loss of the supervised positions over their number, or over ``num_items_in_batch``.
        logits: Scores (B, T, C), or values (B, T, 1) for regression.
        predictions: Most likely class, or value for regression, of each output position (B, T), where
            ``return_logits=False``; -100 where labels are given and the position is not supervised.
        token_loss: Loss of each output position (B, T), 0 where there is no target.
        cache: See :class:`MemoryModelOutput`.
        hidden_states: See :class:`MemoryModelOutput`.
        states: See :class:`MemoryModelOutput`.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    predictions: torch.Tensor | None = None
    token_loss: torch.Tensor | None = None
    cache: MemoryCache | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    states: tuple[State, ...] | None = None


class MemoryHeadModel(MemoryPreTrainedModel):
    """A base model and a linear head that computes its own loss at the supervised positions only."""

    model_class: ClassVar[type[MemoryModel]]
    shift: ClassVar[int]
    """How many positions before its label an output stands."""
    class_names: ClassVar[dict[str, str]]
    """Where transformers looks up, by name, which classes have this head: label smoothing in Trainer, and pipelines."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config_class" in vars(cls):
            cls.class_names[cls.config_class.model_type] = cls.__name__

    @property
    def head(self) -> nn.Linear:
        """The linear layer from hidden states to scores."""
        raise AttributeError("a model with a head names it")

    def state_size(self, length: int | None = None) -> int:
        """Numbers held per sequence by all blocks after ``length`` tokens."""
        return self.model.state_size(length)

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
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_states: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        return_logits: bool | None = None,
        **kwargs: Any,
    ) -> MemoryHeadOutput:
        """Run the model, and compute the loss where there are labels.

        The arguments that :meth:`MemoryModel.forward` takes mean what they mean there.

        Args:
            labels: Targets (B, T), -100 where a position is not supervised; real numbers for regression. A causal
                head shifts them: ``labels[:, t + 1]`` is the target of the output at ``t``.
            logits_to_keep: Compute the logits of the last columns only, or of the columns of this index; 0 for all.
            return_logits: Default: no logits while training with labels. False returns ``predictions`` and
                ``token_loss`` instead, in chunks, so that no (B, T, C) tensor exists.
            **kwargs: ``num_items_in_batch`` divides the summed loss; ``shift_labels`` (B, T) are the targets of a
                causal head themselves; ``label_smoothing`` in [0, 1) is the share spread evenly over all classes.

        Raises:
            ValueError: Names the argument, and the accepted range.
        """
        num_items_in_batch, smoothing = kwargs.pop("num_items_in_batch", None), kwargs.pop("label_smoothing", 0.0)
        columns, kept = check_columns(self.config, input_ids, inputs_embeds), kept_columns(logits_to_keep)
        targets = self._targets(columns, labels, kwargs.pop("shift_labels", None), smoothing)
        return_logits = (targets is None or not self.training) if return_logits is None else return_logits
        if use_cache is None and targets is not None:
            use_cache = False
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=one_cache(cache, past_key_values, cache_params),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_states=output_states,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        carried = {name: getattr(outputs, name) for name in ("cache", "hidden_states", "states")}
        loss = token_loss = predictions = None
        if targets is not None:
            loss, token_loss, predictions = self._loss(hidden, targets, num_items_in_batch, smoothing)
        elif not return_logits:
            predictions = self._predict(hidden)
        if return_logits:
            return MemoryHeadOutput(loss=loss, logits=self.head(hidden[:, kept]), **carried)
        return MemoryHeadOutput(loss=loss, predictions=predictions, token_loss=token_loss, **carried)

    def _targets(self, columns, labels, shift_labels, smoothing):
        """The target of each output (B, T); None where there are no labels."""
        regression = self.config.problem_type == "regression"
        if not 0.0 <= smoothing < 1.0 or (smoothing and regression):
            allowed = "0 for a regression, whose targets are no classes" if regression else "in [0, 1)"
            raise ValueError(f"label_smoothing must be {allowed}, got {smoothing}")
        if shift_labels is not None and not self.shift:
            raise ValueError("shift_labels: the labels of this head stand at their own positions; give labels")
        name, given = ("labels", labels) if shift_labels is None else ("shift_labels", shift_labels)
        if given is None:
            return None
        check_labels(name, given, columns, None if regression else self.head.out_features)
        if shift_labels is not None:
            return shift_labels
        return F.pad(labels[:, self.shift :], (0, self.shift), value=IGNORE_INDEX)

    def _loss(self, hidden, targets, num_items_in_batch, smoothing):
        if torch.compiler.is_compiling() or is_opaque(targets):
            return self._loss_of_all(hidden, targets.to(hidden.device), num_items_in_batch, smoothing)
        flat = targets.to(hidden.device).flatten()
        index = (flat != IGNORE_INDEX).nonzero().squeeze(1)
        chosen, wanted = hidden.flatten(0, 1).index_select(0, index), flat.index_select(0, index)
        if not smoothing and self._is_plain_classifier() and takes(chosen, self.head.weight):
            total, per_target, predicted = linear_cross_entropy(chosen, self.head.weight, self.head.bias, wanted.long())
        else:
            per_target, predicted = self._loss_in_chunks(chosen, wanted, smoothing)
            total = per_target.sum()
        count = max(len(index), 1) if num_items_in_batch is None else num_items_in_batch
        if isinstance(count, torch.Tensor):
            count = count.to(total.device)
        with torch.no_grad():
            token_loss = per_target.new_zeros(len(flat)).index_copy(0, index, per_target)
            dense = predicted.new_full((len(flat),), IGNORE_INDEX).index_copy(0, index, predicted)
        return total / count, token_loss.view_as(targets), dense.view_as(targets)

    def _loss_of_all(self, hidden, targets, num_items_in_batch, smoothing):
        """The same where shapes must not depend on data, as in a graph: what has no target is computed as well."""
        wanted = targets != IGNORE_INDEX
        per_target, predicted = self._chunk(hidden.flatten(0, 1), targets.where(wanted, 0).flatten(), smoothing)
        token_loss = per_target.view_as(targets).masked_fill(~wanted, 0.0)
        count = wanted.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        predictions = predicted.view_as(targets).masked_fill(~wanted, IGNORE_INDEX)
        return token_loss.sum() / count, token_loss.detach(), predictions

    def _is_plain_classifier(self) -> bool:
        """Whether the head is a linear layer that nobody has wrapped or hooked."""
        head = self.head
        hooked = head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or "forward" in vars(head)
        return type(head) is nn.Linear and not hooked and self.config.problem_type != "regression"

    def _loss_in_chunks(
        self, hidden: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = max(1, _CHUNK_LOGITS // self.head.out_features)
        recompute = len(hidden) > rows and torch.is_grad_enabled() and not in_function_transform()
        losses, predictions = [], []
        for part in zip(hidden.split(rows), targets.split(rows), strict=True):
            # Recomputing a chunk in the backward pass keeps one chunk of logits alive instead of all of them.
            loss, prediction = (
                checkpoint(self._chunk, *part, smoothing, use_reentrant=False)
                if recompute
                else self._chunk(*part, smoothing)
            )
            losses.append(loss)
            predictions.append(prediction)
        return torch.cat(losses), torch.cat(predictions)

    def _chunk(self, hidden: torch.Tensor, target: torch.Tensor, smoothing: float) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(hidden)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        target = target.to(scores.device)  # a head may stand on a device of its own
        if self.config.problem_type == "regression":
            value = scores.squeeze(-1)
            loss, predicted = (value - target.to(value.dtype)).square(), value.detach()
        else:
            loss = F.cross_entropy(scores, target.long(), reduction="none", label_smoothing=smoothing)
            predicted = scores.detach().argmax(-1)
        return loss.to(hidden.device), predicted.to(hidden.device)

    def _predict(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.flatten(0, 1)
        blocks = flat.split(max(1, _CHUNK_LOGITS // self.head.out_features))
        regression = self.config.problem_type == "regression"
        values = [self.head(block).squeeze(-1) if regression else self.head(block).argmax(-1) for block in blocks]
        return torch.cat(values).view(hidden.shape[:2])


class MemoryForCausalLM(MemoryHeadModel, MemoryGenerationMixin):
    """A model whose answer is the next token: ``labels[:, t + 1]`` is the target of the output at ``t``."""

    shift = 1
    class_names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: MemoryConfig):
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def head(self) -> nn.Linear:
        """The language model head."""
        return self.lm_head


class MemoryForTokenClassification(MemoryHeadModel):
    """A model whose answer is due at its own position: a class, or a number where ``problem_type="regression"``."""

    shift = 0
    class_names = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

    def __init__(self, config: MemoryConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.model_class(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @property
    def head(self) -> nn.Linear:
        """The classification head."""
        return self.score

"""Running a model over prompts that share a beginning: the prefix once, then each query from a copy of its state.

Whether a model can go on from its state is not assumed. On the loaded model two chunks, and a chunk and single steps,
are held against one pass; the first that agrees is how queries go on. Where neither does, each query is one whole pass.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from hf_memory.experiments.probing.states import (
    LiveState,
    cache_name,
    cache_of,
    changed_on_modules,
    empty_cache,
    marks_on_modules,
    takes,
)

Way = Literal["chunks", "steps", "whole"]

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far logits of one position may lie apart, relative to their norm, by the type of the weights."""

CHUNK = 8_192
"""Tokens of a piece of a prefix, where chunks agree with one pass."""

CHECKED = (24, 7)
"""Tokens of the first and of the second chunk of the check."""

_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, NotImplementedError)
"""What models of any package raise where they cannot go on from a state; a way that raises one is not taken."""


@dataclasses.dataclass
class Runner:
    """A loaded model that runs over prompts.

    Attributes:
        model: The model, in evaluation mode.
        way: How it goes on from a state.
        reason: Why it does not go on in chunks; empty where it does.
        chunk: Tokens of a piece of a prefix; 0 for one piece.
        gives_cache: Whether the model makes a cache by itself and hands it on.
        keeps_state: Whether it keeps a state on its modules.
    """

    model: PreTrainedModel
    way: Way = "whole"
    reason: str = ""
    chunk: int = 0
    gives_cache: bool = True
    keeps_state: bool = True

    @property
    def device(self) -> torch.device:
        """Where ids are to be."""
        return self.model.get_input_embeddings().weight.device

    def forward(
        self, ids: torch.Tensor, state: LiveState | None = None, last: int = 1, *, keep: bool = True
    ) -> tuple[torch.Tensor, LiveState | None]:
        """One pass.

        Args:
            ids: Ids (B, T).
            state: The state to go on from, which is used up.
            last: Positions at the end whose logits are wanted; 0 for none.
            keep: Whether the state afterwards is wanted.

        Returns:
            Logits (B, last, V), and the state.
        """
        given: dict[str, Any] = {} if state is None else state.put_back()
        if takes(self.model, "use_cache"):
            given["use_cache"] = keep or state is not None
        if takes(self.model, "logits_to_keep"):
            given["logits_to_keep"] = max(last, 1)
        elif takes(self.model, "num_logits_to_keep"):
            given["num_logits_to_keep"] = max(last, 1)
        name = cache_name(self.model)
        marks = marks_on_modules(self.model) if keep and self.keeps_state else {}
        fresh = None
        if state is None and keep and not self.gives_cache and name:
            fresh = given[name] = empty_cache(self.model)
        outputs = self.model(input_ids=ids, **given)
        logits = outputs.logits[:, outputs.logits.shape[1] - last :]
        if not keep:
            return logits, None
        cache = cache_of(outputs)
        if cache is None:
            cache = fresh if state is None else state.cache
        kept = changed_on_modules(self.model, marks) if self.keeps_state else {}
        if state is not None:
            kept = {**{place: getattr(*place) for place in state.kept}, **kept}
        columns = ids.shape[1] + (0 if state is None else state.columns)
        return logits, LiveState(name if cache is not None else "", cache, kept, columns)

    def prefix(self, ids: torch.Tensor) -> LiveState:
        """Read prefixes (B, T) and return their state."""
        size = self.chunk if self.chunk and self.way == "chunks" else ids.shape[1]
        state: LiveState | None = None
        for piece in ids.split(size, dim=1):
            state = self.forward(piece, state)[1]
        if state is None:
            raise ValueError("ids: a prefix needs at least one token")
        return state

    def go_on(self, state: LiveState, ids: torch.Tensor, last: int) -> torch.Tensor:
        """Logits (B, last, V) at the last positions of ids (B, S) that follow a state, which is used up."""
        if self.way == "chunks":
            return self.forward(ids, state, last)[0]
        logits = []
        now: LiveState | None = state
        for place in range(ids.shape[1]):
            step, now = self.forward(ids[:, place : place + 1], now)
            logits.append(step)
        return torch.cat(logits[-last:], dim=1)

    def branches(self, prefix: torch.Tensor, suffixes: Sequence[torch.Tensor], last: int) -> list[torch.Tensor]:
        """Logits (B, last, V) for each of several continuations (B, S) of prefixes (B, T)."""
        if self.way == "whole" or not prefix.shape[1]:
            whole = (torch.cat([prefix, suffix], dim=1) for suffix in suffixes)
            return [self.forward(ids, None, last, keep=False)[0] for ids in whole]
        state = self.prefix(prefix)
        found = []
        for number, suffix in enumerate(suffixes):
            own = state if number == len(suffixes) - 1 else state.copy()
            found.append(self.go_on(own, suffix, last))
        return found

    def live_state(self, columns: int) -> LiveState:
        """The state of one row after so many tokens.

        Raises:
            ValueError: None is found.
        """
        ids = torch.zeros(1, columns, dtype=torch.int64, device=self.device)
        name = type(self.model).__name__
        with torch.inference_mode():
            try:
                state = self.prefix(ids)
            except _FAILURES as error:
                raise ValueError(f"state: {name} cannot hand its state on ({error}); it cannot be probed") from error
        if not state.numbers():
            raise ValueError(
                f"state: none is found in what {name} hands on or keeps on its modules, so that its bytes are not "
                "known; this architecture cannot be probed"
            )
        return state


def make_runner(model: PreTrainedModel, chunk: int = 0) -> Runner:
    """Look how a model goes on from its state.

    Args:
        model: The loaded model.
        chunk: Tokens of a piece of a prefix, where chunks agree with one pass; 0 for one piece.
    """
    runner = Runner(model.eval(), chunk=chunk)
    generator = torch.Generator().manual_seed(0)
    size = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(0, size, (2, sum(CHECKED)), generator=generator).to(runner.device)
    reasons = []
    with torch.inference_mode():
        whole = runner.forward(ids, None, CHECKED[1], keep=False)[0]
        _look_for_state(runner, ids)
        for way in ("chunks", "steps"):
            runner.way = way
            try:
                state = runner.forward(ids[:, : CHECKED[0]])[1]
                if state is None or not state.numbers():
                    reasons.append("no state is found")
                    break
                found = runner.go_on(state.copy(), ids[:, CHECKED[0] :], CHECKED[1])
                # Again from the state itself: a copy that shares memory would have been written into.
                again = runner.go_on(state, ids[:, CHECKED[0] :], CHECKED[1])
            except _FAILURES as error:
                reasons.append(f"{way} raise {type(error).__name__}: {error}")
                continue
            apart = max(_distance(found, whole), _distance(again, whole))
            if apart <= TOLERANCES.get(model.dtype, 1e-4):
                runner.reason = "; ".join(reasons)
                return runner
            reasons.append(f"{way} are {apart:.2g} off one pass")
    runner.way, runner.reason = "whole", "; ".join(reasons)
    return runner


def _look_for_state(runner: Runner, ids: torch.Tensor) -> None:
    """See whether a model hands a cache on by itself, and whether it keeps anything on its modules."""
    given = {"use_cache": True} if takes(runner.model, "use_cache") else {}
    marks = marks_on_modules(runner.model)
    with contextlib.suppress(*_FAILURES):
        cache = cache_of(runner.model(input_ids=ids[:, :4], **given))
        runner.gives_cache = cache is not None or not cache_name(runner.model)
        runner.keeps_state = bool(changed_on_modules(runner.model, marks))


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest distance of the logits of a position, relative to their norm about their mean."""
    found, wanted = (values.double() - values.double().mean(-1, keepdim=True) for values in (found, wanted))
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(1e-12)).max())

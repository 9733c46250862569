"""Who runs which columns; that the numbers are those of one process is tested on several, in ``tests/distributed``."""

import contextlib
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hf_memory.data.tensors import TensorRows
from hf_memory.experiments import segments
from hf_memory.experiments.pieces import in_pieces
from hf_memory.experiments.segments import own_pieces, portable, predict_in_segments, shares_time
from hf_memory.mixers.auto import mixer_config, mixer_model


def make_model(key: str):
    return mixer_model(mixer_config(key, vocab_size=5, hidden_size=8), "causal")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("number", [1, 3, 4, 9])
def test_every_piece_is_run_by_one_process_and_in_order(number, world):
    pieces = [slice(start, start + 1) for start in range(number)]
    shares = [own_pieces(pieces, rank, world) for rank in range(world)]
    assert [piece for share in shares for piece in share] == pieces
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_pieces_stay_what_they_are_unless_there_are_too_few():
    model = make_model("lru")
    assert in_pieces(model, 1, 9, tokens=4, at_least=3) == in_pieces(model, 1, 9, tokens=4)
    assert in_pieces(model, 1, 9, tokens=8, at_least=3) == [slice(0, 3), slice(3, 6), slice(6, 9)]
    assert in_pieces(model, 1, 2, tokens=8, at_least=4) == [slice(0, 1), slice(1, 2)]
    assert in_pieces(make_model("attention"), 1, 9, tokens=4, at_least=3) == [slice(0, 9)]


def test_time_is_shared_by_several_processes_where_it_is_asked_for_and_the_state_is_fixed():
    two = SimpleNamespace(num_processes=2)
    assert shares_time(make_model("lru"), "time", two)
    assert not shares_time(make_model("lru"), "rows", two)
    assert not shares_time(make_model("lru"), "time", SimpleNamespace(num_processes=1))
    assert not shares_time(make_model("lru"), "time", None)
    assert not shares_time(make_model("attention"), "time", two)


def test_a_share_that_is_unknown_is_refused():
    with pytest.raises(ValueError, match=r"share must be one of 'rows', 'time', got 'columns'"):
        shares_time(make_model("lru"), "columns", None)


@pytest.mark.parametrize("key", ["lru", "rwkv", "mamba"])
def test_what_is_sent_is_the_state_and_not_the_columns_that_it_is_cut_from(key):
    with torch.no_grad():
        cache = make_model(key).eval()(torch.zeros(2, 50, dtype=torch.int64)).cache
    sent = portable(cache)
    assert sent.owner == cache.owner
    assert (sent.num_columns, sent.positions.tolist()) == (50, [50, 50])
    for state, copy in zip(cache.states, sent.states, strict=True):
        assert list(copy) == list(state)
        for name, leaf in copy.items():
            assert torch.equal(leaf, state[name])
            assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()


def test_rows_are_judged_by_the_state_after_the_last_segment(monkeypatch):
    model, sent, parts = make_model("lru").eval(), deque(), []
    told = iter([[True, True], [True], [False, True], [False]])
    mixer = model.base_model.layers[0].mixer
    monkeypatch.setattr(mixer, "unresolved_rows", lambda state: torch.tensor(next(told)))
    monkeypatch.setattr(torch.distributed, "send_object_list", lambda held, *_, **__: sent.extend(held))
    monkeypatch.setattr(segments, "_receive", lambda rank, device: sent.popleft())
    monkeypatch.setattr(segments, "gather_object", lambda own: parts.extend(own) or parts)
    ids = np.random.default_rng(0).integers(0, 5, (3, 9))
    rows = TensorRows({"input_ids": ids, "labels": ids})
    for rank in (0, 1):
        process = SimpleNamespace(num_processes=2, process_index=rank, device="cpu", autocast=contextlib.nullcontext)
        found = predict_in_segments(model, rows, 2, process)
    assert [columns["unresolved"].tolist() for _, columns in found] == [[False, True], [False]]

"""Kernels from the Hub: asked for, of one publisher and one version, with the installed package behind them."""

import logging
import sys
from types import ModuleType

import pytest
import torch

from hf_memory.mixers.lru import MemoryLRUConfig, MemoryLRUModel
from hf_memory.ops.backends import dispatch, hub_kernels
from hf_memory.ops.backends.hub_kernels import package_function
from tests.ops.backends.stand_ins import fresh_adapters
from tests.ops.backends.test_triton_fla import stand_in_hgrn, stand_in_rwkv4


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch):
    monkeypatch.delenv("HF_MEMORY_HUB_KERNELS", raising=False)
    monkeypatch.setattr(dispatch, "_hub_kernels", False)
    hub_kernels._repository.cache_clear()
    with fresh_adapters(monkeypatch, "fla_"):
        yield
    hub_kernels._repository.cache_clear()


@pytest.fixture
def hub(monkeypatch):
    """A package ``kernels`` with two functions of fla; returns what was asked of it."""
    asked = []
    repository, ops, hgrn = (ModuleType(f"fla_of_the_hub{path}") for path in ("", ".ops", ".ops.hgrn"))
    repository.ops, ops.hgrn, hgrn.chunk_hgrn = ops, hgrn, stand_in_hgrn
    repository.fused_recurrent_rwkv4 = stand_in_rwkv4

    def get_kernel(name, **options):
        asked.append((name, options))
        if name != "kernels-community/fla":
            raise FileNotFoundError("no build for this machine")
        return repository

    module = ModuleType("kernels")
    module.get_kernel = get_kernel
    monkeypatch.setitem(sys.modules, "kernels", module)
    monkeypatch.setitem(sys.modules, "fla", None)
    return asked


def test_nothing_is_fetched_unless_it_is_asked_for(hub):
    with pytest.raises(ImportError):
        package_function("fla.ops.hgrn", "chunk_hgrn")
    assert hub == []


@pytest.mark.parametrize("module, name", [("fla.ops.hgrn", "chunk_hgrn"), ("fla.ops.rwkv4", "fused_recurrent_rwkv4")])
def test_a_function_comes_from_the_publisher_in_one_version(module, name, hub, monkeypatch):
    monkeypatch.setenv("HF_MEMORY_HUB_KERNELS", "1")
    function, origin = package_function(module, name)
    assert function in (stand_in_hgrn, stand_in_rwkv4)
    assert origin == "kernels-community/fla version 2"
    package_function(module, name)
    assert hub == [("kernels-community/fla", {"version": 2})]


def test_every_repository_is_pinned_and_of_the_publisher():
    assert hub_kernels.PUBLISHER == "kernels-community"
    for repository, version in hub_kernels.REPOSITORIES.values():
        assert "/" not in repository
        assert version >= 1


def test_an_adapter_runs_on_it_and_says_where_it_comes_from(hub, tmp_path, caplog):
    MemoryLRUModel(MemoryLRUConfig(vocab_size=4, hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path)
    assert dispatch.refusals("wkv", device=torch.device("cuda"), dtype=torch.float32)["triton"].startswith("it cannot")
    with caplog.at_level(logging.INFO, "hf_memory"):
        MemoryLRUModel.from_pretrained(tmp_path, use_kernels=True)
        assert dispatch.refusals("wkv", device=torch.device("cuda"), dtype=torch.float32)["triton"] is None
    kernel = dispatch.load_kernel("wkv", "triton")
    assert kernel.fused_recurrent_rwkv4 is stand_in_rwkv4
    assert dispatch.release_of(kernel, "triton") == "kernels-community/fla version 2"
    assert "wkv can run on kernels-community/fla version 2" in caplog.messages


def test_what_the_hub_lacks_comes_from_the_package(hub, monkeypatch, caplog):
    monkeypatch.setenv("HF_MEMORY_HUB_KERNELS", "yes")
    module = ModuleType("causal_conv1d")
    module.causal_conv1d_fn = len
    monkeypatch.setitem(sys.modules, "causal_conv1d", module)
    assert package_function("causal_conv1d", "causal_conv1d_fn") == (len, None)
    assert "kernels-community/mamba-ssm cannot be loaded (FileNotFoundError: no build for this machine)" in caplog.text
    with pytest.raises(ImportError):
        package_function("fla.ops.based", "fused_chunk_based")


def test_without_the_package_that_fetches_them_the_extra_is_named(monkeypatch, caplog):
    monkeypatch.setenv("HF_MEMORY_HUB_KERNELS", "1")
    monkeypatch.setitem(sys.modules, "kernels", None)
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(ImportError):
        package_function("fla.ops.hgrn", "chunk_hgrn")
    assert "`pip install hf_memory[hub-kernels]`" in caplog.text

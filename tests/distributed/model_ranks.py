"""What each process of ``test_models.py`` runs: models whose weights are copied (DDP) or shared out (FSDP2).

Prints one line of JSON on the first process: for each mixer the largest relative difference from one process, of
gradients under DDP and of weights after three steps under FSDP2.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hf_memory.mixers import MIXERS
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.mixers.hybrid import MemoryHybridConfig
from hf_memory.models.modeling import MemoryBlock
from tests.distributed.launching import leave

ROWS, LENGTH, STEPS = 8, 9, 3


def make(key: str) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8}
    config = MemoryHybridConfig(**sizes) if key == "hybrid" else mixer_config(key, num_hidden_layers=2, **sizes)
    return mixer_model(config, "causal").double().train()


def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one step, with more targets in the first half than in the second."""
    rng = np.random.default_rng(step)
    ids = torch.from_numpy(rng.integers(0, 11, (ROWS, LENGTH)))
    labels = ids.clone()
    labels[ROWS // 2 :, : LENGTH - 2] = -100
    return ids, labels


def loss_of(model: torch.nn.Module, step: int, rank: int, world: int) -> torch.Tensor:
    """The loss of a process's own rows such that the mean over processes is the loss of all rows."""
    ids, labels = draw(step)
    targets = (labels[:, 1:] != -100).sum()
    own = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    return model(ids[own], labels=labels[own], num_items_in_batch=targets).loss * world


def difference(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    pairs = zip(actual, expected, strict=True)
    return max(float((left - right).abs().max() / right.abs().max().clamp_min(1e-3)) for left, right in pairs)


def gradients_of_copies(key: str, rank: int, world: int) -> float:
    """Two steps, since a parameter without a gradient is an error in the second one."""
    alone, copied = make(key), DistributedDataParallel(make(key), find_unused_parameters=False)
    for step in range(2):
        for model in (alone, copied):
            model.zero_grad()
        loss_of(alone, step, 0, 1).backward()
        loss_of(copied, step, rank, world).backward()
    grads = [[p.grad for p in model.parameters()] for model in (copied.module, alone)]
    return difference(*grads)


def weights_of_shards(key: str, rank: int, world: int) -> float:
    """Three steps of the optimiser over the model's own groups."""
    alone, shared = make(key), make(key)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for module in shared.modules():
        if isinstance(module, MemoryBlock):
            fully_shard(module, mesh=mesh)
    fully_shard(shared, mesh=mesh)
    optimizers = [torch.optim.AdamW(model.optim_groups(1e-2, 0.1)) for model in (alone, shared)]
    for step in range(STEPS):
        loss_of(alone, step, 0, 1).backward()
        loss_of(shared, step, rank, world).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    if not all(isinstance(parameter, DTensor) for parameter in shared.parameters()):
        raise ValueError(f"{key}: a parameter is not shared out")
    whole = [parameter.full_tensor() for parameter in shared.parameters()]
    return difference([w.detach() for w in whole], [p.detach() for p in alone.parameters()])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    keys = [*MIXERS, "hybrid"]
    found = {
        "world": world,
        "copies": {key: gradients_of_copies(key, rank, world) for key in keys},
        "shards": {key: weights_of_shards(key, rank, world) for key in keys},
    }
    leave(found if rank == 0 else None)


if __name__ == "__main__":
    main()

"""Training of one module by several processes started by torchrun, each on its share of every batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import distributed, nn

from mesascope.errors import refuse
from mesascope.shapes import Float, Tensor
from mesascope.training.loop import Checkpoints

Result = TypeVar("Result")
Module = TypeVar("Module", bound=nn.Module)


@contextmanager
def distributed_context() -> Iterator[bool]:
    """Form a process group of torchrun's processes in this context; yield True, or False without torchrun.

    Ctrl-C ends all processes at once; a resumed training continues from the last checkpoint.
    """
    if not distributed.is_torchelastic_launched():
        yield False
        return
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield True
        distributed.barrier()  # a process that leaves early would abort the others
    finally:
        distributed.destroy_process_group()


class OtherProcessFailed(SystemExit):
    """Exit without a message, because another process raised an error."""


def is_rank_zero() -> bool:
    """True if this process writes files and prints."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def on_rank_zero(do: Callable[[], Result], others: Callable[[], Result]) -> Result:
    """Run ``do()`` in the first process; when it has succeeded, run ``others()`` in all other processes.

    Each process returns the result of its own call. If ``do`` fails, the first process raises its error, and the others
    exit silently.
    """
    results, error = [], None
    if is_rank_zero():
        try:
            results.append(do())
        except Exception as raised:
            error = raised
    if distributed.is_initialized():
        failed = torch.tensor(error is not None)
        distributed.broadcast(failed, 0)
        if failed and error is None:
            raise OtherProcessFailed(2)
    if error is not None:
        raise error
    return results[0] if results else others()


def local_device(name: str) -> torch.device:
    """Device of this process: for ``cuda`` and several processes, the GPU of its local rank."""
    device = torch.device(name)
    if device.type == "cuda" and distributed.is_initialized():
        if device.index is not None:
            refuse("device", "be cuda where several processes train, each on a GPU of its own", name, "pass cuda")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    return device


def local_batch(batch: Tensor) -> Tensor:
    """Rows of a batch for this process; raise if the batch cannot be split evenly."""
    if not distributed.is_initialized():
        return batch
    count = distributed.get_world_size()
    if len(batch) % count:
        refuse("batch", f"be a multiple of the {count} processes", len(batch), "choose one")
    return batch.chunk(count)[distributed.get_rank()]


def mean_over_processes(value: Float[Tensor, "*batch"], group: Any = None) -> Float[Tensor, "*batch"]:
    """Mean over the processes of a group (or all), returned in each of them."""
    mean = value / distributed.get_world_size(group)
    distributed.all_reduce(mean, group=group)
    return mean


def sharded(module: Module, parts: Iterable[nn.Module]) -> Module:
    """Split a module's weights, gradients and optimiser over the processes (FSDP2), and return it.

    Args:
        module: the same module in each process, on its device.
        parts: submodules to shard one by one; the weights of each are gathered only while it runs.
    """
    # Imported only here: torch.distributed.tensor increases the import time of torch by half.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(module.parameters()).device.type, (distributed.get_world_size(),))
    marked = undecayed(module)
    for part in (*parts, module):
        fully_shard(part, mesh=mesh)
    mark_undecayed(module, marked)
    return module


def undecayed(module: nn.Module) -> list[str]:
    """Names of parameters without weight decay, marked by ``_no_weight_decay`` as in other libraries."""
    return [name for name, weight in module.named_parameters() if getattr(weight, "_no_weight_decay", False)]


def mark_undecayed(module: nn.Module, names: Iterable[str]) -> None:
    """Exclude parameters from weight decay, for example after `fully_shard` has replaced them."""
    for name in names:
        module.get_parameter(name)._no_weight_decay = True  # type: ignore[attr-defined]


def is_dtensor(tensor: Tensor) -> bool:
    """True if the tensor is split over processes."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Any) -> Tensor:
    """The whole tensor; if it is split, all processes must call this function."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def split_like(other: Any, tensor: Tensor) -> Tensor:
    """Split a tensor over processes like ``other``, if ``other`` is split."""
    if not is_dtensor(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)


class SharedCheckpoints:
    """Checkpoints that the first process saves while the others wait; every process loads them."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        on_rank_zero(lambda: self._checkpoints.save(step, dict(tensors)), lambda: None)

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        return self._checkpoints.load()

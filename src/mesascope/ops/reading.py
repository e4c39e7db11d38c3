"""Numbers read off tensors, for which the host waits for an accelerator, and one switch that leaves these readings out.

Two things read numbers: checks of arguments and outputs, and the mesa-layer's solver, which chooses its way by them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch

from mesascope.shapes import Float, Tensor

# Open contexts of this process: all of them, and those that spare the CPU's numbers, too. Not a ContextVar, which
# neither `torch.compile` nor the threads of the backward pass see.
_open, _open_on_cpu = 0, 0
_lock = threading.Lock()


@contextlib.contextmanager
def without_reading_values(*, on_cpu: bool = False) -> Iterator[None]:
    """Within this context, operations check no values and wait for no accelerator: for training, which checks the loss.

    A CUDA graph may then be captured. On an accelerator the mesa-layer does the same work whatever the values are:
    exact chunks are corrected once, and become NaN where they have no digits or forget more than a factor of e^4;
    conjugate gradients take 30 iterations, and chunks become NaN where more than a hundredth of a residual is left. On
    the CPU, where nothing waits, its solver goes on choosing by values.

    Args:
        on_cpu: do on the CPU as on an accelerator.

    The switch is the process's: it holds for all threads while one is within the context.
    """
    _enter(1, on_cpu)
    try:
        yield
    finally:
        _enter(-1, on_cpu)


def _enter(step: int, on_cpu: bool) -> None:
    global _open, _open_on_cpu
    with _lock:
        _open, _open_on_cpu = _open + step, _open_on_cpu + step * on_cpu


def values_are_read() -> bool:
    """True if arguments and outputs are checked: outside `without_reading_values`, and not within `torch.compile`."""
    return not torch.compiler.is_compiling() and not _open


def may_read(device: torch.device) -> bool:
    """True if a computation may choose its way by numbers on this device: see `without_reading_values`."""
    return not (_open_on_cpu if device.type == "cpu" else _open)


def read(vector: Float[Tensor, " n"]) -> list[list[float]]:
    """Its numbers, one row for every member of a mapped axis, through whatever `torch.func` transforms surround it."""
    try:
        return [vector.tolist()]
    except RuntimeError:  # within `torch.func.vmap`
        pass
    seen: list[list[list[float]]] = []
    _Show.apply(vector.detach(), seen.append)
    return seen[0]


class _Show(torch.autograd.Function):
    @staticmethod
    def forward(vector: Tensor, take: Callable[[list[list[float]]], None]) -> Tensor:
        take(vector.reshape(-1, vector.shape[-1]).tolist())
        return vector.new_zeros(())

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info, in_dims, vector: Tensor, take: Callable[[list[list[float]]], None]):
        return _Show.apply(vector.movedim(in_dims[0], 0), take), None

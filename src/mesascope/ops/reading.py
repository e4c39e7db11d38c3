"""Reading of tensor values on the host, which waits for the accelerator, and a switch that turns it off.

Checks of arguments and outputs read values. The mesa-layer's solver reads values to choose its method.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch

from mesascope.shapes import Float, Tensor

# Numbers of open contexts in this process: all, and those with on_cpu. Not a ContextVar, as `torch.compile` and the
# threads of the backward pass do not see context variables.
_open, _open_on_cpu = 0, 0
_lock = threading.Lock()


@contextlib.contextmanager
def without_reading_values(*, on_cpu: bool = False) -> Iterator[None]:
    """Within this context, operations check no values and do not wait for the accelerator; for training.

    The training loop checks the loss instead. CUDA graphs can be captured. On an accelerator, the mesa-layer's solver
    then does the same work for any values. Chunks solved by their factor are corrected three times, and become NaN if
    the result is inaccurate or the chunk forgets more than a factor of e^4. Conjugate gradients take 30 iterations, and
    chunks become NaN if a relative residual exceeds 0.01. On the CPU the solver still chooses its method by values.

    Args:
        on_cpu: treat the CPU like an accelerator.

    The switch holds for all threads of the process while any thread is within the context.
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
    """True if a computation may choose its method by values on this device: see `without_reading_values`."""
    return not (_open_on_cpu if device.type == "cpu" else _open)


def read(vector: Float[Tensor, " n"]) -> list[list[float]]:
    """Values of a vector, also within `torch.func` transforms; one row for each member of a mapped axis."""
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

"""Isolation of public functions from torch's global modes. Importing this module does not import torch."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mesascope.errors import ArgumentError

__all__ = ["guarded", "without_deprecations_of_torch"]

_Call = TypeVar("_Call", bound=Callable[..., Any])

# Parts of torch's error messages, and the mode in which the tensors were made.
_MADE_ELSEWHERE = {"nference tensor": "in torch.inference_mode", "meta tensor": "on the device 'meta'"}


def guarded(function: _Call, *, meta: bool = False) -> _Call:
    """Wrap ``function`` so that its results do not depend on the torch modes of its caller.

    During a call, gradients are enabled, inference mode and autocast are off, the default dtype is float32 and the
    default device is the CPU. The setting of deterministic algorithms, and modes that a learner sets during the call,
    do not change.

    Args:
        meta: keep the default device "meta", which builds networks without allocating memory.

    Raises:
        ArgumentError: weights or tensors were made in inference mode, or on the device "meta".
    """

    @functools.wraps(function)
    def ordinary(*args: Any, **kwargs: Any) -> Any:
        try:
            with contextlib.ExitStack() as stack:
                for mode in _against_others(meta):
                    stack.enter_context(mode)
                return function(*args, **kwargs)
        except RuntimeError as error:
            for sign, where in _MADE_ELSEWHERE.items():
                if sign in str(error):
                    raise ArgumentError(
                        f"{function.__qualname__} must be given weights and tensors that hold numbers and can have "
                        f"gradients, but some were made {where}: make them outside it."
                    ) from error
            raise

    return ordinary  # type: ignore[return-value]


def _against_others(meta: bool) -> list[contextlib.AbstractContextManager[Any]]:
    """Contexts that restore torch's default modes; empty if all modes have their defaults."""
    import torch

    found: list[contextlib.AbstractContextManager[Any]] = []
    plain = torch.empty(0)  # has the default dtype and device
    if plain.is_inference():
        found.append(torch.inference_mode(False))
    if not torch.is_grad_enabled():
        found.append(torch.enable_grad())
    found += [torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if plain.dtype != torch.float32:
        found.append(_single_precision())
    if plain.device.type not in (("cpu", "meta") if meta else ("cpu",)):
        found.append(torch.device("cpu"))
    return found


@contextlib.contextmanager
def without_deprecations_of_torch() -> Iterator[None]:
    """Suppress the warning of torch 2.14 that its own forward-mode derivatives use `torch.jit.script`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
        yield


@contextlib.contextmanager
def _single_precision() -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

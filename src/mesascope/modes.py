"""Torch's global modes, and public functions that do not depend on them. Imports torch only when they are called."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mesascope.errors import ArgumentError

__all__ = ["guarded", "without_deprecations_of_torch"]

_Call = TypeVar("_Call", bound=Callable[..., Any])

# What torch says of tensors that were made in a mode, and of the mode.
_MADE_ELSEWHERE = {"nference tensor": "in torch.inference_mode", "meta tensor": "on the device 'meta'"}


def guarded(function: _Call, *, meta: bool = False) -> _Call:
    """``function`` in torch's ordinary modes, whichever modes its caller has set.

    Ordinary are gradients, no inference mode, no autocast, and float32 on the CPU where no dtype and device are given.
    So a number never depends on the modes around a call. Deterministic algorithms stay as they are, and so does what
    a learner sets while it is called.

    Args:
        meta: leave the default device "meta", on which networks are built without memory.

    Raises:
        ArgumentError: weights or tensors were made in inference mode, or on the device "meta".
    """

    @functools.wraps(function)
    def ordinary(*args: Any, **kwargs: Any) -> Any:
        modes = _against_others(meta)
        try:
            if not modes:
                return function(*args, **kwargs)
            with contextlib.ExitStack() as stack:
                for mode in modes:
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
    """Contexts that put torch into its ordinary modes; none if it is in them."""
    import torch

    found: list[contextlib.AbstractContextManager[Any]] = []
    plain = torch.empty(0)  # of the default dtype, on the default device
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
    """Torch's forward-mode derivatives, whose first use warns of torch's own `torch.jit.script` since torch 2.14."""
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

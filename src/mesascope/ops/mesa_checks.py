"""What `mesa_attention` refuses: options that do nothing, wrong types, shapes and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from mesascope.errors import ArgumentTypeError, refuse, require_count, require_instance, require_number
from mesascope.ops.reading import read
from mesascope.shapes import Tensor

__all__ = ["require_options", "require_shapes", "require_tensors", "require_values"]


def require_options(method: str, chunk: int | None, tolerance: float | None, iterations: int | None) -> None:
    if chunk is not None:
        require_count("chunk", chunk)
    if tolerance is not None:
        require_number("tolerance", tolerance, least=0)
        if method != "cg":
            refuse("tolerance", f"be None for method {method!r}", tolerance, "leave it out, or pass method='cg'")
    if iterations is not None:
        require_count("iterations", iterations, least=0)
        if method not in ("cg", "neumann", "chebyshev"):
            refuse("iterations", f"be None for method {method!r}", iterations, "leave it out, or pass method='cg'")


def require_tensors(arguments: Mapping[str, Tensor | None]) -> None:
    for name, tensor in arguments.items():
        if tensor is not None:
            require_instance(name, tensor, Tensor)
    q, k, v = (tensor for name in "qkv" if (tensor := arguments[name]) is not None)
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype):
        raise ArgumentTypeError(
            f"q, k and v must share one floating-point dtype, but are {q.dtype}, {k.dtype} and {v.dtype}: convert them."
        )
    if q.ndim < 3 or q.shape[-1] == 0:
        refuse("q", "have shape (*batch, heads, t, dk) with dk > 0", tuple(q.shape), "add the missing axes")
    lengths = arguments["lengths"]
    if lengths is not None and lengths.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(f"lengths must be integers, but are {lengths.dtype}: pass counts of tokens.")


def require_shapes(q: Tensor, arguments: Mapping[str, Tensor | None]) -> None:
    (*batch, heads, t, dk), v = q.shape, arguments["v"]
    dv = v.shape[-1] if v is not None and v.ndim else 1
    known: dict[str, list[tuple[int, ...]]] = {
        "k": [(*batch, heads, t, dk)],
        "v": [(*batch, heads, t, dv)],
        "ridge": [(heads,), (heads, dk)],
        "log_forget": [(*batch, heads, t)],
        "beta": [(*batch, heads, t)],
        "lengths": [tuple(batch)],
        "state.H": [(*batch, heads, dk, dk)],
        "state.G": [(*batch, heads, dv, dk)],
    }
    for name, tensor in arguments.items():
        if tensor is not None and tuple(tensor.shape) not in known[name]:
            shapes = " or ".join(str(shape) for shape in known[name])
            refuse(
                name, f"have shape {shapes} beside q {tuple(q.shape)}", tuple(tensor.shape), "expand or transpose it"
            )


def require_values(arguments: Mapping[str, Tensor | None], tokens: int) -> None:
    """Refuse values out of range, by one reading of them all; a graph that is being compiled shows none."""
    if torch.compiler.is_compiling():
        return
    rules: dict[str, tuple[Callable[[float], bool], str, str]] = {
        "ridge": (lambda x: 0 < x < math.inf, "be positive and finite", "pass 1/lambda, or put a floor under it"),
        "log_forget": (lambda x: -math.inf < x <= 0, "be finite and at most 0", "pass logarithms of factors in (0, 1]"),
        "beta": (lambda x: 0 < x <= 1, "lie in (0, 1]", "pass input strengths, 1 for full"),
        "lengths": (lambda x: 0 <= x <= tokens, f"lie in [0, {tokens}]", "pass counts of tokens"),
    }
    finite = (math.isfinite, "be finite", "look for an overflow before it")
    given = {name: tensor for name, tensor in arguments.items() if tensor is not None and tensor.numel()}
    if given:
        extremes = torch.stack([number.float() for tensor in given.values() for number in tensor.aminmax()])
        for row in read(extremes):
            for name, *numbers in zip(given, row[::2], row[1::2], strict=True):
                holds, rule, remedy = rules.get(name, finite)
                for number in numbers:
                    if not holds(number):
                        refuse(name, rule, number, remedy)

"""Checks of types, shapes and values of the inputs and outputs of causal attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from mesascope.errors import ArgumentTypeError, NumericalError, refuse, require_instance
from mesascope.ops.reading import read, values_are_read
from mesascope.shapes import Tensor


def require_attention(arguments: Mapping[str, Tensor | None], states: tuple[int, ...] | None = None) -> None:
    """Raise if arguments of causal attention, including q, k and v, have wrong types, shapes or devices.

    States must have the leading axes ``states``, or those of q's batch if None.
    """
    for name, tensor in arguments.items():
        if tensor is not None or name in ("q", "k", "v"):
            require_instance(name, tensor, Tensor)
    q, k, v = (tensor for name in "qkv" if (tensor := arguments[name]) is not None)
    if not (q.is_floating_point() and q.element_size() > 1 and q.dtype == k.dtype == v.dtype):
        raise ArgumentTypeError(
            f"q, k and v must share one floating-point dtype of 16 bits or more, but are {q.dtype}, {k.dtype} and "
            f"{v.dtype}: convert them."
        )
    if q.ndim < 3 or q.shape[-1] == 0:
        refuse("q", "have shape (*batch, heads, t, dk) with dk > 0", tuple(q.shape), "add the missing axes")
    if q.device.type == "meta":
        refuse("q", "be on a device that holds numbers", "meta", "compute with tensors of another device")
    lengths = arguments.get("lengths")
    if lengths is not None and lengths.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(f"lengths must be integers, but are {lengths.dtype}: pass counts of tokens.")
    (*batch, heads, t, dk), dv = q.shape, v.shape[-1] if v.ndim else 1
    before = batch if states is None else states
    tokens, gates = (*batch, heads, t), [(*batch, heads, t)]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "q": [(*tokens, dk)], "k": [(*tokens, dk)], "v": [(*tokens, dv)], "log_forget": gates, "beta": gates,
        "ridge": [(heads,), (heads, dk)], "lengths": [tuple(batch)],
        "state.H": [(*before, heads, dk, dk)], "state.G": [(*before, heads, dv, dk)],
    }  # fmt: skip
    for name, tensor in arguments.items():
        if tensor is None:
            continue
        if tensor.is_complex():
            raise ArgumentTypeError(f"{name} must be real, but is of dtype {tensor.dtype}: pass its real part.")
        if tensor.device != q.device:
            refuse(name, f"be on q's device {q.device}", tensor.device, "move it there")
        if tuple(tensor.shape) not in shapes[name]:
            rule = f"have shape {' or '.join(map(str, shapes[name]))} beside q {tuple(q.shape)}"
            refuse(name, rule, tuple(tensor.shape), "expand or transpose it")


def require_state(state: Any, kind: type) -> None:
    """Raise unless ``state`` is of this kind, with a tensor in each field."""
    require_instance("state", state, kind)
    for name, part in zip(state._fields, state, strict=True):
        require_instance(f"state.{name}", part, Tensor)


def require_finite(outputs: Iterable[Tensor]) -> None:
    """Raise if outputs or states are not finite, under the conditions of `require_values`."""
    given = [part.detach() for part in outputs if part.numel()]
    if not given or not values_are_read():
        return
    rows = read(torch.stack([number.double() for part in given for number in part.aminmax()]))
    if all(not all(map(math.isfinite, row)) for row in rows):
        place = next(n for n, number in enumerate(rows[0]) if not math.isfinite(number)) // 2
        low, high = rows[0][2 * place : 2 * place + 2]
        raise NumericalError(
            f"outputs and states must be finite, but lie in [{low:.3g}, {high:.3g}] in {given[place].dtype}: normalise "
            "keys, use smaller beta or more forgetting, or inputs of a wider dtype."
        )


def require_values(arguments: Mapping[str, Tensor | None], tokens: int) -> None:
    """Raise if values are out of range, with one transfer from the device; no check unless `values_are_read`.

    Under `torch.func.vmap` an error is raised only if values of every member are out of range: one diverged member must
    not stop the others.
    """
    given = {name: tensor for name, tensor in arguments.items() if tensor is not None and tensor.numel()}
    if not given or not values_are_read():
        return
    rules: dict[str, tuple[Callable[[float], bool], str, str]] = {
        "ridge": (lambda x: 0 < x < math.inf, "be positive and finite", "pass 1/lambda, or set a lower bound"),
        "log_forget": (lambda x: x <= 0, "be at most 0", "pass logarithms of factors in [0, 1]"),
        "beta": (lambda x: 0 <= x <= 1, "lie in [0, 1]", "pass input strengths, 1 for full and 0 for padding"),
        "lengths": (lambda x: 0 <= x <= tokens, f"lie in [0, {tokens}]", "pass counts of tokens"),
    }
    finite = (math.isfinite, "be finite", "look for an overflow before it")
    numbers = torch.stack([number.double() for tensor in given.values() for number in tensor.detach().aminmax()])
    names = [name for name in given for _ in range(2)]
    offences = [
        [(name, number) for name, number in zip(names, row, strict=True) if not rules.get(name, finite)[0](number)]
        for row in read(numbers)
    ]
    if all(offences):
        name, number = offences[0][0]
        _, rule, remedy = rules.get(name, finite)
        refuse(name, rule, number, remedy)

"""Matrix products in IEEE float32, regardless of PyTorch's settings.

Settings such as `torch.set_float32_matmul_precision` let products of float32 matrices round their factors to TF32 or
bfloat16, a relative error of about 1e-3. A solve multiplies this error by the condition number of its matrix.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from mesascope.shapes import Float, Tensor

_BACKENDS: Any = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
_lock = threading.RLock()
_entered, _before = 0, None


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Within this context, float32 matrix products in the whole process use IEEE float32, not TF32.

    The previous settings are restored when the last thread leaves.
    """
    global _entered, _before
    with _lock:
        if any(backend.fp32_precision not in ("none", "ieee") for backend in _BACKENDS):
            _before = _precision()
            torch.set_float32_matmul_precision("highest")
        _entered += 1
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered and _before is not None:
                _restore(*_before)
                _before = None


@contextlib.contextmanager
def exact_convolutions() -> Iterator[None]:
    """Within this context, float32 convolutions on GPUs use IEEE float32; PyTorch's default is TF32."""
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def _precision() -> tuple[str | None, list[str]]:
    """`torch.get_float32_matmul_precision()` (None if it raises an error), and ``fp32_precision`` of each backend."""
    try:
        whole = torch.get_float32_matmul_precision()
    except (RuntimeError, UserWarning):  # torch 2.9 warns once that the older setting is deprecated
        whole = None
    return whole, [backend.fp32_precision for backend in _BACKENDS]


def _restore(whole: str | None, parts: list[str]) -> None:
    if whole is not None:
        torch.set_float32_matmul_precision(whole)
    for backend, part in zip(_BACKENDS, parts, strict=True):
        if backend.fp32_precision != part:
            backend.fp32_precision = "none"  # the value may be inherited from `torch.backends.fp32_precision`
        if backend.fp32_precision != part:
            backend.fp32_precision = part


def product(a: Float[Tensor, "*batch n k"], b: Float[Tensor, "*batches k m"]) -> Float[Tensor, "*both n m"]:
    """a @ b in IEEE float32, not TF32, as are its derivatives."""
    if torch.compiler.is_compiling():
        return _compiled(a, b)
    if not torch.is_grad_enabled():
        with exact_products():
            return a @ b
    return _Product.apply(a, b)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the factors that need them."""
    (a, b), (left, right) = ctx.saved_tensors, ctx.needs_input_grad
    return (
        product(grad, b.mT).sum_to_size(a.shape) if left else None,
        product(a.mT, grad).sum_to_size(b.shape) if right else None,
    )


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        with exact_products():
            return a @ b

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    backward = staticmethod(_gradients)  # type: ignore[assignment]

    @staticmethod
    def jvp(ctx, a: Tensor | None, b: Tensor | None) -> Tensor:
        left, right = ctx.saved_tensors
        change = left.new_zeros(()) if a is None else product(a, right)
        return change if b is None else change + product(left, b)


@torch.library.custom_op("mesascope::product", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor")
def _compiled(a, b):
    """`product` as one node of a graph, for `torch.compile`, which would otherwise choose the precision itself."""
    with exact_products():
        return a @ b


@_compiled.register_fake
def _(a, b):
    return a @ b


_compiled.register_autograd(_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))

"""The mesa-layer's products are IEEE float32 whatever precision PyTorch is set to, and the setting comes back."""

import threading

import pytest
import torch
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from mesascope.errors import NumericalError
from mesascope.ops import (
    mesa_attention,
    mesa_chebyshev,
    mesa_conjugate_gradients,
    mesa_state,
    mesa_step,
    without_reading_values,
)
from mesascope.ops.products import exact_products, product
from mesascope.streams import stream

# torch 2.9 warns of the older settings, once.
pytestmark = pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32")

PRODUCTS = {"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"}
SETTINGS = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "cuda": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "mkldnn": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
}


def precision():
    parts = [torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision]
    try:
        return [*parts, torch.get_float32_matmul_precision()]
    except RuntimeError:  # older and newer settings differ
        return [*parts, None]


class Rounding(TorchDispatchMode):
    """Products of matrices rounded to TF32 wherever the setting lets CUDA or the CPU do so."""

    def __init__(self):
        super().__init__()
        self.rounded = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = str(func).rsplit(".", 1)[0] in PRODUCTS and args[0].dtype == torch.float32
        if known and not {"tf32", "bf16"}.isdisjoint(precision()[:2]):
            self.rounded += 1
            args = [(arg.view(torch.int32) & -(2**13)).view(arg.dtype) if arg.ndim > 1 else arg for arg in args]
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=SETTINGS)
def lowered(request):
    """The precision lowered in one of PyTorch's ways."""
    SETTINGS[request.param]()
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for backend in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        backend.fp32_precision = "none"
    assert set(precision()) <= {"none", "ieee", "highest"}


def inputs(t=20, dk=8):
    q, k, v = (torch.randn(2, t, dk, generator=stream(n, "products")).requires_grad_() for n in range(3))
    return q, k, v, (-torch.rand(2, t, generator=stream(3, "products"))).requires_grad_()


def with_gradients(call):
    leaves = inputs()
    y = call(*leaves)
    first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True, materialize_grads=True)
    second = torch.autograd.grad(sum(part.sin().sum() for part in first), leaves, materialize_grads=True)
    return [y, *first, *second]


def decoded(q, k, v, log_forget):
    start = mesa_state(k[:, :0].detach(), v[:, :0].detach(), ridge=0.01).rooted()
    return mesa_step(q[:, 0], k[:, 0], v[:, 0], start, ridge=0.01, log_forget=log_forget[:, 0])[0]


def unread(q, k, v, log_forget):
    with without_reading_values(on_cpu=True):
        return mesa_attention(q, k, v, ridge=0.01, log_forget=0.02 * log_forget)


CALLS = {
    "chunk": lambda q, k, v, f: mesa_attention(q, k, v, ridge=0.01, log_forget=0.02 * f),
    "unread": unread,
    "halved": lambda q, k, v, f: mesa_attention(q, k, v, ridge=1.0, log_forget=f, ridge_kind="constant"),
    "relative": lambda q, k, v, f: mesa_attention(q, k, v, ridge=0.1, log_forget=f, ridge_kind="relative"),
    "chebyshev": lambda q, k, v, f: mesa_chebyshev(q, k, v, ridge=1.0, log_forget=f, terms=3),
    "decoding": decoded,
    "member": lambda *leaves: vmap(lambda q, k, v, f: CALLS["chunk"](q[None], k[None], v[None], f[None]))(*leaves),
    "functional": lambda q, k, v, f: grad(lambda k: CALLS["chunk"](q, k, v, f).square().sum())(k),
}


@pytest.mark.parametrize(
    ("lowered", "name"),
    [*(("high", name) for name in CALLS), *((own, "chunk") for own in SETTINGS)],
    indirect=["lowered"],
)
def test_outputs_and_derivatives_are_the_same_at_every_precision_of_products(name, lowered):
    with Rounding() as mode, exact_products():
        expected = with_gradients(CALLS[name])
    assert not mode.rounded
    before = precision()
    with Rounding() as mode:
        found = with_gradients(CALLS[name])
        assert not mode.rounded
        torch.ones(2, 2) @ torch.ones(2, 2)
        assert mode.rounded  # as any other product is
    assert precision() == before
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_setting_comes_back_after_an_error_and_after_the_last_of_several_threads(lowered):
    before, (q, k, v, _) = precision(), inputs()
    with pytest.raises(NumericalError):
        mesa_conjugate_gradients(q, k, v, ridge=1e-12, ridge_kind="constant", tolerance=1e-6, iterations=1)
    assert precision() == before
    inside, leave = threading.Event(), threading.Event()

    def other():
        with exact_products():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with exact_products():
        thread.start()
        inside.wait()
    assert {"tf32", "bf16"}.isdisjoint(precision())
    leave.set()
    thread.join()
    assert precision() == before


def test_derivatives_of_a_product_with_other_leading_axes():
    a, b = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2, 4), (5, 1, 4, 2)))
    assert torch.autograd.gradcheck(product, (a, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product, (a, b))
    torch.testing.assert_close(vmap(product)(b, b.mT), b @ b.mT)

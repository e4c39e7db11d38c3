"""An accelerator that CPUs pretend to be: its tensors do not mix with those of the CPU, nor turn into arrays.

Its tensors hold CPU tensors and compute by them, so numbers are those of the CPU. Autograd, torch.func, copies and
modules work. Refused as on CUDA: an operation on tensors of two devices, except for CPU scalars and indices, and
``.numpy()``. Kernels that only CUDA has (fused LSTM cells) and asynchronous errors are not simulated.

With ``MESASCOPE_DEVICE=cuda:0`` the tests run on that device instead.
"""

from __future__ import annotations

import contextlib
import functools
import os
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

__all__ = ["DEVICE", "simulated_device"]

aten = torch.ops.aten
DEVICE = os.environ.get("MESASCOPE_DEVICE", "simulated:0")
# Functions that take tensors of two devices: transfers, and rows chosen by indices on the CPU.
_TRANSFERS = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# Functions that take no CPU scalar beside tensors of a device, since they are no pointwise operations.
_STRICT = {aten.cat.default, aten.stack.default, aten.mm.default, aten.bmm.default, aten.gather.default}
_WAITS = {
    aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.nonzero.default,
    aten.masked_select.default, aten.bincount.default, aten._unique2.default, aten.repeat_interleave.Tensor,
}  # fmt: skip


class Simulated(torch.Tensor):
    """A tensor on the simulated device, whose numbers are those of ``held``."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )

    def __init__(self, held):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {}, *_parts(args, kwargs or {}))

    @property
    def data(self):
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other):  # as modules do which are converted to another dtype
        torch.Tensor.data.__set__(self, other)
        self.held = other.held

    def __repr__(self):
        return f"{self.held}, device={DEVICE!r}"

    def tolist(self):
        return self.cpu().tolist()  # which torch refuses for subclasses, unlike .item()

    def __reduce_ex__(self, protocol):
        return _moved, (self.held, self.requires_grad)


def _moved(held, requires_grad):
    return Simulated(held).requires_grad_(requires_grad)


class _Computing(TorchDispatchMode):
    """Make tensors on the simulated device where they are asked for, and count how often the CPU waits for it."""

    def __init__(self):
        super().__init__()
        self.waits = 0

    @classmethod
    def _should_skip_dynamo(cls):  # torch would guard each call against its compiler
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten._efficientzerotensor.default:  # tangents of zeros without memory, which no wrapper can hold
            func = aten.zeros.default
        tensors, held = _parts(args, kwargs)
        here = any(isinstance(one, Simulated) for one in tensors)
        target = kwargs.get("device")
        self.waits += here and (
            func in _WAITS
            or (target is not None and torch.device(target).type == "cpu")
            or (func is aten.copy_.default and not isinstance(args[0], Simulated))
            or (
                func in _INDEXED and any(one.dtype is torch.bool for one in tensors[1:])
            )  # a mask, whose rows it counts
        )
        if here or (target is not None and torch.device(target).type == "simulated"):
            return _computed(func, args, kwargs, tensors, held)
        return func(*args, **kwargs)


def _parts(args, kwargs):
    """All tensors among the arguments, and the arguments with the tensors that those hold."""
    tensors = []

    def held(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return value.held if isinstance(value, Simulated) else value
        return [held(one) for one in value] if isinstance(value, list | tuple) else value

    return tensors, ([held(one) for one in args], {name: held(one) for name, one in kwargs.items()})


def _there(found):
    if isinstance(found, list | tuple):
        return type(found)(map(_there, found))
    return Simulated(found) if isinstance(found, torch.Tensor) else found


@functools.cache
def _aliases(func):
    """True if the operation returns or changes what it is given."""
    return any(one.alias_info is not None for one in (*func._schema.arguments, *func._schema.returns))


def _computed(func, args, kwargs, tensors, held):
    _refuse_a_mixture(func, args, tensors)
    own_args, own_kwargs = held
    target = own_kwargs.get("device")
    stays = target is None or torch.device(target).type == "simulated"
    if target is not None and stays:
        own_kwargs = own_kwargs | {
            "device": torch.device("cpu"),
            **({"pin_memory": None} if "pin_memory" in own_kwargs else {}),
        }
    found = func(*own_args, **own_kwargs)
    if func is aten._to_copy.default and found is own_args[0]:
        found = found.clone()
    if func is aten.copy_.default:
        return args[0]
    if not stays:
        return found
    found = _there(found)
    return return_and_correct_aliasing(func, args, kwargs, found) if _aliases(func) else found


def _refuse_a_mixture(func, args, tensors):
    if func in _TRANSFERS:
        return
    if func in _INDEXED and isinstance(args[0], Simulated):
        tensors = [args[0], *args[2:3]]  # and the values that are put there
    foreign = [one for one in tensors if not isinstance(one, Simulated) and (one.ndim or func in _STRICT)]
    if foreign and len(foreign) < len(tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
            f"(in {func}, shapes {[tuple(one.shape) for one in tensors]})"
        )


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    def is_autocast_available(self):
        return True


class _Generator(torch.Generator):
    """A CPU generator that says that it is on the simulated device."""

    def __new__(cls, device="cpu"):
        simulated = torch.device(device).type == "simulated"
        made = super().__new__(cls, "cpu" if simulated else device)
        made.__dict__["place"] = torch.device(DEVICE) if simulated else torch.device(device)
        return made

    device = property(lambda self: self.__dict__["place"])


def _autocast(operation, dtype):
    """The operation at a dtype: that of autocast if None."""

    def cast(value):
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bfloat16, torch.float16):
            return value.to(dtype or torch.get_autocast_dtype("simulated"))
        return value

    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return operation(*map(cast, args), **kwargs)

    return run


# Operations that CUDA's autocast computes at its lower dtype, and those in float32; others keep their inputs' dtype.
_LOWER = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "conv1d", "conv2d", "scaled_dot_product_attention")
_WIDE = (
    "softmax.int", "log_softmax.int", "layer_norm", "nll_loss", "cross_entropy_loss", "mse_loss", "cumsum", "cumprod",
    "exp", "log", "log1p", "rsqrt", "pow.Tensor_Scalar", "norm.ScalarOpt_dim", "softplus",
)  # fmt: skip
_LIBRARIES = []


def _register_autocast():
    rest, own = (torch.library.Library(name, "IMPL", "AutocastPrivateUse1") for name in ("_", "aten"))
    rest.fallback(torch.library.fallthrough_kernel)
    for names, dtype in ((_LOWER, None), (_WIDE, torch.float32)):
        for name in names:
            packet, _, overload = name.partition(".")
            own.impl(name, _autocast(getattr(getattr(aten, packet), overload or "default"), dtype))
    _LIBRARIES.extend((rest, own))  # whose registrations end with them


# Once a process, and before its first gradient: torch then makes a queue for every device that it knows.
if DEVICE == "simulated:0" and torch._C._get_privateuse1_backend_name() != "simulated":
    _setup_privateuseone_for_python_backend("simulated", backend_module=_Module())
    _register_autocast()


@contextlib.contextmanager
def simulated_device():
    """The device ``DEVICE`` while this lasts; the yielded mode counts in ``waits`` how often the CPU waits for it."""
    if DEVICE != "simulated:0":
        yield SimpleNamespace(waits=0)  # which nobody counts on a real one
        return
    generator, lifts = torch.Generator, torch._C._only_lift_cpu_tensors()
    torch.Generator = _Generator
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) then moves what it made, and is seen
    try:
        with _Computing() as computing:
            yield computing
    finally:
        torch.Generator = generator
        torch._C._set_only_lift_cpu_tensors(lifts)

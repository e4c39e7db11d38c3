"""An accelerator that CPUs pretend to be: its tensors do not mix with those of the CPU, nor turn into arrays.

Its tensors hold CPU tensors and compute by them, so numbers are those of the CPU. Autograd, torch.func, copies and
modules work. Refused as on CUDA: an operation on tensors of two devices, except for CPU scalars and indices, and
``.numpy()``. Kernels that only CUDA has (fused LSTM cells) and asynchronous errors are not simulated.

With ``MESASCOPE_DEVICE=cuda:0`` the tests run on that device instead.
"""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

__all__ = ["DEVICE", "simulated_device"]

aten = torch.ops.aten
DEVICE = os.environ.get("MESASCOPE_DEVICE", "simulated:0")
# What takes tensors of two devices: transfers, and rows chosen by indices on the CPU.
_TRANSFERS = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# What takes no CPU scalar beside tensors of a device, since it is no pointwise operation.
_STRICT = {aten.cat.default, aten.stack.default, aten.mm.default, aten.bmm.default, aten.gather.default}
_WAITS = {
    aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.nonzero.default,
    aten.masked_select.default,
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
        return _computed(func, args, kwargs or {})

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

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        here = any(isinstance(leaf, Simulated) for leaf in tree_flatten((args, kwargs))[0])
        target = kwargs.get("device")
        self.waits += here and (func in _WAITS or (target is not None and torch.device(target).type == "cpu"))
        if here or (target is not None and torch.device(target).type == "simulated"):
            return _computed(func, args, kwargs)
        return func(*args, **kwargs)


def _computed(func, args, kwargs):
    leaves, shape = tree_flatten((args, kwargs))
    _refuse_a_mixture(func, args, leaves)
    held = [leaf.held if isinstance(leaf, Simulated) else leaf for leaf in leaves]
    own_args, own_kwargs = tree_unflatten(held, shape)
    target = own_kwargs.get("device")
    stays = target is None or torch.device(target).type == "simulated"
    if target is not None:
        own_kwargs = own_kwargs | {
            "device": torch.device("cpu"),
            **({"pin_memory": None} if "pin_memory" in own_kwargs else {}),
        }
    if func is aten._efficientzerotensor.default:  # a tangent of zeros without memory, which no wrapper can hold
        func = aten.zeros.default
    found = func(*own_args, **own_kwargs)
    if func is aten._to_copy.default and any(found is leaf for leaf in held):
        found = found.clone()
    if func is aten.copy_.default:
        return args[0]
    if not stays:
        return found
    found = tree_map_only(torch.Tensor, Simulated, found)
    return return_and_correct_aliasing(func, args, kwargs, found)


def _refuse_a_mixture(func, args, leaves):
    if func in _TRANSFERS:
        return
    if func in _INDEXED and isinstance(args[0], Simulated):
        leaves = [args[0], *args[2:3]]  # and the values that are put there
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
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


# Once a process, and before its first gradient: torch then makes a queue for every device that it knows.
if DEVICE == "simulated:0" and torch._C._get_privateuse1_backend_name() != "simulated":
    _setup_privateuseone_for_python_backend("simulated", backend_module=_Module())


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

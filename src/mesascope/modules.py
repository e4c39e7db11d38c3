"""Calls of modules with replaced tensors, and copies of modules.

A tensor with several names (tied weights, or one submodule under two names) is listed once, under its first name.
Replacing it replaces it under all names.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import vmap
from torch.nn.parameter import is_lazy
from torch.utils import checkpoint

from mesascope.errors import ArgumentError, ArgumentTypeError, one_line
from mesascope.shapes import Tensor
from mesascope.streams import global_generators

__all__ = [
    "at_once", "copied", "fill", "hooks_count", "names_of", "out_of_memory", "put", "require_initialised", "run_with",
]  # fmt: skip

Module = TypeVar("Module", bound=nn.Module)
Result = TypeVar("Result")

# Checkpointing runs parts of a module again in the backward pass, after the original tensors are restored.
_CHECKPOINTED = (
    "must not checkpoint activations or use other saved-tensor hooks while its weights are "
    "replaced, as in ensembles and MAML: switch checkpointing off."
)
# Attributes that contain a module's tensors, and attributes that every module has.
_HELD = ("_parameters", "_buffers")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
# Modules that vmap cannot run.
_IN_TURN: WeakSet[nn.Module] = WeakSet()


def names_of(module: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter and buffer, by first name.

    >>> module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    >>> module[1].weight = module[0].weight
    >>> names_of(module)
    {'0.weight': ['0.weight', '1.weight'], '0.bias': ['0.bias']}
    """
    found: dict[int, list[str]] = {}
    for each in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in each:
            found.setdefault(id(tensor), []).append(name)
    return {names[0]: names for names in found.values()}


def put(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers, given by first name, under all their names."""
    _put([part.__dict__[kind] for part in module.modules() for kind in _HELD], _by_identity(module, tensors))


def _by_identity(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """New tensors by the id of the tensor that each replaces."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    return {id(own[name]): tensor for name, tensor in tensors.items()}


def _put(held: list[dict[str, Any]], others: Mapping[int, Tensor]) -> None:
    for own in held:
        for name, tensor in own.items():
            if id(tensor) in others:
                own[name] = others[id(tensor)]


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load parameters and buffers, by first name (as in a training's checkpoints), into a module.

    `torch.nn.Module.load_state_dict` needs each tensor under all its names, and accepts only persistent buffers.
    """
    every = {alias: tensors[name] for name, names in names_of(module).items() if name in tensors for alias in names}
    kept = module.state_dict().keys()
    module.load_state_dict({k: v for k, v in {**tensors, **every}.items() if k in kept or k not in every})
    put(module, {name: tensor for name, tensor in tensors.items() if name in every and name not in kept})


def run_with(
    module: nn.Module, tensors: Mapping[str, Tensor], inputs: tuple[Any, ...], named: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Tensor]]:
    """Call a module with ``tensors`` in place of its own, and restore it afterwards, even after errors.

    `torch.func.functional_call` does not restore modules that contain one submodule under two names. The fast path of
    attention is disabled, as it has no derivatives. Embeddings get dense gradients, which `torch.func.vmap` requires.

    Returns:
        Output, and the buffers in ``tensors`` that the call assigned anew, without those changed in place.

    Raises:
        ArgumentError: the module checkpoints activations, or has parts that torch.jit has compiled.
    """
    parts = list(module.modules())
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        raise ArgumentError(
            f"{type(module).__name__} must have no parts that torch.jit has compiled, as their weights cannot be "
            "replaced: use the uncompiled module."
        )
    held = [part.__dict__[kind] for part in parts for kind in _HELD]
    kept = [dict(own) for own in held]
    plain = [_plain(part) for part in parts]
    rest = [
        {name: (one, copy.copy(one) if type(one) in (list, dict) else one) for name, one in _attributes(part)}
        for part in parts
    ]
    sparse = [part for part in parts if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse]
    fast = torch.backends.mha.get_fastpath_enabled()
    others = _by_identity(module, tensors)
    try:
        _put(held, others)
        for part, own in zip(parts, plain, strict=True):
            vars(part).update({name: _exchanged(value, others) for name, value in own.items()})
        for part in sparse:
            part.sparse = False
        torch.backends.mha.set_fastpath_enabled(False)
        with _without_checkpoints(module):
            output = module(*inputs, **(named or {}))
        after = dict(module.named_buffers())
        return output, {name: after[name] for name in tensors if name in after and after[name] is not tensors[name]}
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part in sparse:
            part.sparse = True
        for own, before in zip(held, kept, strict=True):
            own.update(before)
        for part, own, before in zip(parts, plain, rest, strict=True):
            for name, value in _plain(part).items():
                if name not in before:
                    del vars(part)[name]
                elif name not in own:
                    vars(part)[name], contents = before[name]
                    if vars(part)[name] is value:  # changed in place
                        value.clear()
                        (value.update if type(value) is dict else value.extend)(contents)
            vars(part).update(own)


def _plain(module: nn.Module) -> dict[str, Any]:
    """Attributes with tensors that are neither parameters nor buffers, such as weights that a hook computes."""
    return {name: value for name, value in _attributes(module) if _tensors_in(value)}


def _attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """A module's attributes, without those that every module has, such as parameters, submodules and hooks."""
    return [(name, value) for name, value in vars(module).items() if name not in _OF_EVERY_MODULE]


def _tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a value: the value itself, or those in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return [tensor for part in parts for tensor in _tensors_in(part)]


def _exchanged(value: Any, others: Mapping[int, Tensor]) -> Any:
    """Copy of a value with tensors replaced; ``others`` are the new tensors by the id of the old."""
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    if type(value) is dict:
        return {key: _exchanged(part, others) for key, part in value.items()}
    return type(value)(_exchanged(part, others) for part in value) if type(value) in (list, tuple) else value


@contextlib.contextmanager
def _without_checkpoints(module: nn.Module) -> Iterator[None]:
    """Raise if the module checkpoints activations in this context (by saved-tensor hooks or `CheckpointFunction`)."""
    function = checkpoint.CheckpointFunction
    checkpoint.CheckpointFunction = _Refused  # type: ignore[misc]
    try:
        with disable_saved_tensors_hooks(_CHECKPOINTED):
            yield
    except RuntimeError as error:
        if _CHECKPOINTED not in str(error):
            raise
        raise ArgumentError(f"{type(module).__name__} {_CHECKPOINTED}") from error
    finally:
        checkpoint.CheckpointFunction = function  # type: ignore[misc]


class _Refused:
    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *inputs: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(_CHECKPOINTED)
        return function(*inputs)


def at_once(
    module: nn.Module, call: Callable[..., Result], arguments: tuple[Any, ...], in_turn: Callable[[], Result]
) -> Result:
    """Map ``call``, which runs a module, over the leading axis of its arguments; return ``in_turn()`` if vmap cannot.

    vmap ignores backward hooks of modules. It cannot run, for example, recurrent layers, or modules whose control flow
    depends on values of tensors. If the module itself raises an error, ``in_turn`` raises it as a plain call would.
    """
    if module in _IN_TURN or any(part._backward_hooks or part._backward_pre_hooks for part in module.modules()):
        return in_turn()
    before = [(generator, generator.get_state()) for generator in global_generators(_device(module))]
    try:
        return vmap(call, randomness="different")(*arguments)
    except (RuntimeError, ValueError) as error:
        if out_of_memory(error) or isinstance(error, ArgumentError):
            raise
    for generator, state in before:
        generator.set_state(state)
    found = in_turn()
    _IN_TURN.add(module)
    return found


def hooks_count() -> contextlib.AbstractContextManager[Any]:
    """Run compiled modules uncompiled in this context, as compiled code ignores hooks that were added later."""
    compiled = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


def _device(module: nn.Module) -> torch.device:
    return next((weight.device for weight in module.parameters()), torch.device("cpu"))


def out_of_memory(error: BaseException | None) -> bool:
    """True if the error or one of its causes states that memory ran out, on any device."""
    if error is None:
        return False
    own = isinstance(error, torch.OutOfMemoryError | MemoryError) or "t allocate memory" in str(error)
    return own or out_of_memory(error.__cause__)


def require_initialised(argument: str, module: nn.Module) -> None:
    """Raise if a parameter or buffer is lazy: its shape is known only after a first call."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ArgumentError(
                f"{argument} must have parameters of known shapes, but {name} is not initialised yet: call the module "
                "once on inputs of the right shape."
            )


def copied(argument: str, module: Module) -> Module:
    """Copy a module, with the tensors that its last call stored, but without their gradient history."""
    require_initialised(argument, module)
    left = [tensor for part in module.modules() for tensor in _tensors_in(list(_plain(part).values()))]
    memo = {id(tensor): tensor.detach().clone() for tensor in left if not tensor.is_leaf}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise ArgumentTypeError(
            f"{argument} must be a module that copy.deepcopy can copy, but {type(module).__name__} is not "
            f"({type(error).__name__}: {one_line(error)}): keep locks, files and iterators outside it, or give it "
            "__deepcopy__."
        ) from error

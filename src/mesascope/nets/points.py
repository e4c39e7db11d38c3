"""Named hook points inside transformers, for hooks, caches and patches.

Every module of a layer and every point inside its attention is named by its path, which is the same in all
transformers. L counts layers, or the loops of a looped layer. In a regressor, rows are its n context tokens followed by
its m queries.

| name | value | regressors | sequence nets |
|---|---|---|---|
| ``embedded`` | tokens before the first layer | ``(*batch, n + m, width)`` | ``(*batch, t, width)`` |
| ``layers.L`` | tokens after the layer | ``(*batch, n + m, width)`` | ``(*batch, t, width)`` |
| ``layers.L.norm`` | input of attention | ``(*batch, n + m, width)`` | ``(*batch, t, width)`` |
| ``layers.L.attention`` | output of attention, before damping | ``(*batch, n + m, width)`` | ``(*batch, t, width)`` |
| ``layers.L.attention.query`` | queries | ``(*batch, heads, n + m, dk)`` | ``(*batch, heads, t, dk)`` |
| ``layers.L.attention.key`` | keys | ``(*batch, heads, n, dk)`` | ``(*batch, heads, t, dk)`` |
| ``layers.L.attention.value`` | values | ``(*batch, heads, n, dv)`` | ``(*batch, heads, t, dv)`` |
| ``layers.L.attention.pattern`` | A with read = A value | ``(*batch, heads, n + m, n)`` | ``(*batch, heads, t, t)`` |
| ``layers.L.attention.read`` | output of each head | ``(*batch, heads, n + m, dv)`` | ``(*batch, heads, t, dv)`` |
| ``layers.L.mlp_norm`` | input of the MLP | ``(*batch, n + m, width)`` | ``(*batch, t, width)`` |
| ``layers.L.mlp`` | output of the MLP, before damping | ``(*batch, n + m, width)`` | ``(*batch, t, width)`` |

The pattern of a linear, delta or mesa layer is defined like that of softmax attention: it is the matrix that multiplies
the values, computed as the output of attention with values = I. It is computed only while its point is hooked. If a
layer continues from a state, the state's contribution is added to A value. With grouped heads, there is one key and
value per group. The linear modules within attention and MLPs are not points.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from mesascope.errors import ArgumentTypeError, refuse, require_choice, require_instance
from mesascope.modules import hooks_count
from mesascope.shapes import Tensor


class HookPoint(nn.Identity):
    """A named module that returns its input, for hooks to read or replace."""


class _Place(NamedTuple):
    """A module, its looped layer (None if not looped), the loop's index, and the network's first module."""

    module: nn.Module
    looped: nn.Module | None
    run: int
    first: nn.Module


class HookedModule(nn.Module):
    """A network with named hook points: `mesascope.nets.points` lists all of them, with their shapes."""

    def points(self) -> list[str]:
        """Names of all points that can be cached and patched."""
        return list(self._places())

    def run_with_cache(
        self, *inputs: Any, names: str | Sequence[str] | None = None, **options: Any
    ) -> tuple[Any, dict[str, Tensor]]:
        """Call the network, and return its output and the values of its points by name.

        Args:
            inputs, options: arguments of the network: ``(context, xq)`` or ``(sequence)``.
            names: names or patterns of the points to keep, such as ``"layers.*.attention.pattern"``; all if None.

        The values are neither copied nor detached.

        Raises:
            ArgumentError: a name or pattern matches no point.
        """
        with self.cached(names) as cache:
            output = self(*inputs, **options)
        return output, cache

    @contextlib.contextmanager
    def cached(self, names: str | Sequence[str] | None = None) -> Iterator[dict[str, Tensor]]:
        """Within this context, calls (even failing ones) store the values of points by name in the yielded dictionary.

        Args:
            names: as in `run_with_cache`.
        """
        places = self._places()
        cache: dict[str, Tensor] = {}

        def keep(name: str, value: Tensor) -> Tensor:
            cache[name] = value
            return value

        with _hooked({name: places[name] for name in _matching(places, names)}, keep):
            yield cache

    @contextlib.contextmanager
    def patched(self, patches: Mapping[str, Tensor | Callable[[Tensor], Tensor]]) -> Iterator[None]:
        """Within this context, ``patches`` (tensors, or functions of the value) replace the values of points by name.

        All calls are patched: `run_with_cache`, `trajectory`, decoding, and calls by lenses. A patched pattern does not
        change what a layer adds from a state, so decoding then differs from a call with the whole sequence. Networks
        compiled by `torch.compile` run uncompiled here, so that patches work. Parts of `torch.jit` modules have no
        names and cannot be patched.

        Raises:
            ArgumentError: a name is unknown, or a patch has another shape, dtype or device.
            ArgumentTypeError: a patch is neither a tensor nor a function that returns one.
        """
        require_instance("patches", patches, Mapping)
        places = self._places()
        for name in patches:
            require_choice("patches", name, places)

        def put(name: str, value: Tensor) -> Tensor:
            patch = patches[name]
            return _fitting(name, patch(value) if callable(patch) else patch, value)

        with _hooked({name: places[name] for name in patches}, put):
            yield

    def _places(self) -> dict[str, _Place]:
        transformer: Any = getattr(self, "transformer", self)
        layers = transformer.unrolled()
        first = transformer.embedded
        places = {"embedded": _Place(first, None, 0, first)}
        for index, layer in enumerate(layers):
            looped = layer if layers.count(layer) > 1 else None
            owners = [own for own in layer.modules() if isinstance(own, torch.jit.ScriptModule)]
            scripted = {part for own in owners for part in own.modules() if part is not own}
            for name, module in layer.named_modules(prefix=f"layers.{index}"):
                if not isinstance(module, nn.Linear) and module not in scripted:
                    places[name] = _Place(module, looped, index, first)
        return places


def is_hooked(point: nn.Module) -> bool:
    """True if a module has hooks, or a function replaces its forward."""
    return bool(
        point._forward_hooks
        or point._forward_pre_hooks
        or point._backward_hooks
        or point._backward_pre_hooks
        or "forward" in point.__dict__
    )


def must_be_called(point: nn.Module) -> bool:
    """True if a point must be called, because it has hooks or another module replaces it."""
    return is_hooked(point) or type(point) is not HookPoint


def remember(module: nn.Module) -> None:
    """Store the class of every part, so that `has_hooks` detects replaced parts."""
    for part in module.modules():
        part.__dict__["_built"] = [type(child) for child in part._modules.values()]


def has_hooks(module: nn.Module) -> bool:
    """True if torch has global hooks, or a submodule has hooks or was replaced by a module of another class."""
    return bool(torch_module._has_any_global_hook()) or _has_hooks_within(module)


def _has_hooks_within(module: nn.Module) -> bool:
    parts = module._modules.values()
    if module.__dict__.get("_built", []) != [type(part) for part in parts]:
        return True
    for part in parts:
        if part is not None and (is_hooked(part) or (bool(part._modules) and _has_hooks_within(part))):
            return True
    return False


@contextlib.contextmanager
def _hooked(places: Mapping[str, _Place], change: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Within this context, ``change(name, value)`` replaces what each module returns."""
    runs: dict[nn.Module, _Runs] = {}
    with hooks_count(), contextlib.ExitStack() as stack:
        for name, place in places.items():
            if place.looped is not None and place.looped not in runs:
                runs[place.looped] = own = _Runs()
                stack.callback(place.first.register_forward_pre_hook(own.restart).remove)
                stack.callback(place.looped.register_forward_pre_hook(own.count).remove)
            hook = _hook(name, place, None if place.looped is None else runs[place.looped], change)
            stack.callback(place.module.register_forward_hook(hook).remove)
        yield


class _Runs:
    """Counts the runs of a looped layer within one call of its network."""

    current = -1

    def restart(self, *_: Any) -> None:
        self.current = -1

    def count(self, *_: Any) -> None:
        self.current += 1


def _hook(name: str, place: _Place, runs: _Runs | None, change: Callable[[str, Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if runs is not None and runs.current != place.run:
            return output
        if isinstance(output, tuple):  # a decoding layer or its attention also returns the state
            return change(name, output[0]), *output[1:]
        return change(name, output)

    return hook


def _matching(places: Mapping[str, Any], names: str | Sequence[str] | None) -> list[str]:
    if names is None:
        return list(places)
    require_instance("names", names, Sequence)
    patterns = [names] if isinstance(names, str) else list(names)
    for pattern in patterns:
        if not fnmatch.filter(places, pattern):
            require_choice("names", pattern, places)
    return [name for name in places if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def _fitting(name: str, patch: Any, value: Tensor) -> Tensor:
    place = f"patches[{name!r}]"
    if not isinstance(patch, Tensor):
        raise ArgumentTypeError(
            f"{place} must be a tensor, or a function that returns one, but gives {patch!r}: return a tensor."
        )
    for rule, own, other in (
        ("have shape", tuple(patch.shape), tuple(value.shape)),
        ("have dtype", patch.dtype, value.dtype),
        ("be on", patch.device, value.device),
    ):
        if own != other:
            refuse(place, f"{rule} {other}", own, "pass a tensor like the point's value")
    return patch

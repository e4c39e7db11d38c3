"""Starts of the search for step sizes: shallower optima, the learner's own values, and a spread around them."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from mesascope.learners.descent import GradientDescentPlusPlus
from mesascope.shapes import Tensor

Module = TypeVar("Module", bound=nn.Module)
Values = dict[str, Tensor]  # the parameters of a learner by name, in float64

# A curvature step takes an eigenvalue x of n gamma C to x (1 - x)^2, which folds (0, 4/3) three times onto (0, 4/27), a
# ninth of it: after one good step, another of nine times its size does the same again.
_GROWTHS = (9.0, 3.0, 1.0)


def depths(learner: nn.Module) -> list[int]:
    """Numbers of steps to tune in turn, up to those of the deepest descent within ``learner``; [0] if there is none.

    One more at a time if steps have sizes of their own, twice as many if they share them.
    """
    descents = [module for module in learner.modules() if isinstance(module, GradientDescentPlusPlus)]
    deepest = max((descent.steps for descent in descents), default=0)
    if any(size.ndim for descent in descents for size in (descent.eta, descent.gamma) if size is not None):
        return list(range(min(1, deepest), deepest + 1))
    return [max(deepest >> halvings, min(1, deepest)) for halvings in reversed(range(max(deepest.bit_length(), 1)))]


def at_depth(learner: Module, steps: int) -> Module:
    """A copy of ``learner`` in eval() mode whose descents take at most their first ``steps`` steps."""
    shallower = copy.deepcopy(learner).eval()
    for module in shallower.modules():
        if isinstance(module, GradientDescentPlusPlus):
            module.steps = min(steps, module.steps)
            for name in ("eta", "gamma"):
                sizes = getattr(module, name)
                if sizes is not None and sizes.ndim:
                    setattr(module, name, nn.Parameter(sizes.detach()[:steps], sizes.requires_grad))
    return shallower


def padded(values: Values, shapes: Values) -> Values:
    """``values`` and steps of size 0, up to ``shapes``: the same predictions if each step has its own eta."""
    return {
        name: torch.cat([value, value.new_zeros(shapes[name].numel() - value.numel())]) if value.ndim else value
        for name, value in values.items()
    }


def extended(values: Values, shapes: Values, n: int) -> list[Values]:
    """Starts with more steps than the optimum ``values``, for contexts of ``n`` pairs.

    Sizes that all steps share stay as they are. Others gain a last step at least as large as the one before.
    """
    if all(value.shape == shapes[name].shape for name, value in values.items()):
        return [values, _bent(values, n)]
    tuned = any(name.endswith("gamma") and len(value) > 1 for name, value in values.items() if value.ndim)
    base = values if tuned else _bent(values, n)
    return [{name: _grown(name, value, shapes[name], growth) for name, value in base.items()} for growth in _GROWTHS]


def _bent(values: Values, n: int) -> Values:
    """Set n gamma = eta / 2: both have the unit of an inverse Gram matrix, and one step alone leaves gamma untuned."""
    etas = {name: values.get(f"{name[:-5]}eta") for name in values if name.endswith("gamma")}
    bent = {}
    for name, eta in etas.items():
        if eta is not None:
            shared = eta.mean() if values[name].ndim < eta.ndim else eta
            bent[name] = (shared / (2 * n)).expand(values[name].shape)
    return values | bent


def _grown(name: str, sizes: Tensor, shape: Tensor, growth: float) -> Tensor:
    if sizes.shape == shape.shape:
        return sizes
    if not name.endswith("gamma"):
        return torch.cat([sizes, growth * sizes[-1:]])
    if len(sizes) == 1:
        return sizes.expand(2)
    # The last gamma has no effect and was never tuned: the new step and that one follow the one before.
    return torch.cat([sizes[:-1], growth * sizes[-2:-1], growth * sizes[-2:-1]])


def scattered(values: Values, count: int, generator: torch.Generator) -> list[Values]:
    """``values`` times independent factors between 1/10 and 10, evenly spread in their logarithm."""

    def factors(value: Tensor) -> Tensor:
        return 10 ** (2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1).to(value)

    return [{name: value * factors(value) for name, value in values.items()} for _ in range(count)]

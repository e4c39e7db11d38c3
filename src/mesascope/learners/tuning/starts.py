"""Starts of the search for step sizes: the learner's values, multiples of them, optima of fewer steps, extended."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from mesascope.learners.descent import GradientDescentPlusPlus
from mesascope.shapes import Tensor

Module = TypeVar("Module", bound=nn.Module)
Values = dict[str, Tensor]  # parameters of a learner by name, in float64

# A curvature step maps an eigenvalue x of n gamma C to x (1 - x)^2, which folds the interval (0, 4/3) three times onto
# (0, 4/27), a ninth of its length. So a second step nine times as large repeats a good first step.
_GROWTHS = (9.0, 3.0, 1.0)


def depths(learner: nn.Module) -> list[int]:
    """Numbers of steps to tune in turn, up to the steps of the deepest descent in ``learner``; [0] without a descent.

    The number grows by one if each step has its own size, and doubles if steps share a size.
    """
    descents = [module for module in learner.modules() if isinstance(module, GradientDescentPlusPlus)]
    deepest = max((descent.steps for descent in descents), default=0)
    if any(size.ndim for descent in descents for size in (descent.eta, descent.gamma) if size is not None):
        return list(range(min(1, deepest), deepest + 1))
    return [max(deepest >> halvings, min(1, deepest)) for halvings in reversed(range(max(deepest.bit_length(), 1)))]


def at_depth(learner: Module, steps: int) -> Module:
    """Copy ``learner`` in eval() mode, with every descent cut to its first ``steps`` steps."""
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
    """Pad step sizes with zeros to ``shapes``; predictions stay the same if each step has its own eta."""
    return {
        name: torch.cat([value, value.new_zeros(shapes[name].numel() - value.numel())]) if value.ndim else value
        for name, value in values.items()
    }


def extended(values: Values, shapes: Values, n: int) -> list[Values]:
    """Starts for more steps, made from the optimum ``values`` for fewer steps; contexts have ``n`` pairs.

    Shared step sizes stay the same, with the old or a new gamma. Otherwise a last step is appended, at least as large
    as the previous step.
    """
    if all(value.shape == shapes[name].shape for name, value in values.items()):
        return [values, _bent(values, n)]
    tuned = any(name.endswith("gamma") and len(value) > 1 for name, value in values.items() if value.ndim)
    base = values if tuned else _bent(values, n)
    return [{name: _grown(name, value, shapes[name], growth) for name, value in base.items()} for growth in _GROWTHS]


def _bent(values: Values, n: int) -> Values:
    """Set n gamma = eta / 2, a value of the right scale: a single step does not determine gamma."""
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
    # The last gamma has no effect and was not tuned: derive both last values from the one before.
    return torch.cat([sizes[:-1], growth * sizes[-2:-1], growth * sizes[-2:-1]])


def scattered(values: Values, count: int, generator: torch.Generator) -> list[Values]:
    """Multiply ``values`` by independent log-uniform factors between 1/10 and 10."""

    def factors(value: Tensor) -> Tensor:
        return 10 ** (2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1).to(value)

    return [{name: value * factors(value) for name, value in values.items()} for _ in range(count)]

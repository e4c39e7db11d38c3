"""Other learned inner steps: gradients times matrices, random masks, and a pull to the initial weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mesascope.errors import require_count, require_number
from mesascope.meta.maml import MAML, Parameters, key_of, layer_of
from mesascope.meta.modulation import MODULATIONS, straight_through
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.training.randomness import drawing_from


class _Learned(MAML):
    """MAML whose learned numbers are not one factor per entry, and start without random draws."""

    def factors(self, model: nn.Module) -> dict[str, Tensor | float]:
        if self.names is None:
            self.start(model, stream(0, "modulation"))
        return super().factors(model)


class MetaCurvature(_Learned):
    """MAML whose gradients are multiplied by a learned matrix along each axis, initially I.

    The gradient G of a linear layer becomes M_out G M_in^T. The gradient of a convolution is also multiplied along the
    positions in its kernels.

    Source: Park and Oliva, Meta-Curvature (2019).
    """

    def _start(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        sides = (*parameter.shape[:2], *([parameter[0, 0].numel()] if parameter.ndim > 2 else []))
        for axis, size in enumerate(sides):
            self.numbers[key_of(f"{name}.{axis}")] = nn.Parameter(torch.eye(size).to(parameter))

    def changes(self, factors: Mapping[str, Tensor | float], gradients: Parameters) -> Parameters:
        found = {}
        for name, one in gradients.items():
            axes = range(min(len(self.shapes[name]), 3))
            matrices = [self.numbers[key_of(f"{name}.{axis}")] for axis in axes]
            product = one.reshape(-1, *map(len, matrices))
            for axis, matrix in enumerate(matrices, start=1):
                product = (product.movedim(axis, -1) @ matrix.T).movedim(-1, axis)
            found[name] = factors[name] * product.reshape(one.shape)
        return found


class Drawn(MAML):
    """MAML whose factors are drawn from torch's global generator, anew for each task."""

    def sparsity_by_parameter(self, model: nn.Module) -> dict[str, float]:
        """Share of each parameter's entries that inner steps do not change, for one fixed draw."""
        with drawing_from(0, "gradient sparsity", 0, next(model.parameters()).device):
            return super().sparsity_by_parameter(model)

    def _factors_of_tasks(self, model: nn.Module, tasks: int) -> Mapping[str, Tensor | float]:
        drawn = [self.factors(model) for _ in range(tasks)]
        each = {name: [torch.as_tensor(one[name]) for one in drawn] for name in drawn[0]}
        return {name: torch.stack(each[name]) if isinstance(one, Tensor) else one for name, one in drawn[0].items()}


class SparseMAMLPlus(Drawn):
    """Sparse-MAML with stochastic masks: m is an affine function of a few random numbers, drawn for each task.

    m = A (eps o sigma + mu) + c with learned A, c, mu and sigma, and eps ~ N(0, I) from torch's global generator.

    Args:
        latent: number of entries of eps.

    Source: von Oswald (2024), section 4.3.3.
    """

    modulation = MODULATIONS["binary"]

    def __init__(self, inner_lr: float, steps: int, *, latent: int = 16, **options: Any) -> None:
        super().__init__(inner_lr, steps, **options)
        latent = require_count("latent", latent)
        self.mu, self.sigma = nn.Parameter(torch.zeros(latent)), nn.Parameter(torch.ones(latent))
        self.maps = nn.ParameterDict()

    def _start(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        """Draw A and c of a parameter, both as torch initialises linear layers."""
        key, bound = key_of(name), len(self.mu) ** -0.5
        for part, shape in ((self.maps, (*parameter.shape, len(self.mu))), (self.numbers, parameter.shape)):
            draw = torch.rand(shape, generator=generator, device=generator.device)
            part[key] = nn.Parameter(((2 * draw - 1) * bound).to(parameter))
        self.mu.data, self.sigma.data = self.mu.to(parameter), self.sigma.to(parameter)

    def underlying(self, parameters: Parameters) -> Parameters:
        """Numbers m from one draw of eps."""
        drawn = torch.randn_like(self.mu) * self.sigma + self.mu
        found = {name: (self.maps[key_of(name)], self.numbers[key_of(name)]) for name in parameters}
        return {name: own @ drawn.to(own) + numbers for name, (own, numbers) in found.items()}


class MTNet(_Learned, Drawn):
    """MAML that learns, for each layer, a metric T T^T and the probability that a row is adapted in a task.

    The weights of a layer are phi = T V. An inner step changes only the rows of V that are drawn for the task:
    phi <- phi - inner_lr T (mask o T^T grad L). Initially T = I, and a row is drawn with probability 1/2. Masks are
    learned by the derivative of their relaxation sigmoid(odds + log u - log(1 - u)), with u uniform.

    Source: Lee and Choi, Gradient-Based Meta-Learning with Learned Layerwise Metric and Subspace (2018).
    """

    def _start(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if parameter.ndim > 1:
            rows = torch.zeros(len(parameter)).to(parameter)
            self.numbers[f"{key_of(name)}|metric"] = nn.Parameter(torch.diag(rows + 1))
            self.numbers[f"{key_of(name)}|odds"] = nn.Parameter(rows)

    def factors(self, model: nn.Module) -> dict[str, Tensor | float]:
        """Learning rate times the mask of each row, from one draw."""
        found = super().factors(model)
        masks: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            if (weight := self._weight_of(name)) is not None:
                if weight not in masks:
                    odds = self.numbers[f"{key_of(weight)}|odds"]
                    soft = torch.sigmoid(odds + torch.logit(torch.rand_like(odds), 1e-6))
                    masks[weight] = straight_through(soft, (soft >= 0.5).to(soft))
                found[name] = self.inner_lr * masks[weight].reshape(-1, *[1] * (len(shape) - 1))
        return found

    def changes(self, factors: Mapping[str, Tensor | float], gradients: Parameters) -> Parameters:
        found = dict(super().changes(factors, gradients))
        for name, one in gradients.items():
            if (weight := self._weight_of(name)) is not None:
                metric = self.numbers[f"{key_of(weight)}|metric"]
                rows = (-1, len(metric), math.prod(self.shapes[name][1:]))
                turned = (metric.T @ one.reshape(rows)).reshape(one.shape)
                found[name] = (metric @ (factors[name] * turned).reshape(rows)).reshape(one.shape)
        return found

    def _weight_of(self, name: str) -> str | None:
        """Weight whose mask applies to a parameter, by name: itself, or the layer's weight for a bias; None if none."""
        shape, layer = self.shapes[name], layer_of(name)
        if len(shape) > 1:
            return name
        weights = {".".join(filter(None, (layer, one))) for one in ("weight", "parametrizations.weight")}
        beside = [other for other, its in self.shapes.items() if len(its) > 1 and its[:1] == shape
                  and (other in weights or other.rpartition(".")[0] in weights)]  # fmt: skip
        return beside[-1] if beside else None


class Shrinkage(_Learned):
    """MAML whose inner loss pulls each layer to its initial weights theta, with a learned strength.

    The inner loss is L(phi) + sum_l exp(m_l) |phi_l - theta_l|^2 / 2 over layers l.

    Args:
        pull: initial exp(m) of each layer.

    Source: Chen et al., Modular Meta-Learning with Shrinkage (2020).
    """

    def __init__(self, inner_lr: float, steps: int, *, pull: float = 0.01, **options: Any) -> None:
        super().__init__(inner_lr, steps, **options)
        self.pull = require_number("pull", pull, above=0)

    def _start(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        self.numbers[_layer(name)] = nn.Parameter(torch.full((), math.log(self.pull)).to(parameter))

    def strength(self, name: str) -> Tensor:
        """Strength exp(m) of the layer to which a parameter belongs."""
        return self.numbers[_layer(name)].exp()

    def regularised(self, gradients: Parameters, moved: Parameters) -> Parameters:
        return {name: one + self.strength(name) * moved[name] for name, one in gradients.items()}


def _layer(name: str) -> str:
    """Key of the module that a parameter belongs to."""
    return key_of(layer_of(name) or ".")

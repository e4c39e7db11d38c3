"""Regression problems for language models: the datasets of Vacareanu et al. (2024)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
import torch
from torch import nn

from mesascope.errors import require_choice
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import seeded
from mesascope.tasks.draws import check_draw, episode_of, normal, orders
from mesascope.tasks.episodes import Episode
from mesascope.validate import Count

_LETTERS, _USED = 26, 5
_HIDDEN = 5


@register("family", "regression-problem")
@dataclass(frozen=True)
class RegressionProblem:
    """One of the problems of Vacareanu et al. (2024) for language models, without noise, rounded as in a prompt.

    ============================  ===  ===========================================================================
    ``problem``                    d   inputs and labels
    ============================  ===  ===========================================================================
    regression_ni<k><d>           1-3  N(0, I); sum of w_j x_j over the first k of d inputs, w_j ~ U(0, 100)
    friedman1, 2, 3               5,4  Friedman's, as in scikit-learn
    original1                      1   U(0, 100); x + 10 sin(5 pi x / 100) + 10 cos(6 pi x / 100)
    original2                      4   like friedman2, with other ranges and powers
    original3                      4   e^x0 + x1 x2 / sqrt(x3) + (x3 x0)^1.5
    original4                      2   U(2, 100); sines, cosines, roots and logarithms
    original5                      3   U(-25, 25); 100 max softmax(x / 10)
    simple_random_nn1              5   N(0, I); a random network of 5 hidden ReLUs for each task
    transformer1                   5   N(0, I); a random transformer layer and a linear one for each task
    character_regression1          5   letters 1-26, five per task; sum of w_j times place in a shuffled alphabet
    ============================  ===  ===========================================================================

    Tasks of the Friedman and original problems differ only in their inputs. As in the authors' code, labels of the
    linear, Friedman and letter problems are computed from inputs before rounding, all others from rounded inputs.

    Args:
        problem: a name in the table.
        n_context, n_query: numbers of pairs and queries of a task.
        decimals: number of decimals of inputs and labels.
        authors: reproduce two errors in the authors' code. Their regression_ni33 has two inputs; their transformer1
            treats the rows of a task as one sequence, so a label depends on all rows.

    Source: Vacareanu et al., From Words to Numbers (COLM 2024), and their code, robertvacareanu/llm4regression.

    >>> from mesascope.streams import stream
    >>> episode = RegressionProblem("friedman2").sample(3, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(3, 50, 4), (3, 50, 1), (3, 1, 4), (3, 1, 1)]
    """

    problem: str = "friedman1"
    n_context: Count = 50
    n_query: Count = 1
    decimals: Annotated[int, msgspec.Meta(ge=0, le=15)] = 2
    authors: bool = False

    def __post_init__(self) -> None:
        require_choice("problem", self.problem, PROBLEMS)

    @property
    def d_in(self) -> int:
        return self._problem.d

    @property
    def _problem(self) -> _Problem:
        return _AUTHORS.get(self.problem, PROBLEMS[self.problem]) if self.authors else PROBLEMS[self.problem]

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        check_draw(batch, generator)
        rows = self.n_context + self.n_query
        x = self._problem.inputs((batch, rows, self.d_in), generator)
        rounded = x.round(decimals=self.decimals)
        y = self._problem.labels(rounded if self._problem.rounded_first else x, generator)
        return episode_of(rounded.float(), y.round(decimals=self.decimals)[..., None].float(), self.n_context)


class _Problem(NamedTuple):
    """Functions that draw a problem's inputs ``(batch, rows, d)`` in float64, and their labels ``(batch, rows)``."""

    d: int
    inputs: Callable[[tuple[int, int, int], torch.Generator], Tensor]
    labels: Callable[[Tensor, torch.Generator], Tensor]
    rounded_first: bool = False


def _uniform(*ends: tuple[float, float]) -> Callable[[tuple[int, int, int], torch.Generator], Tensor]:
    """Uniform inputs with bounds for each input, or one pair of bounds for all."""
    low, high = torch.tensor(ends, dtype=torch.float64).T

    def draw(shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
        unit = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
        return low.to(unit) + (high - low).to(unit) * unit

    return draw


def _gaussian(shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    return normal(shape, generator).double()


def _linear(informative: int, d: int) -> _Problem:
    def labels(x: Float[Tensor, "batch rows d"], generator: torch.Generator) -> Float[Tensor, "batch rows"]:
        weights = 100 * torch.rand(len(x), d, generator=generator, device=x.device, dtype=x.dtype)
        weights[:, informative:] = 0
        return (x @ weights[..., None]).squeeze(-1)

    return _Problem(d, _gaussian, labels)


def _fixed(function: Callable[..., Tensor]) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Labels from one function of the inputs, the same in all tasks."""
    return lambda x, generator: function(*x.unbind(-1))


def _network(x: Float[Tensor, "batch rows d"], generator: torch.Generator) -> Float[Tensor, "batch rows"]:
    """Labels from a network with one hidden ReLU layer, initialised like torch's linear layers."""

    def layer(values: Tensor, width: int) -> Tensor:
        fan_in = values.shape[-1]
        drawn = torch.rand(len(x), fan_in + 1, width, generator=generator, device=x.device, dtype=x.dtype)
        weights, bias = ((2 * drawn - 1) / math.sqrt(fan_in)).split([fan_in, 1], 1)
        return values @ weights + bias

    return layer(layer(x, _HIDDEN).relu(), 1).squeeze(-1)


def _transformer(together: bool) -> Callable[[Tensor, torch.Generator], Float[Tensor, "batch rows"]]:
    """Labels from torch's transformer layer and a linear layer; a sequence is one row, or all rows if ``together``."""

    def labels(x: Float[Tensor, "batch rows d"], generator: torch.Generator) -> Float[Tensor, "batch rows"]:
        answers = []
        for task in x.cpu():
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            with seeded(seed), torch.no_grad():
                layer = nn.TransformerEncoderLayer(x.shape[-1], nhead=1, batch_first=True).double().eval()
                read = nn.Linear(x.shape[-1], 1).double()
                answers.append(read(layer(task[None] if together else task[:, None])).flatten())
        return torch.stack(answers).to(x) if answers else x.new_zeros(x.shape[:-1])

    return labels


def _letters(shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Letters as positions in the alphabet, from 1; each task uses five letters."""
    batch, rows, d = shape
    device = generator.device
    alphabet = orders((batch, _LETTERS), generator)[:, :_USED]
    chosen = torch.randint(_USED, (batch, rows * d), generator=generator, device=device)
    return (alphabet.gather(-1, chosen).reshape(shape) + 1).double()


def _of_letters(x: Float[Tensor, "batch rows d"], generator: torch.Generator) -> Float[Tensor, "batch rows"]:
    """Sum of weights U(0, 10) times the letters' positions in a shuffled alphabet, from 0."""
    places = orders((len(x), _LETTERS), generator).to(x)
    weights = 10 * torch.rand(len(x), x.shape[-1], generator=generator, device=x.device, dtype=x.dtype)
    values = places.gather(-1, x.flatten(1).long() - 1).reshape(x.shape)
    return (values @ weights[..., None]).squeeze(-1)


_FRIEDMAN = _uniform((0, 100), (40 * math.pi, 560 * math.pi), (0, 1), (1, 11))
PROBLEMS: dict[str, _Problem] = {
    **{f"regression_ni{a}{b}": _linear(a, b) for a, b in ((1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3))},
    "friedman1": _Problem(5, _uniform((0, 1)), _fixed(
        lambda x0, x1, x2, x3, x4: 10 * torch.sin(math.pi * x0 * x1) + 20 * (x2 - 0.5) ** 2 + 10 * x3 + 5 * x4)),
    "friedman2": _Problem(4, _FRIEDMAN, _fixed(lambda x0, x1, x2, x3: torch.hypot(x0, x1 * x2 - 1 / (x1 * x3)))),
    "friedman3": _Problem(4, _FRIEDMAN, _fixed(lambda x0, x1, x2, x3: torch.arctan((x1 * x2 - 1 / (x1 * x3)) / x0))),
    "original1": _Problem(1, _uniform((0, 100)), _fixed(
        lambda x: x + 10 * torch.sin(x / 100 * math.pi * 5) + 10 * torch.cos(x / 100 * math.pi * 6)), True),
    "original2": _Problem(4, _uniform((0, 3), (4 * math.pi, 56 * math.pi), (0, 2), (1, 11)), _fixed(
        lambda x0, x1, x2, x3: (x0**4 + (x1 * x2 - 2 / (x1 * x3).sqrt()) ** 2) ** 0.75), True),
    "original3": _Problem(4, _uniform((1, 3), (1, 10), (0, 10), (1, 20)), _fixed(
        lambda x0, x1, x2, x3: x0.exp() + x1 * x2 / x3.sqrt() + (x3 * x0) ** 1.5), True),
    "original4": _Problem(2, _uniform((2, 100)), _fixed(
        lambda x0, x1: x1 / 10 * x0.sin() + x0 / 10 * x1.cos() + x0.sqrt() * x1.log() / (x1.sqrt() * x0.log())), True),
    "original5": _Problem(3, _uniform((-25, 25)), _fixed(
        lambda *x: 100 * torch.softmax(torch.stack(x, -1) / 10, -1).amax(-1)), True),
    "simple_random_nn1": _Problem(5, _gaussian, _network, True),
    "transformer1": _Problem(5, _gaussian, _transformer(together=False), True),
    "character_regression1": _Problem(5, _letters, _of_letters),
}  # fmt: skip
# Problems whose code differs from their description in Vacareanu et al.
_AUTHORS = {"regression_ni33": _linear(2, 2), "transformer1": _Problem(5, _gaussian, _transformer(together=True), True)}

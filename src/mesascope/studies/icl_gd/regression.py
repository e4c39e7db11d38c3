"""What the studies of linear regression share: their tasks, trainings and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mesascope.errors import require_count
from mesascope.learners import GradientDescent, GradientDescentPlusPlus, tune, tune_spectral
from mesascope.lenses import agreement, alignment, interpolate, sweep
from mesascope.lenses.access import per_task_errors
from mesascope.measurement import Measurement
from mesascope.nets import Concatenated, InContextRegressor, InContextRegressorConfig, Layout, TransformerConfig
from mesascope.records import to_record
from mesascope.streams import stream
from mesascope.studies.evidence import arrays_of
from mesascope.studies.lab import Lab
from mesascope.tasks import Episode, Family, Learner, LinearRegression
from mesascope.training import Ensemble, Training

__all__ = [
    "QUANTILES",
    "Evaluate",
    "Regression",
    "Tied",
    "comparison",
    "contrast",
    "halfway",
    "scales",
    "tied_gd_plus_plus",
    "train_nets",
    "untied_descents",
    "watch",
]

Arrays = dict[str, np.ndarray]

# What to log of one network while training.
Evaluate = Callable[[InContextRegressor], Mapping[str, float]]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
INPUT_SCALES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)


@dataclass(frozen=True)
class Regression:
    """Settings of a study of linear regression: noiseless tasks with N = d = 10, and how networks train on them."""

    steps: int = 1500
    """Training steps."""
    batch: int = 2048
    """Tasks a training step and seed."""
    learning_rate: float = 2e-3
    """Largest learning rate."""
    decay_from: float = 0.3
    """Share of the steps after which the learning rate falls linearly to 0."""
    clip: float | None = None
    """Bound on the norm of each seed's gradient."""
    init_scale: float = 0.002
    """Variance of the initial weights, times depth and fan-in."""
    x_scale: float = 0.5
    """Inputs are drawn from U(-x_scale, x_scale)."""
    tasks: int = 100_000
    """Fresh tasks that trained networks and algorithms are compared on."""
    sweep_tasks: int = 10_000
    """Tasks of each point of a sweep, and of an evaluation while training."""
    tune_tasks: int = 10_000
    """Tasks that step sizes of the references are tuned on."""

    def __post_init__(self) -> None:
        _ = self.training, self.family
        require_count("tune_tasks", self.tune_tasks, least=2)
        require_count("tasks", self.tasks, least=2)
        require_count("sweep_tasks", self.sweep_tasks, least=2)

    @property
    def family(self) -> LinearRegression:
        return LinearRegression(x_scale=self.x_scale)

    @property
    def training(self) -> Training:
        """Decay and averaging remove the noise that Adam leaves; some fifty evaluations, whatever the length."""
        return Training(
            steps=self.steps,
            batch=self.batch,
            learning_rate=self.learning_rate,
            decay_from=self.decay_from,
            clip=self.clip,
            average=4.0,
            evaluate_every=max(self.steps // 50, 20),
        )


class Tied(NamedTuple):
    """GD++ with the one eta and the one gamma that are best for all its steps."""

    learner: GradientDescentPlusPlus
    eta: float
    gamma: float


def tied_gd_plus_plus(family: LinearRegression, steps: int, tasks: int, seed: int) -> Tied:
    """Tied GD++ tuned from spectra; each depth from the optimum of the one before, where it cannot explode."""
    eta, gamma = 3.0, 0.3 / family.n_context
    for depth in range(min(2, steps), steps + 1):
        tuned = tune_spectral(GradientDescentPlusPlus(depth, eta, gamma), family, contexts=tasks, seed=seed).step_sizes
        (eta,), (gamma,) = ([size.value for size in tuned[name]] for name in ("eta", "gamma"))
    return Tied(GradientDescentPlusPlus(steps, eta, gamma), eta, gamma)


def untied_descents(
    lab: Lab, family: LinearRegression, steps: int, token_clip: float, tasks: int
) -> tuple[dict[str, GradientDescentPlusPlus], Arrays]:
    """Gradient descent and GD++ with tuned sizes for every step and clipped tokens, and those sizes: stage ``tuned``.

    Gradient descent is tuned from spectra; GD++ from its tied optimum, with the clip in place.
    """

    def tuned() -> Arrays:
        gd = tune_spectral(
            GradientDescent(steps, [1.0 + step for step in range(steps)]), family, contexts=tasks, seed=lab.seed
        )
        _, eta, gamma = tied_gd_plus_plus(family, steps, tasks, lab.seed)
        start = GradientDescentPlusPlus(steps, [eta] * steps, [gamma] * steps, token_clip=token_clip)
        plus = tune(start, family, tasks=tasks, seed=lab.seed).step_sizes
        sizes = {"gd_eta": gd.step_sizes["eta"], "eta": plus["eta"], "gamma": plus["gamma"]}
        return {name: np.array([size.value for size in values]) for name, values in sizes.items()}

    sizes = lab.stage("tuned", tuned)
    gd_eta, eta, gamma = (sizes[name].tolist() for name in ("gd_eta", "eta", "gamma"))
    learners = {
        "gd": GradientDescent(steps, gd_eta, token_clip=token_clip),
        "gd++": GradientDescentPlusPlus(steps, eta, gamma, token_clip=token_clip),
    }
    return learners, sizes


def train_nets(
    lab: Lab,
    name: str,
    config: TransformerConfig,
    family: Family,
    training: Training,
    evaluate: Evaluate | None = None,
    *,
    layout: Layout | None = None,
    seeds: Sequence[int] | None = None,
) -> list[InContextRegressor]:
    """One network of ``config`` a seed, trained on ``family``; ``evaluate`` gives what to log of one of them."""
    net = InContextRegressorConfig(config, layout or Concatenated())
    log = None if evaluate is None else _each(evaluate)
    return lab.train(name, net.build, family, training, learner=to_record(net), seeds=seeds, evaluate=log).members()


def watch(references: Mapping[str, Learner], episodes: Episode) -> Callable[[torch.nn.Module], dict[str, float]]:
    """What to log while training: the loss, and alignment with each reference, on the same tasks every time."""

    def look(net: torch.nn.Module) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, reference in references.items():
            seen = alignment(net, reference, episodes)
            row |= {"mse": seen.mse_a.value, f"{name}_mse": seen.mse_b.value}
            for field in ("prediction_difference", "sensitivity_cosine", "sensitivity_difference"):
                row[f"{name}_{field}"] = getattr(seen, field).value
        return row

    return look


def comparison(
    nets: Sequence[Learner], references: Mapping[str, Learner | Sequence[Learner]], fresh: Episode
) -> Arrays:
    """Networks and references on the same fresh tasks: one row a network, and quantiles over tasks of each error.

    A reference is one learner for all networks, or a sequence of one each.
    """
    arrays: Arrays = {"quantile": np.array(QUANTILES), "tasks": np.array(fresh.xq.shape[0])}
    fields = ("mse_b", "mse_ratio", "prediction_difference", "sensitivity_cosine", "sensitivity_difference")
    for name, reference in references.items():
        each = reference if isinstance(reference, Sequence) else [reference] * len(nets)
        seen = [alignment(net, other, fresh) for net, other in zip(nets, each, strict=True)]
        arrays |= {
            f"{name}_{field}_{key}": array
            for field in fields
            for key, array in arrays_of([getattr(one, field) for one in seen]).items()
        }
        arrays |= {f"mse_{key}": array for key, array in arrays_of([one.mse_a for one in seen]).items()}
        if not isinstance(reference, Sequence):
            errors = per_task_errors(reference, fresh)
            arrays |= {f"{name}_quantiles": _quantiles(errors), f"{name}_median_stderr": _median_stderr(errors)}
    spread = [per_task_errors(net, fresh) for net in nets]
    arrays["quantiles"] = np.stack([_quantiles(errors) for errors in spread])
    arrays["median_stderr"] = np.stack([_median_stderr(errors) for errors in spread])
    return arrays


def scales(
    lab: Lab,
    settings: Regression,
    nets: Sequence[Learner],
    references: Mapping[str, Learner],
    over: Mapping[str, Sequence],
) -> Arrays:
    """Losses away from the training tasks, and each network's ratio to each reference, paired."""
    arrays: Arrays = {"tasks": np.array(settings.sweep_tasks)}
    trained = {f"seed {index}": net for index, net in enumerate(nets)}
    for name, reference in references.items():
        points = sweep(
            {name: reference, **trained},
            settings.family,
            over,
            tasks=settings.sweep_tasks,
            seed=lab.seed,
            device=lab.device,
        )
        arrays |= {
            name: np.array([point.mse[name].value for point in points]),
            "trained": np.array([[point.mse[seed].value for point in points] for seed in trained]),
            f"{name}_ratio": np.array([[point.ratio[seed].value for point in points] for seed in trained]),
            f"{name}_ratio_stderr": np.array([[point.ratio[seed].stderr for point in points] for seed in trained]),
        }
        arrays |= {field: np.array([point.setting[field] for point in points]) for field in over}
    return arrays


def contrast(
    lab: Lab,
    settings: Regression,
    name: str,
    config: TransformerConfig,
    references: Mapping[str, Learner],
    training: Training | None = None,
) -> tuple[list[InContextRegressor], dict[str, Arrays]]:
    """Train networks and compare them with references: while training, on fresh tasks, and on inputs of other scales.

    Returns the networks, and the stages ``name``, ``name-comparison`` and ``name-input-scale``.
    """
    family = settings.family
    watched = family.sample(settings.sweep_tasks, stream(lab.seed, "watch", 0, lab.device))
    nets = train_nets(lab, name, config, family, training or settings.training, watch(references, watched))
    fresh = family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))
    over = {"x_scale": [2 * settings.x_scale * scale for scale in INPUT_SCALES]}
    stages = {
        name: lambda: lab.curves(name),
        f"{name}-comparison": lambda: comparison(nets, references, fresh),
        f"{name}-input-scale": lambda: scales(lab, settings, nets, references, over),
    }
    return nets, {stage: lab.stage(stage, compute) for stage, compute in stages.items()}


def halfway(nets: Sequence[InContextRegressor], others: Sequence[InContextRegressor], fresh: Episode) -> Arrays:
    """Loss halfway between each network and its other, over the loss at either end: (nets, 2)."""
    ratios: list[Measurement] = []
    for net, other in zip(nets, others, strict=True):
        middle = interpolate(net, other, 0.5)
        ratios += [agreement(middle, end, fresh).mse_ratio for end in (net, other)]
    return {key: array.reshape(-1, 2) for key, array in arrays_of(ratios).items()}


def _each(evaluate: Evaluate) -> Callable[[Ensemble], list]:
    return lambda ensemble: [evaluate(net) for net in ensemble.members()]


def _median_stderr(errors: torch.Tensor) -> np.ndarray:
    """Half the distance between the order statistics one standard deviation of their rank around the median."""
    reach = 0.5 / len(errors) ** 0.5
    low, high = torch.quantile(errors.double(), torch.tensor([0.5 - reach, 0.5 + reach]).to(errors.device).double())
    return np.array(float(high - low) / 2)


def _quantiles(errors: torch.Tensor) -> np.ndarray:
    points = torch.tensor(QUANTILES, dtype=torch.float64, device=errors.device)
    return torch.quantile(errors.double(), points).cpu().numpy()

"""What the studies of linear regression share: settings, networks, and what is measured of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses, nets, tasks
from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays, Estimates
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

__all__ = [
    "INPUT_SCALES",
    "LAWS",
    "PAPER",
    "Recipe",
    "Regression",
    "contrast",
    "halfway",
    "middles",
    "network",
    "own_descent",
    "predicted",
    "sweep",
    "untied_descents",
    "watch",
]

PAPER = "von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023)"

# Of the inputs, relative to those of training.
INPUT_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
# Laws of inputs never seen in training.
LAWS = ("normal", "exponential", "laplace")
# What is changed in each sweep away from the training tasks; input scales are relative to those of training.
SWEEPS: dict[str, dict[str, Sequence[Any]]] = {
    "input-scale": {"x_scale": INPUT_SCALES},
    "teacher-scale": {"w_scale": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)},
    "other-inputs": {"x": LAWS, "x_scale": (0.5, 1.0, 2.0)},
}


@dataclass(frozen=True)
class Regression:
    """Settings of a study of linear regression: noiseless tasks with N = d = 10, and how networks train on them."""

    training: Training
    """How the networks train."""
    init_scale: float = 0.002
    """Variance of the initial weights, times depth and fan-in."""
    seeds: int = 5
    """Networks trained, one a seed."""
    x_scale: float = 0.5
    """Inputs are drawn from U(-x_scale, x_scale)."""
    tasks: int = 100_000
    """Fresh tasks that trained networks and algorithms are compared on."""
    sweep_tasks: int = 10_000
    """Tasks of each point of a sweep, and of an evaluation while training."""
    tune_tasks: int = 10_000
    """Tasks that step sizes of the references are tuned on."""

    def __post_init__(self) -> None:
        require_count("seeds", self.seeds)
        for name in ("tune_tasks", "tasks", "sweep_tasks"):
            require_count(name, getattr(self, name), least=2)
        for name in ("x_scale", "init_scale"):
            require_number(name, getattr(self, name), above=0)

    def family(self, **changes: Any) -> tasks.LinearRegression:
        """The tasks, with N = d = 10 unless told otherwise."""
        return tasks.LinearRegression(x_scale=self.x_scale, **changes)


@dataclass(frozen=True)
class Recipe:
    """How networks of a second kind train in a study, and where they start."""

    training: Training
    """How they train."""
    init_scale: float = 0.002
    """Variance of their initial weights, times depth and fan-in."""

    def __post_init__(self) -> None:
        require_number("init_scale", self.init_scale, above=0)


def network(settings: Regression, width: int = 11, **changes: Any) -> Any:
    """The config of a transformer on tokens (x, y), without embedding or read-out."""
    fields: dict[str, Any] = {"init_scale": settings.init_scale} | changes
    return nets.InContextRegressorConfig(nets.TransformerConfig(width, **fields))


def watch(references: Mapping[str, Any], episodes: tasks.Episode) -> Callable[[Any], dict[str, float]]:
    """What to log while training: the loss, and alignment with each reference, on the same tasks every time."""

    def look(net: Any) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, reference in references.items():
            seen = lenses.alignment(net, reference, episodes)
            row |= {
                "mse": seen.mse_a.value,
                f"{name} mse": seen.mse_b.value,
                f"{name} cosine": seen.sensitivity_cosine.value,
                f"{name} sensitivity-difference": seen.sensitivity_difference.value,
                f"{name} prediction-difference": seen.prediction_difference.value,
            }
        return row

    return look


def contrast(
    lab: Lab,
    settings: Regression,
    name: str,
    config: Any,
    references: Mapping[str, Any],
    training: Training | None = None,
    *,
    own: int | None = None,
    more: Callable[[Sequence[Any]], Mapping[str, Sequence[Any]]] | None = None,
    sweeps: Sequence[str] = ("input-scale",),
    seeds: int | None = None,
) -> list[Any]:
    """Train networks and compare them with references: while training, on fresh tasks, and away from those of training.

    Returns the networks; the stages are ``name``, ``name-comparison`` and one for each of ``sweeps``.

    Args:
        own: steps of the descent whose step sizes are read from each network's own weights, which is compared too as
            ``own``: no better reference of the same form should exist.
        more: further groups to compare, from the networks.
        seeds: how many networks, where not those of the study.
    """
    family = settings.family()
    watched = watch(references, lab.draw(family, settings.sweep_tasks, "watch"))
    chosen = lab.seeds if seeds is None else range(lab.seed, lab.seed + seeds)
    trained = lab.train(name, config, family, training or settings.training, seeds=chosen, watch=watched)
    groups: dict[str, Sequence[Any]] = {
        "trained": trained,
        **{key: [reference] for key, reference in references.items()},
    }
    if own is not None:
        groups["own"] = [own_descent(net, own) for net in trained]
    groups.update(more(trained) if more else {})
    against = [*references, *(["own"] if own is not None else [])]
    fresh = lab.draw(family, settings.tasks, "eval")
    lab.stage(f"{name}-comparison", lambda: lenses.measure_together(groups, against, fresh))
    for kind in sweeps:
        lab.stage(f"{name}-{kind}", lambda kind=kind: sweep(lab, settings, groups, kind))
    return trained


def sweep(lab: Lab, settings: Regression, groups: Mapping[str, Sequence[Any]], kind: str) -> Estimates:
    """Losses away from the training tasks, as `SWEEPS` has them."""
    over = dict(SWEEPS[kind])
    if "x_scale" in over:
        over["x_scale"] = [settings.x_scale * scale for scale in over["x_scale"]]
    return lenses.sweep(groups, settings.family(), over, tasks=settings.sweep_tasks, seed=lab.seed, device=lab.device)


def own_descent(net: Any, steps: int, n_context: int = 10) -> learners.GradientDescentPlusPlus:
    """GD++ with the step sizes that a network's weights spell, tokens clipped as the network's are."""
    config = net.transformer.config
    eta, gamma = (sizes.tolist() for sizes in lenses.step_sizes(net, n_context))
    return learners.GradientDescentPlusPlus(steps, eta, gamma, token_clip=config.token_clip)


def untied_descents(lab: Lab, settings: Regression, steps: int, token_clip: float) -> dict[str, Any]:
    """Gradient descent and GD++ with sizes of their own for every step, and clipped tokens: stage ``tuned``.

    Gradient descent is tuned under the clip, GD++ from spectra, ten times as many as ``tune_tasks``, which leaves it
    better on fresh tasks: under the clip it fits the tails of the tasks at hand.
    """
    family = settings.family()
    etas, gammas = [1.0 + step for step in range(steps)], [0.03] * steps
    starts = {
        "gd": learners.GradientDescent(steps, etas, token_clip=token_clip),
        "gd++": learners.GradientDescentPlusPlus(steps, etas, gammas, token_clip=token_clip),
    }

    def tuned() -> Arrays:
        sizes = {}
        for key, start in starts.items():
            if key == "gd":
                found = learners.tune(start, family, tasks=settings.tune_tasks, seed=lab.seed).step_sizes
            else:
                contexts = 10 * settings.tune_tasks
                found = learners.tune_spectral(start, family, contexts=contexts, seed=lab.seed).step_sizes
            sizes |= {f"{key} {name}": [one.value for one in each] for name, each in found.items()}
        return Arrays(sizes, **dict.fromkeys(sizes, "step"))

    sizes: Any = lab.stage("tuned", tuned)
    eta, gamma = sizes["gd++ eta"].tolist(), sizes["gd++ gamma"].tolist()
    return {
        "gd": learners.GradientDescent(steps, sizes["gd eta"].tolist(), token_clip=token_clip),
        "gd++": learners.GradientDescentPlusPlus(steps, eta, gamma, token_clip=token_clip),
    }


def predicted(lab: Lab, settings: Regression, references: Mapping[str, Any]) -> Estimates:
    """Losses of descents on contexts with ten teachers and ten queries each, and what the spectra say, as ``expected``.

    Centred descents descend on the spectra of centred inputs.
    """
    family = settings.family(d_out=10, n_query=10)
    drawn = lab.draw(family, settings.tune_tasks, "predicted")
    losses = {}
    for name, reference in references.items():
        x = drawn.context.x.double()
        descent: Any = reference
        if isinstance(reference, learners.Centred):
            x, descent = x - x.mean(-2, keepdim=True), reference.learner
        spectra = (x.mT @ x / family.n_context).cpu().numpy()
        expected = learners.spectral_mse(x.new_tensor(np.linalg.eigvalsh(spectra)).cpu(), descent, family)
        losses["mse", name] = [lenses.per_task_errors(reference, drawn).double().cpu().numpy()]
        losses["expected", name] = [expected.detach().numpy()]
    return Estimates.of(losses)


def halfway(
    trained: Sequence[Any],
    others: Sequence[Any],
    fresh: tasks.Episode,
    references: Mapping[str, Sequence[Any]] | None = None,
) -> Estimates:
    """Networks, those at the other end, the networks halfway between, and references, on the same tasks."""
    groups = {"trained": trained, "other": others, "middle": middles(trained, others), **(references or {})}
    return lenses.measure_together(groups, ["trained", "other", *(references or {})], fresh)


def middles(nets: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The network halfway between each and the one of its place at the other end."""
    return [lenses.interpolate(net, other, 0.5) for net, other in zip(nets, others, strict=True)]

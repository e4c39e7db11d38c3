"""Settings, networks and measurements that the studies of linear regression share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mesascope import learners, lenses, nets, study, tasks
from mesascope.study import Arrays, Count, Estimates, Positive, Training, frozen

PAPER = "von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023)"

# Training of the authors' code, on batches of 2,048 tasks: no decay and no averaging.
authors_plan = partial(Training, schedule="constant", betas=(0.9, 0.98))

# Input scales relative to that of training.
INPUT_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
# Scales of teachers, and norms of contexts whose inputs have another distribution than in training.
SCALES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
# Field of the tasks and its values in each sweep; those whose names begin with "unseen" are over `UnseenInputs`.
SWEEPS: dict[str, tuple[str, Sequence[float]]] = {
    "input-scale": ("x_scale", INPUT_SCALES),
    "teacher-scale": ("w_scale", SCALES),
    "unseen-inputs": ("norm", SCALES),
    "unseen-teacher-scale": ("w_scale", SCALES),
}

# Bound on the entries of tokens, with which deep networks train.
CLIP = 10.0
# Mean squared error of predicting 0, for d = 10, inputs from U(-0.5, 0.5) and teachers from N(0, I).
ZERO = 10 * 0.5**2 / 3


@frozen
class UnseenInputs:
    """Tasks whose inputs are normal, exponential or Laplace, divided by the Frobenius norm of the context's inputs.

    Targets are those of the divided inputs. Source: the code of von Oswald et al. (2023); their text, appendix A.2,
    does not mention the division.
    """

    family: Any  # Linear regression that is changed.
    norm: Positive = 1.0  # Norm of the inputs of each context after the division; 2.9 on average in training.
    w_scale: Positive = 1.0  # Scale of the teachers.

    def sample(self, batch: int, generator: Any) -> tasks.Episode:
        drawn = replace(self.family, x="mixture", w_scale=self.w_scale).sample(batch, generator)
        factor = self.norm / drawn.context.x.norm(dim=(-2, -1), keepdim=True)
        return drawn.map(lambda tensor: factor * tensor)


@frozen
class Regression:
    """Settings of a study of linear regression: noiseless tasks with N = d = 10, and training on them."""

    training: Training  # Training of the networks.
    init_scale: Positive = 0.002  # Variance of the initial weights, times depth and fan-in.
    seeds: Count = 5  # Networks trained, one per seed.
    x_scale: Positive = 0.5  # Inputs are drawn from U(-x_scale, x_scale).
    tasks: study.Several = 100_000  # Fresh tasks for comparing trained networks and algorithms.
    sweep_tasks: study.Several = 10_000  # Tasks for each point of a sweep, and for evaluations during training.
    tune_tasks: study.Several = 10_000  # Tasks for tuning references and for checking their losses.

    def family(self, **changes: Any) -> tasks.LinearRegression:
        """The tasks, with N = d = 10 unless ``changes`` set other values."""
        return tasks.LinearRegression(x_scale=self.x_scale, **changes)


@frozen
class SecondTraining:
    """Training and initial weights of a second kind of network in a study."""

    training: Training  # Training of these networks.
    init_scale: Positive = 0.002  # Variance of the initial weights, times depth and fan-in.


def network(settings: Regression, width: int = 11, **changes: Any) -> Any:
    """Config of a transformer on tokens (x, y), without embedding or read-out."""
    fields: dict[str, Any] = {"init_scale": settings.init_scale} | changes
    return nets.InContextRegressorConfig(nets.TransformerConfig(width, **fields))


def watch_alignment(references: Mapping[str, Any], episodes: tasks.Episode) -> Callable[[Any], dict[str, float]]:
    """Function that returns numbers to log: the loss, and the alignment with each reference, on ``episodes``."""

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
    lab: study.Lab,
    settings: Regression,
    name: str,
    config: Any,
    references: Mapping[str, Any],
    training: Training | None = None,
    *,
    own: int | None = None,
    more: Callable[[Sequence[Any]], Mapping[str, Sequence[Any]]] = lambda trained: {},
    sweeps: Sequence[str] = ("input-scale",),
    seeds: int | None = None,
) -> list[Any]:
    """Train networks, and compare them with references during training, on fresh tasks, and on changed tasks.

    Returns the networks; the stages are ``name``, ``name-comparison`` and one for each of ``sweeps``.

    Args:
        own: number of steps of a descent with the step sizes in each network's weights. This descent, ``own``, shows
            whether the references are well tuned.
        more: function from the networks to further groups to compare.
        seeds: number of networks; the study's if None.
    """
    family = settings.family()
    watched = watch_alignment(references, lab.draw(family, settings.sweep_tasks, "watch"))
    chosen = lab.seeds if seeds is None else range(lab.seed, lab.seed + seeds)
    trained = lab.train(name, config, family, training or settings.training, seeds=chosen, watch=watched)
    owns = {} if own is None else {"own": [own_descent(net, own) for net in trained]}
    alone = {key: [one] for key, one in references.items()}
    groups = {"trained": trained, **alone, **owns, **more(trained)}
    fresh = lab.draw(family, settings.tasks, "eval")
    lab.stage(f"{name}-comparison", lenses.measure_learners, groups, [*references, *owns], fresh)
    for kind in sweeps:
        lab.stage(f"{name}-{kind}", sweep, lab, settings, groups, kind)
    return trained


def sweep(lab: study.Lab, settings: Regression, groups: Mapping[str, Sequence[Any]], kind: str) -> Estimates:
    """Losses on the changed tasks of `SWEEPS`; input scales are relative to that of training."""
    field, values = SWEEPS[kind]
    family = settings.family()
    over = {field: [settings.x_scale * scale for scale in values] if field == "x_scale" else values}
    changed = UnseenInputs(family) if kind.startswith("unseen") else family
    return lenses.sweep(groups, changed, over, tasks=settings.sweep_tasks, seed=lab.seed, device=lab.device)


def own_descent(net: Any, steps: int, n_context: int = 10) -> learners.GradientDescentPlusPlus:
    """GD++ with the step sizes in a network's weights; tokens are clipped as in the network."""
    eta, gamma = (sizes.tolist() for sizes in lenses.step_sizes(net, n_context))
    return learners.GradientDescentPlusPlus(steps, eta, gamma, token_clip=net.transformer.config.token_clip)


def best_step(family: tasks.LinearRegression) -> learners.GradientDescent:
    """One step of gradient descent with the closed-form best step size."""
    return learners.GradientDescent(1, learners.one_step_optimum(family).eta)


def tuned(lab: study.Lab, settings: Regression, start: Any, **changes: Any) -> Any:
    """Descent tuned from spectra of the study's tasks, and its step sizes with standard errors."""
    return learners.tune_spectral(start, settings.family(**changes), contexts=settings.tune_tasks, seed=lab.seed)


def read_step_sizes(nets: Sequence[Any], eta: float, gamma: float) -> dict[str, list[float]]:
    """Step sizes in the weights of networks of one looped layer, N = 10, beside those of a tuned GD++."""
    read = [lenses.step_sizes(net, 10) for net in nets]
    found = {"eta": [one.eta[0].item() for one in read], "gamma": [one.gamma[0].item() for one in read]}
    return found | {"gd++ eta": [eta] * len(nets), "gd++ gamma": [gamma] * len(nets)}


def first_products(nets: Sequence[Any]) -> dict[str, np.ndarray]:
    """The rescaled products of each network's first layer, ``(nets, width, width)``."""
    first = [lenses.rescaled_products(net)[0] for net in nets]
    return {name: np.stack([getattr(one, name)[0].cpu().numpy() for one in first]) for name in ("w_kq", "w_pv")}


def untied_descents(lab: study.Lab, settings: Regression, steps: int) -> dict[str, Any]:
    """Gradient descent and GD++ with a tuned step size for every step, and clipped tokens: stage ``tuned``.

    Gradient descent is tuned on tasks with the clip. GD++ is tuned from ten times as many spectra, which ignore the
    clip: tuned on tasks with the clip, it overfits their tails and is worse on fresh tasks.
    """
    family = settings.family()
    etas, gammas = [1.0 + step for step in range(steps)], [0.03] * steps

    def tuned() -> Arrays:
        gd = learners.GradientDescent(steps, etas, token_clip=CLIP)
        plus = learners.GradientDescentPlusPlus(steps, etas, gammas, token_clip=CLIP)
        found = {
            "gd": learners.tune(gd, family, tasks=settings.tune_tasks, seed=lab.seed),
            "gd++": learners.tune_spectral(plus, family, contexts=10 * settings.tune_tasks, seed=lab.seed),
        }
        sizes = {
            f"{key} {name}": [one.value for one in each]
            for key, one in found.items() for name, each in one.step_sizes.items()
        }  # fmt: skip
        return Arrays(sizes, **dict.fromkeys(sizes, "step"))

    sizes: Any = lab.stage("tuned", tuned)
    eta, gamma = sizes["gd++ eta"].tolist(), sizes["gd++ gamma"].tolist()
    return {
        "gd": learners.GradientDescent(steps, sizes["gd eta"].tolist(), token_clip=CLIP),
        "gd++": learners.GradientDescentPlusPlus(steps, eta, gamma, token_clip=CLIP),
    }


def predicted(lab: study.Lab, settings: Regression, references: Mapping[str, Any]) -> Estimates:
    """Losses of descents on contexts with ten teachers and ten queries each; ``expected`` are predicted from spectra.

    Predictions for centred descents use the spectra of centred inputs.
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
        losses["mse", name] = [lenses.per_task_errors(reference, drawn)]
        losses["expected", name] = [expected]
    return Estimates.of(losses)


def compare_midpoints(
    trained: Sequence[Any],
    others: Sequence[Any],
    fresh: tasks.Episode,
    references: Mapping[str, Sequence[Any]] | None = None,
) -> Estimates:
    """Losses of networks, of ``others``, of the midpoints between them, and of references, on the same tasks."""
    groups = {"trained": trained, "other": others, "middle": midpoints(trained, others), **(references or {})}
    return lenses.measure_learners(groups, ["trained", "other", *(references or {})], fresh)


def midpoints(nets: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Midpoint between each network and its counterpart in ``others``."""
    return [lenses.interpolate(net, other, 0.5) for net, other in zip(nets, others, strict=True)]

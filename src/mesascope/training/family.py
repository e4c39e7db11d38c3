"""Training an ensemble of learners on a task family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, Family
from mesascope.training.ensemble import Ensemble, Module
from mesascope.training.loop import Checkpoints, Observer, Training, fit

__all__ = ["half_mse", "train"]


def half_mse(ensemble: Ensemble, episode: Episode) -> Float[Tensor, " members"]:
    """Half the mean squared error of each member: the training loss of the ICML paper's code."""
    prediction = ensemble(episode.context, episode.xq)
    return 0.5 * (prediction - episode.yq).square().flatten(1).mean(1)


def train(
    make: Callable[[torch.Generator], Module],
    family: Family,
    training: Training | None = None,
    seeds: Sequence[int] = (0,),
    *,
    device: torch.device | str = "cpu",
    evaluate: Callable[[int, Ensemble], None] | None = None,
    checkpoints: Checkpoints | None = None,
    observe: Observer | None = None,
) -> Ensemble[Module]:
    """Train one learner a seed on fresh tasks of ``family``, all at once, by `half_mse`.

    Args:
        make: builds a learner from the generator of its initial weights (stream ``init`` of its seed).
        family: each seed draws its own tasks (step i from stream ``train`` of that seed).
        training: see `Training`.
        seeds: one member each.
        evaluate, checkpoints, observe: see `fit`.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> plan = Training(steps=200, batch=64, learning_rate=0.1)
    >>> trained = train(lambda _: GradientDescent(1, eta=1.0), LinearRegression(x_scale=0.5), plan, seeds=[0, 1])
    >>> all(5 < learner.eta < 7 for learner in trained.members())
    True
    """
    training = training or Training()
    ensemble = Ensemble([make(stream(seed, "init")) for seed in seeds]).to(device)

    def batches(index: int) -> Episode:
        drawn = [family.sample(training.batch, stream(seed, "train", index, device)) for seed in seeds]
        return stack_episodes(drawn)

    return fit(ensemble, half_mse, batches, training, evaluate=evaluate, checkpoints=checkpoints, observe=observe)


def stack_episodes(episodes: Sequence[Episode]) -> Episode:
    """Episodes of equal shape along a new first axis."""
    stacked = [
        torch.stack(parts) for parts in zip(*((e.context.x, e.context.y, e.xq, e.yq) for e in episodes), strict=True)
    ]
    return Episode(Context(stacked[0], stacked[1]), stacked[2], stacked[3])

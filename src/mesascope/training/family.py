"""Training an ensemble of learners on a task family, or of predictors on a family of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mesascope.errors import refuse
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, Family, SequenceFamily
from mesascope.training.ensemble import Ensemble, Module
from mesascope.training.loop import Checkpoints, Observer, Training, fit

__all__ = ["half_mse", "train"]


def half_mse(ensemble: Ensemble, tasks: Episode | Tensor) -> Float[Tensor, " members"]:
    """Half the mean squared error of each member, of its answers or of its predictions of each next element.

    The training loss of the ICML paper's code. That of the thesis, eq. 3.11, sums over times and entries and so is
    (T - 1) d times as large for sequences.
    """
    if isinstance(tasks, Episode):
        prediction, answer = ensemble(tasks.context, tasks.xq), tasks.yq
    else:
        if tasks.shape[-2] < 2:
            refuse("tasks", "have sequences of at least 2 elements", tuple(tasks.shape), "draw longer ones")
        prediction, answer = ensemble(tasks[..., :-1, :]), tasks[..., 1:, :]
    return 0.5 * (prediction - answer).square().flatten(1).mean(1)


def train(
    make: Callable[[torch.Generator], Module],
    family: Family | SequenceFamily,
    training: Training | None = None,
    seeds: Sequence[int] = (0,),
    *,
    device: torch.device | str = "cpu",
    evaluate: Callable[[int, Ensemble], None] | None = None,
    checkpoints: Checkpoints | None = None,
    observe: Observer | None = None,
) -> Ensemble[Module]:
    """Train one learner or predictor a seed on fresh tasks of ``family``, all at once, by `half_mse`.

    Args:
        make: builds one from the generator of its initial weights (stream ``init`` of its seed).
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

    def batches(index: int) -> Episode | Tensor:
        return stacked([family.sample(training.batch, stream(seed, "train", index, device)) for seed in seeds])

    return fit(ensemble, half_mse, batches, training, evaluate=evaluate, checkpoints=checkpoints, observe=observe)


def stacked(draws: Sequence[Episode | Tensor]) -> Episode | Tensor:
    """Episodes or sequences of equal shape along a new first axis."""
    episodes = [draw for draw in draws if isinstance(draw, Episode)]
    if not episodes:
        return torch.stack([draw for draw in draws if isinstance(draw, Tensor)])
    x, y, xq, yq = (torch.stack(parts) for parts in zip(*((*e.context, e.xq, e.yq) for e in episodes), strict=True))
    return Episode(Context(x, y), xq, yq)

"""Training learners on a family of tasks, or predictors on a family of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, Family, Seeded, SequenceFamily
from mesascope.training.ensemble import Ensemble, Module
from mesascope.training.ensemble_state import EnsembleState
from mesascope.training.loop import Checkpoints, Observer, fit
from mesascope.training.losses import half_mse
from mesascope.training.plan import Training

__all__ = ["train"]


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
        family: each seed draws its own tasks (step i from stream ``train`` of that seed), from its own family where
            ``family`` has a method ``seeded(seed)``.
        training: see `Training`.
        seeds: one member each.
        evaluate, checkpoints, observe: see `fit`.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> plan = Training(steps=200, batch=64, learning_rate=0.1)
    >>> trained = train(
    ...     lambda generator: GradientDescent(1, eta=torch.rand(1, generator=generator).item()),
    ...     LinearRegression(x_scale=0.5),
    ...     plan,
    ...     seeds=[0, 1],
    ... )
    >>> all(5 < learner.eta < 7 for learner in trained.members())
    True
    """
    plan = training or Training()
    ensemble = Ensemble([make(stream(seed, "init")) for seed in seeds]).to(device)
    state = EnsembleState(ensemble, half_mse, plan, seed=seeds[0])
    families = [family.seeded(seed) if isinstance(family, Seeded) else family for seed in seeds]

    def batch_at(step: int) -> Episode | Tensor:
        draws = [stream(seed, "train", step, device) for seed in seeds]
        return stacked([own.sample(plan.batch, draw) for own, draw in zip(families, draws, strict=True)])

    return fit(state, batch_at, plan, evaluate=evaluate, checkpoints=checkpoints, observe=observe)


def stacked(draws: Sequence[Episode | Tensor]) -> Episode | Tensor:
    """Episodes or sequences of equal shape along a new first axis."""
    episodes = [draw for draw in draws if isinstance(draw, Episode)]
    if not episodes:
        return torch.stack([draw for draw in draws if isinstance(draw, Tensor)])
    x, y, xq, yq = (torch.stack(parts) for parts in zip(*((*e.context, e.xq, e.yq) for e in episodes), strict=True))
    return Episode(Context(x, y), xq, yq)

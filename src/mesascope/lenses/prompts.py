"""Prompt tuning of frozen predictors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mesascope.errors import ArgumentTypeError, require_instance, shown
from mesascope.modes import guarded
from mesascope.nets import Prompted, SequencePredictor
from mesascope.shapes import Tensor
from mesascope.tasks import SequenceFamily
from mesascope.training import Training, pair_half_mse, train


@guarded
def prompt_tune(
    network: SequencePredictor | Prompted,
    family: SequenceFamily,
    *,
    eos: bool = False,
    prefix: int = 0,
    training: Training | None = None,
    seed: int = 0,
    loss: Callable[[Any, Any], Tensor] = pair_half_mse,
) -> Prompted:
    """Train a prompt of a frozen network on ``family``: an EOS element, a prefix, or both.

    Training runs on the network's device. If the network is `Prompted`, its prompt is frozen as well, and the new one
    is added.

    Args:
        family: draws sequences x_1, y_1, x_2, ...; see `FewShotSequence`.
        eos: learn one element that separates pairs.
        prefix: number of learned elements before a sequence.
        training: 5,000 steps of 128 sequences at a learning rate of 1e-3 if None.

    Source: von Oswald (2024), section 3.5.2.
    """
    require_instance("network", network, SequencePredictor | Prompted, "pass a SequencePredictor")
    if not (eos or prefix):
        raise ArgumentTypeError(
            f"eos or prefix must be set, but are {shown(eos)} and 0: pass eos=True, or a length as prefix."
        )

    def made(generator: Any) -> Prompted:
        return Prompted.on(network, eos=eos, prefix=prefix, generator=generator)

    plan = Training(5000, 128, 1e-3) if training is None else training
    device = next(network.parameters()).device
    return train(made, family, plan, [seed], loss=loss, device=device).member(0)

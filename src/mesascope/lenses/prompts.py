"""What a frozen predictor can be brought to do by elements that it is shown besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mesascope.errors import ArgumentTypeError, refuse, require_instance, shown
from mesascope.nets import Prompted, PromptedConfig, SequencePredictor
from mesascope.shapes import Tensor
from mesascope.tasks import SequenceFamily
from mesascope.training import Training, pair_half_mse, train

__all__ = ["prompt_tune"]


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
    """The network beside a prompt that is trained on ``family``, all else frozen: an EOS element, a prefix, or both.

    Given what was prompted before, its prompt is frozen too, and what is asked for is added to it.

    Args:
        family: of sequences x_1, y_1, x_2, ...; see `FewShotSequence`.
        eos: learn an element between one pair and the next.
        prefix: learn so many elements before a sequence.
        training: 5,000 steps of 128 sequences at a learning rate of 1e-3 if None.

    Source: thesis, section 3.5.2.
    """
    before = network if isinstance(network, Prompted) else None
    bare = network.network if isinstance(network, Prompted) else network
    require_instance("network", bare, SequencePredictor)
    if not (eos or prefix):
        raise ArgumentTypeError(
            f"eos or prefix must say what to learn, but are {shown(eos)} and 0: pass eos=True, say."
        )
    for name, wanted, found in (
        ("eos", eos, None if before is None else before.eos),
        ("prefix", prefix, None if before is None else before.prefix),
    ):
        if wanted and found is not None:
            refuse(name, "be left out where the network has one", wanted, "prompt the network that it was made of")
    has_eos = eos or (before is not None and before.eos is not None)
    length = prefix or (0 if before is None or before.prefix is None else len(before.prefix))
    config = PromptedConfig(bare.config, length, has_eos)

    def made(generator: Any) -> Prompted:
        prompted = Prompted(config, generator, bare)
        for name in ("eos", "prefix"):
            found = None if before is None else getattr(before, name)
            if found is not None:
                own = getattr(prompted, name)
                own.data.copy_(found)
                own.requires_grad_(False)
        return prompted

    plan = Training(5000, 128, 1e-3) if training is None else training
    return train(made, family, plan, [seed], loss=loss).member(0)

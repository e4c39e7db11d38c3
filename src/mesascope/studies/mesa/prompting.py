"""A transformer trained on linear dynamics that is shown pairs, bare and prompted: what two studies look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mesascope import lenses, nets, tasks, training
from mesascope.evidence import Claim
from mesascope.reports import Line
from mesascope.studies.common import converged, plan, values, watch_loss
from mesascope.studies.mesa.dynamics import Dynamics, tuned_ridge
from mesascope.studies.mesa.transformers import LONG, USUAL, transformer
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

__all__ = [
    "DEVIATIONS",
    "PAIRS",
    "PREMISES",
    "PRESETS",
    "PROMPTED",
    "ROLES",
    "TRAINED",
    "at_pair",
    "errors_by_pair",
    "measure_pairs",
]

# Pairs of a task of two elements each; with an EOS element between them, and a prefix before, a sequence is as long as
# those that the transformers train on.
PAIRS, PREFIX = 34, 20
LENGTH = PREFIX + 3 * PAIRS
# Numbers of elements known at which the next is the answer to an input.
ANSWERED = range(1, 2 * PAIRS, 2)


@dataclass(frozen=True)
class Prompting(Dynamics):
    """Settings of the study."""

    prompt: Training = field(default_factory=lambda: plan(1500, 1e-2, batch=64))
    """How an EOS element trains, and then a prefix."""

    def family(self) -> tasks.LinearDynamics:
        """The sequences that transformers train on, first elements as inputs of pairs are."""
        return tasks.LinearDynamics(length=LENGTH, dynamics=self.dynamics)  # type: ignore[arg-type]


def measure_pairs(lab: Lab, settings: Prompting, family: tasks.FewShotSequence) -> None:
    """Stage ``pairs``: errors of answers to each input, by the number of elements known.

    Seven softmax layers trained on dynamics are ``bare``, with ``eos``, and with eos and ``prefix``, both learned on
    pairs of one task; ``all`` is ridge regression on all pairs of elements that follow one another.
    """
    untrained = [transformer("softmax").build(lab.stream("untrained", index)) for index in range(settings.seeds)]
    groups = {
        **_prompted(lab, settings),
        "untrained": untrained,
        "all": [tuned_ridge(lab, settings, family, times=ANSWERED)],
    }
    fresh = lab.draw(family, settings.tasks, "pairs")
    lab.stage("pairs", lambda: lenses.errors_by_time(groups, fresh, ANSWERED))


def _prompted(lab: Lab, settings: Prompting) -> dict[str, list[Any]]:
    family, pairs = settings.family(), tasks.FewShotSequence(pairs=PAIRS)
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    trained = {"bare": lab.train("bare", transformer("softmax"), family, settings.training, watch=watched)}
    watched = _answers(lab.draw(pairs, settings.watch_tasks, "watch-pairs"))
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "eos": ("bare", {"eos": True}),
        "prefix": ("eos", {"prefix": PREFIX}),
    }
    for name, (start, what) in asked.items():
        ready = [
            nets.Prompted.on(network, **what, generator=lab.stream(name, index))
            for index, network in enumerate(trained[start])
        ]
        trained[name] = lab.train(
            name, ready[0].config, pairs, settings.prompt, loss=training.pair_half_mse, watch=watched,
            start=(start, ready),
        )  # fmt: skip
    return trained


def _answers(sequences: Any) -> Any:
    """What to log: errors of the answers to inputs alone, which prompts are trained for."""
    return lambda net: {"mse": 2 * float(training.pair_half_mse(net, sequences).detach())}


def at_pair(r: Any, name: str, *pairs: int) -> Any:
    """Errors of the answers to these inputs, the first is 1, ``(seeds, pairs)``."""
    return r["pairs"]["mse", name][:, [pair - 1 for pair in pairs]]


def errors_by_pair(r: Any) -> list[Line]:
    """Curves of the errors of answers over the number of the input."""
    pairs = (r["pairs"].cases["t"] + 1) // 2
    return [Line(pairs, 5 * values(r["pairs"]["mse", name]), *line) for name, line in ROLES.items()]


ROLES = {
    "bare": ("trained", "pairs alone"),
    "eos": ("interpolated", "with EOS"),
    "prefix": ("other", "with EOS and prefix"),
    "all": ("limit", "least squares on all"),
    "untrained": ("gd", "untrained"),
}
TRAINED = ("converged",)
PROMPTED = ("converged", "prompts-converged")
PREMISES: tuple[Claim, ...] = (
    converged("bare", at_least=3, most=0.02),
    converged("eos", "prefix", id="prompts-converged", at_least=3, most=0.1),
)
PRESETS: dict[str, Any] = {
    "quick": Prompting(
        plan(100, 3e-3, batch=8, **USUAL), 3, tasks=300, tune_tasks=300, watch_tasks=50, prompt=plan(40, 2e-2, batch=8),
    ),
    "paper": Prompting(
        LONG, tasks=5_000, tune_tasks=5_000, watch_tasks=500,
    ),
}  # fmt: skip
DEVIATIONS = (
    f"Sequences have {LENGTH} elements, and so at most {PAIRS} pairs with EOS and prefix, in place of 224 and 68.",
    "Networks train for 6,000 steps of 64 sequences in place of 15,000 to 40,000 of 128, at a learning rate of 3e-3 in "
    "place of 7e-4; prompts for 1,500 of 64 at 1e-2 in place of 5,000 at 1e-3. Weights are averaged.",
)

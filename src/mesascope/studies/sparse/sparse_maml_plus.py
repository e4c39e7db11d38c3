"""Does the noise of masks that are drawn for each task vanish while they are learned?

Thesis: section 4.3.3 and Table 4.3. The masks of sparse-MAML+ are a linear function of a few random numbers, whose mean
and spread are learned; sparse-MAML, whose masks are fixed, and rectified rates train beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.evidence import Arrays, Claim, above, below, ours, printed, stage
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.sparse.few_shot import MINI_IMAGENET, QUICK, THESIS, FewShot, accuracies, meta_trained, untrained
from mesascope.study import Study, strip

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

TABLE, SECTION = "Table 4.3", "section 4.3.3"
COMPARED = {"sparse-relu-maml": "sparse-ReLU-MAML", "sparse-maml": "sparse-MAML", "sparse-maml-plus": "sparse-MAML+"}
# Pairs of draws that are compared.
DRAWS = 20


def measure(lab: Lab, settings: FewShot) -> None:
    """Train the three, and see how much masks of one network differ from draw to draw."""
    groups = {name: meta_trained(lab, name, settings, name) for name in COMPARED}
    accuracies(lab, "accuracy", groups, lab.draw(settings.family("test"), settings.tasks, "eval"))
    before = untrained(lab, settings, "sparse-maml-plus")
    lab.stage("draws", lambda: _drawn(groups["sparse-maml-plus"], before))
    lab.stage(
        "closed",
        lambda: Arrays({name: np.array([100 * one.closed() for one in group]) for name, group in groups.items()},
                       **dict.fromkeys(groups, "seed")),
    )  # fmt: skip


def _drawn(trained: list[Any], before: list[Any]) -> Arrays:
    """Percent of entries that are open in one of two draws alone, before and after; mean |sigma|, which starts at 1."""
    arrays = {
        "differ before": np.array([_differ(one) for one in before]),
        "differ after": np.array([_differ(one) for one in trained]),
        "sigma": np.array([float(one.method.sigma.detach().abs().mean()) for one in trained]),
    }
    return Arrays(arrays, **dict.fromkeys(arrays, "seed"))


def _differ(learner: Any) -> float:
    from mesascope.training.randomness import drawing_from

    changed = total = 0
    for draw in range(DRAWS):
        with drawing_from(0, "draws", draw, learner.method.mu.device):
            first, second = (learner.method.factors(learner.model) for _ in range(2))
        changed += sum(int((first[name] != second[name]).sum()) for name in first)
        total += sum(one.numel() for one in first.values())
    return 100 * changed / total


CLAIMS = (
    Claim(
        "learns", "networks that adapt tell most images after meta-learning", stage("accuracy")["sparse-maml"],
        above(50.0), ours("premise"), quantifier="mean",
    ),
    Claim(
        "noise-vanishes", "the spread of the noise falls to less than a tenth of what it was", stage("draws")["sigma"],
        below(0.1), printed(SECTION), quantifier="mean", premises=("learns",),
    ),
    Claim(
        "masks-settle", "masks of two draws differ in less than a tenth of the entries that they differed in at first",
        stage("draws")["differ after"] / stage("draws")["differ before"], below(0.1), ours("what the noise does"),
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "noise-helps", "masks that were drawn meanwhile do better than fixed ones",
        stage("accuracy")["sparse-maml-plus"] - stage("accuracy")["sparse-maml"], above(0.0), printed(SECTION),
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "all-close", "more than half of all entries is closed in the end by each of the three",
        lambda r: np.stack([r["closed"][name] for name in COMPARED], axis=1), above(50.0), printed(TABLE),
        measures="percent closed: mean over seeds of each", quantifier="mean", premises=("learns",),
    ),
)  # fmt: skip


def _before_and_after(before: Any, after: str) -> Any:
    def lines(r: Any) -> list[Line]:
        start = np.ones(len(r["draws"][after])) if before is None else r["draws"][before]
        return [
            Line([0, 1], np.stack([start, r["draws"][after]], axis=1), "trained", "each seed", each=True, marks="o-")
        ]

    return lines


WHEN: dict[str, Any] = {"xticks": (0, 1), "xticklabels": ("before", "after")}

FIGURES = (
    Figure(
        "noise", "Above: the spread of the noise that masks of sparse-MAML+ are made of, and percent of entries in "
        "which the masks of two draws differ, before meta-learning and after. Below: accuracy on new classes, and "
        "percent of entries closed. Each seed. Thesis: Table 4.3.",
        (
            Lines("", "", "mean |sigma|", _before_and_after(None, "sigma"), limits=WHEN),
            Lines("", "", "entries that differ (%)", _before_and_after("differ before", "differ after"), limits=WHEN),
            strip("accuracy (%)", COMPARED, lambda r: {"each seed": r["accuracy"]}),
            strip("closed (%)", COMPARED, lambda r: {"each seed": r["closed"]}),
        ), columns=2, size=(11, 6.2), shared_legend=True, claims=tuple(claim.id for claim in CLAIMS),
    ),
)  # fmt: skip

STUDY = Study(
    name="sparse-maml-plus",
    source=f"{THESIS}, {SECTION}",
    presets={"quick": FewShot(**QUICK), "paper": FewShot(), "mini-imagenet": FewShot(**MINI_IMAGENET)},
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Omniglot in place of miniImageNet, with fewer filters and outer steps, as in sparse-maml.",
        "All learn by Adam, as in sparse-maml, in place of SGD with momentum.",
    ),
)

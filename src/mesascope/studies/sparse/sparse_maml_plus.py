"""Does the noise of masks that are drawn for each task vanish while they are learned?

Thesis: section 4.3.3 and Table 4.3. The masks of sparse-MAML+ are 1[m >= 0], with m an affine function of a few random
numbers, whose mean and spread are learned; sparse-MAML, whose masks are fixed, and rectified rates train beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope import study
from mesascope.studies.sparse import few_shot
from mesascope.studies.sparse.few_shot import FewShot
from mesascope.study import Claim, Lines, Mutation, Study, above, below, beside, ours, printed, stage, strip, two_sided

SECTION = "section 4.3.3"
COMPARED = {"sparse-relu-maml": "sparse-ReLU-MAML", "sparse-maml": "sparse-MAML", "sparse-maml-plus": "sparse-MAML+"}
# Number of pairs of draws to compare.
DRAWS = 20

accuracy, closed = stage("accuracy", **{"sparse-maml": "accuracy of sparse-MAML in percent"}), stage("closed")
draws = stage("draws", **{
    "sigma": "mean |sigma|, which starts at 1", "differ before": "percent of entries that differ before meta-learning",
    "differ after": "percent after it",
})  # fmt: skip


def measure(lab: study.Lab, settings: FewShot) -> None:
    groups = {name: few_shot.meta_trained(lab, name, settings, name) for name in COMPARED}
    fresh = few_shot.own_tasks(lab, settings.family("test"), settings.tasks)
    lab.stage("accuracy", few_shot.accuracies, groups, fresh)
    before = few_shot.untrained(lab, settings, "sparse-maml-plus")
    lab.stage("draws", _drawn, groups["sparse-maml-plus"], before)
    lab.stage("closed", _closed, groups)
    lab.stage("controls", few_shot.controls, settings, groups["sparse-maml"], fresh)


def _drawn(trained: list[Any], before: list[Any]) -> dict[str, list[float]]:
    """Percent of entries that differ between two drawn masks, before and after meta-learning; mean |sigma| after it."""
    return {
        "differ before": [_differ(one) for one in before],
        "differ after": [_differ(one) for one in trained],
        "sigma": [float(one.method.sigma.detach().abs().mean()) for one in trained],
    }


def _differ(learner: Any) -> float:
    from mesascope.training.randomness import drawing_from

    changed = total = 0
    for draw in range(DRAWS):
        with drawing_from(0, "draws", draw, learner.method.mu.device):
            first, second = (learner.method.factors(learner.model) for _ in range(2))
        changed += sum(int((first[name] != second[name]).sum()) for name in first)
        total += sum(one.numel() for one in first.values())
    return 100 * changed / total


def _closed(groups: dict[str, list[Any]]) -> dict[str, list[float]]:
    return {name: [100 * one.sparsity() for one in group] for name, group in groups.items()}


def _before_and_after(both: Any, y: str) -> Lines:
    line = study.Line([0, 1], both, "trained", "each seed", each=True, marks="o-")
    return Lines("", "", y, [line], limits={"xticks": (0, 1), "xticklabels": ("before", "after")})


def _at_the_mean(underlying: Any) -> Any:
    """Underlying numbers m at the mean, without noise."""
    return lambda self, parameters: {
        name: self.maps[key] @ self.mu + self.numbers[key]
        for name, key in ((name, name.replace(".", "/")) for name in parameters)
    }


STUDY = Study(
    name="sparse-maml-plus",
    source=f"{few_shot.THESIS}, {SECTION}",
    presets={
        "quick": FewShot(**few_shot.QUICK), "paper": FewShot(), "mini-imagenet": FewShot(**few_shot.MINI_IMAGENET),
    },
    measure=measure, trainings=3, premises=("learns",), quantifier="median",
    claims=(
        few_shot.PERMUTED, few_shot.UNSEEN, few_shot.SHUFFLED, few_shot.masks_learn("sparse-maml"),
        Claim("draws-differ", "control: before meta-learning, two draws of masks differ in more than a tenth of their "
              "entries", draws["differ before"], above(10.0), ours("control: masks are drawn"), about="algorithms"),
    ),
    figures=(
        study.Figure("noise", "Above: spread of the noise that sparse-MAML+ draws masks from, and percent of entries "
                     "in which two drawn masks differ, before and after meta-learning. Below: accuracy on new "
                     "classes, and percent of entries closed. Each seed. Thesis: Table 4.3.", (
            _before_and_after(draws["sigma"].map(lambda sigma: np.stack([np.ones(len(sigma)), sigma], axis=1),
                                                 "before and after"), "mean |sigma|"),
            _before_and_after(beside([draws["differ before"], draws["differ after"]], "both"),
                              "entries that differ (%)"),
            strip("accuracy (%)", COMPARED, lambda r: {"each seed": r["accuracy"]}),
            strip("closed (%)", COMPARED, lambda r: {"each seed": r["closed"]}),
        ), columns=2, size=(11, 6.2), shared_legend=True, claims=(
            few_shot.learns(accuracy["sparse-maml"]),
            Claim("noise-vanishes", "the mean |sigma| of the noise falls to less than a tenth of its start",
                  draws["sigma"], below(0.1), printed(SECTION)),
            Claim("masks-settle", "masks of two draws differ at the end in less than a tenth of the entries that they "
                  "differ in at the start",
                  draws["differ after"] / draws["differ before"], below(0.1), printed(SECTION), former="ours, held"),
            Claim("noise-helps", "sparse-MAML+, which draws its masks during training, is more accurate than "
                  "sparse-MAML, which does not",
                  few_shot.points_above("sparse-maml-plus", "sparse-maml", names=COMPARED), above(0.0),
                  printed(SECTION)),
            Claim("as-sparse", "sparse-MAML and rectified rates close shares of entries that differ by at most three "
                  "points, twice what the thesis prints",
                  closed["sparse-maml"] - closed["sparse-relu-maml"], two_sided(3.0, around=0.0),
                  printed(SECTION), former="five points, failed",
                  reported=study.Reported((1.51, 1.45), "printed, 1-shot and 5-shot miniImageNet")),
            Claim("all-close", "each of the three methods closes more than half of all entries",
                  beside([closed[name] for name in COMPARED], "percent of entries closed by each"), above(50.0),
                  printed("Table 4.3"),
                  reported=study.Reported((77.53, 79.04, 78.05, 73.53, 74.98, 76.66), "printed, 1-shot and 5-shot "
                                          "miniImageNet")),
        )),
    ),
    unlike={preset: f"{lacks}, and SGD for sparse-MAML+" for preset, lacks in few_shot.UNLIKE.items()},
    deviations={
        "paper": (
            "Omniglot in place of miniImageNet, with fewer filters and outer steps, as in sparse-maml.",
            "sparse-MAML+ learns by Adam, as the others do, in place of SGD with momentum.",
        ),
        "mini-imagenet": (*few_shot.MINI_DEVIATIONS, "SGD has momentum 0.9, not Nesterov's form of it."),
    },
    mutations=(
        *few_shot.BUGS, few_shot.AVERAGED, few_shot.UPHILL,
        Mutation("masks are not drawn but are those of the mean",
                 "mesascope.meta.preconditioning:SparseMAMLPlus.underlying", _at_the_mean),
    ),
    mutated=few_shot.SMALL,
)  # fmt: skip

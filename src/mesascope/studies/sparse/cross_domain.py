"""Do learners that chose where to learn carry over to other images than those they meta-learned on?

Thesis: Table 4.4. Networks that meta-learned on one dataset adapt to tasks of others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.errors import ArgumentTypeError, refuse, require_count, require_number, shown
from mesascope.evidence import Claim, above, ours, printed, stage
from mesascope.reports import Figure
from mesascope.studies.sparse.few_shot import (
    METHODS,
    MINI_IMAGENET,
    QUICK,
    THESIS,
    FewShot,
    accuracies,
    meta_trained,
    untrained,
)
from mesascope.study import Study, strip

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

TABLE = "Table 4.4"
COMPARED = ("maml", "anil", "boil", "sparse-maml", "sparse-relu-maml")
# Those that are measured before they learn, too.
CONTROLS = ("maml", "sparse-maml")


@dataclass(frozen=True)
class CrossDomain(FewShot):
    """Settings of the study."""

    domains: tuple[str, ...] = ("mnist", "fashion-mnist", "digits")
    """Datasets that tasks are drawn from after meta-learning; the one that was learned on comes besides."""
    domain_ways: int = 5
    """Classes of their tasks."""
    turned: bool = False
    """Whether images turned by quarters are classes of their own there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.domains, str) or not self.domains:
            raise ArgumentTypeError(f"domains must be names, but is {shown(self.domains)}: pass ('mnist',), say.")
        require_count("domain_ways", self.domain_ways, least=2)
        require_number("domain_ways", self.domain_ways, most=self.ways)


def measure(lab: Lab, settings: CrossDomain) -> None:
    """Train each method once, and put tasks of every dataset to it."""
    drawn = {"own": lab.draw(settings.family("test"), settings.tasks, "eval")}
    for domain in settings.domains:  # before anything trains, as a dataset may be missing
        family = dataclasses.replace(
            settings.family("test"), dataset=domain, ways=settings.domain_ways, rotations=settings.turned
        )
        found = lab.draw(family, settings.tasks, f"eval {domain}")
        if (width := found.xq.shape[-1]) != (own := drawn["own"].xq.shape[-1]):
            refuse("domains", f"have images of {own} numbers", f"{domain}, of {width}", "leave it out")
        drawn[f"on {domain}"] = padded(found, settings.ways)
    groups = {name: meta_trained(lab, name, settings, name) for name in COMPARED}
    groups |= {f"untrained {name}": untrained(lab, settings, name) for name in CONTROLS}
    for name, episode in drawn.items():
        accuracies(lab, name, groups, episode)


def padded(drawn: Any, ways: int) -> Any:
    """Tasks of fewer classes for networks of more outputs: targets of the others are 0 in contexts."""
    from torch.nn.functional import pad

    y = drawn.context.y
    return drawn._replace(context=drawn.context._replace(y=pad(y, (0, ways - y.shape[-1]))))


def _elsewhere(r: Any) -> list[Any]:
    return [r[name] for name in r if name.startswith("on ")]


def _above(name: str, *others: str) -> Any:
    """Points of accuracy above others, by seed, and dataset and other."""
    return lambda r: np.stack([one[name] - one[other] for one in _elsewhere(r) for other in others], axis=1)


CLAIMS = (
    Claim(
        "learns", "networks that adapt tell most images of the dataset that they meta-learned on", stage("own")["maml"],
        above(50.0), ours("premise"), quantifier="mean",
    ),
    Claim(
        "carries-over", "what sparse-MAML learned there helps on each other dataset",
        _above("sparse-maml", "untrained sparse-maml"), above(0.0), ours("premise"),
        measures="points of accuracy above that of the same networks before: mean over seeds of each",
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "maml-carries-over", "and so does what MAML learned", _above("maml", "untrained maml"), above(0.0),
        ours("its use there"),
        measures="points of accuracy above that of the same networks before: mean over seeds of each",
        quantifier="mean", premises=("learns",),
    ),
    *(
        Claim(
            f"above-{name}",
            f"sparse-MAML tells more than {METHODS[name]} on each dataset that they did not meta-learn on",
            _above("sparse-maml", name), above(0.0), printed(TABLE),
            measures=f"points of accuracy above {METHODS[name]}: mean over seeds of each", quantifier="mean",
            premises=("learns", "carries-over"),
        )
        for name in ("maml", "anil", "boil")
    ),
    Claim(
        "relu-above-maml", "so do rectified rates", _above("sparse-relu-maml", "maml"), above(0.0),
        ours("the other sparse method"),
        measures="points of accuracy of sparse-ReLU-MAML above MAML: mean over seeds of each", quantifier="mean",
        premises=("learns", "carries-over"),
    ),
)  # fmt: skip


SHOWN = {name: METHODS[name] for name in COMPARED} | {
    f"untrained {name}": f"{METHODS[name]},\nuntrained" for name in CONTROLS
}


def _by_dataset(r: Any) -> dict[str, Any]:
    return {"learned on": r["own"], **{name: r[name] for name in r if name.startswith("on ")}}


FIGURES = (
    Figure(
        "domains", "Accuracy of each method on tasks of the dataset that it meta-learned on, and of others, each seed; "
        "MAML and sparse-MAML also before they learn. Thesis: Table 4.4.",
        (strip("accuracy (%)", SHOWN, _by_dataset),),
        columns=1, size=(9, 3.8), claims=tuple(claim.id for claim in CLAIMS),
    ),
)  # fmt: skip

STUDY = Study(
    name="cross-domain",
    source=f"{THESIS}, section 4.3.4",
    presets={
        "quick": CrossDomain(**QUICK | {"domains": ("digits",), "turned": True}),
        "paper": CrossDomain(),
        "mini-imagenet": CrossDomain(**MINI_IMAGENET, domains=("tiered-imagenet", "cub", "cars")),
    },
    measure=measure,
    trainings=5,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "From Omniglot to MNIST, Fashion-MNIST and digits in place of miniImageNet to TieredImageNet, CUB and "
        "Cars, whose images cannot be passed on and whose numbers the thesis' text has lost.",
    ),
)  # fmt: skip

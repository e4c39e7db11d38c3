"""Does sparse-MAML transfer to datasets on which it did not meta-learn?

Thesis: Table 4.4. Networks that meta-learned on one dataset adapt to tasks of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from mesascope import study, tasks
from mesascope.errors import refuse
from mesascope.studies.sparse import few_shot
from mesascope.studies.sparse.few_shot import FewShot
from mesascope.study import Claim, Figure, Reading, Study, above, frozen, ours, printed, stage, strip

TABLE = "Table 4.4"
COMPARED = {name: few_shot.METHODS[name] for name in ("maml", "anil", "boil", "sparse-maml", "sparse-relu-maml")}
# Methods that are also measured before meta-learning.
CONTROLS = ("maml", "sparse-maml")
UNTRAINED = tuple(f"untrained {name}" for name in CONTROLS)
SHOWN = COMPARED | {f"untrained {name}": f"{COMPARED[name]},\nuntrained" for name in CONTROLS}
CARRIES = ("learns", "carries-over")


@frozen
class CrossDomain(FewShot):
    domains: study.NonEmpty[str] = ("mnist",)
    """Datasets of the test tasks, besides the dataset of meta-learning."""
    shown: tuple[str, ...] = ("fashion-mnist", "digits")  # Further datasets, shown in the figure but not judged.
    domain_ways: study.Several = 5  # Classes of a test task on another dataset.
    turned: bool = False  # On other datasets, images turned by 90, 180 and 270 degrees are further classes.

    def __post_init__(self) -> None:
        if self.domain_ways > self.ways:
            refuse("domain_ways", f"be at most {self.ways}", self.domain_ways, "lower it")


def measure(lab: study.Lab, settings: CrossDomain) -> None:
    own = settings.family("test")
    fresh = {"own": few_shot.own_tasks(lab, own, settings.tasks)}
    known = lab.draw(own, 1, "looked at").xq.shape[-1]
    for domain in (*settings.domains, *settings.shown):  # before anything trains, as a dataset may be missing
        changes = {"dataset": domain, "ways": settings.domain_ways, "rotations": settings.turned}
        other = dataclasses.replace(own, **changes)
        argument, place = ("domains", "on") if domain in settings.domains else ("shown", "also on")
        if (width := lab.draw(other, 1, "looked at").xq.shape[-1]) != known:
            rule = f"have images of {known} numbers, as {settings.dataset}"
            refuse(argument, rule, {domain: width}, f"leave {domain} out, or save its pictures in as many colours")
        fresh[f"{place} {domain}"] = padded(few_shot.own_tasks(lab, other, settings.tasks, domain), settings.ways)
    groups = {name: few_shot.meta_trained(lab, name, settings, name) for name in COMPARED}
    groups |= {f"untrained {name}": few_shot.untrained(lab, settings, name) for name in CONTROLS}
    for name, draw in fresh.items():
        lab.stage(name, few_shot.accuracies, groups, draw)
    lab.stage("controls", few_shot.controls, settings, groups["maml"], fresh["own"])


def padded(fresh: Callable[[int], tasks.Episode], ways: int) -> Callable[[int], tasks.Episode]:
    """Function that draws from ``fresh`` and pads context targets with zeros to a network's ``ways`` classes."""
    from torch.nn.functional import pad

    def drawn(place: int) -> tasks.Episode:
        found = fresh(place)
        y = found.context.y
        return found._replace(context=found.context._replace(y=pad(y, (0, ways - y.shape[-1]))))

    return drawn


def _elsewhere(r: Any, places: tuple[str, ...] = ("on ",)) -> dict[str, Any]:
    """Accuracies on datasets without meta-learning, by stage."""
    return {name: r[name] for name in r if name.startswith(places)}


def _above(name: str, *others: str) -> Reading:
    return few_shot.points_above(name, *others, of=lambda r: _elsewhere(r).values())


STUDY = Study(
    name="cross-domain",
    source=f"{few_shot.THESIS}, section 4.3.4",
    presets={
        "quick": CrossDomain(**few_shot.QUICK | {"domains": ("digits",), "shown": (), "turned": True}),
        "paper": CrossDomain(),
        "mini-imagenet": CrossDomain(**few_shot.MINI_IMAGENET, domains=("tiered-imagenet", "cub", "cars"), shown=()),
    },
    measure=measure, trainings=5, premises=("learns",), quantifier="median",
    claims=(few_shot.PERMUTED, few_shot.UNSEEN, few_shot.SHUFFLED, few_shot.masks_learn("sparse-maml")),
    figures=(
        Figure("domains", "Accuracy of each method on tasks of the dataset that it meta-learned on, and of others, "
               "each seed; MAML and sparse-MAML also before they learn. Thesis: Table 4.4.",
               (strip("accuracy (%)", SHOWN,
                      lambda r: {"learned on": r["own"], **_elsewhere(r, ("on ", "also on "))}),),
               size=(9, 3.8), claims=(
            Claim("learns", "adapted networks classify more than half of the images of their own dataset correctly",
                  stage("own", maml="accuracy of MAML in percent")["maml"], above(50.0), ours("premise")),
            Claim("carries-over", "on each dataset without meta-learning, sparse-MAML is more accurate than untrained "
                  "sparse-MAML and untrained MAML",
                  _above("sparse-maml", *UNTRAINED), above(0.0), ours("premise")),
            Claim("maml-carries-over", "MAML is more accurate on each other dataset than the same networks, and those "
                  "of sparse-MAML, before meta-learning",
                  _above("maml", *UNTRAINED), above(0.0), ours("its use there")),
            *(
                    Claim(f"above-{name}", f"sparse-MAML is more accurate than {COMPARED[name]} on datasets that "
                          "neither was trained on",
                          _above("sparse-maml", name), above(0.0), printed(TABLE), premises=CARRIES)
                    for name in ("maml", "anil", "boil")
                ),
            Claim("relu-above-maml", "rectified rates are more accurate than MAML on each dataset that neither was "
                  "trained on",
                  _above("sparse-relu-maml", "maml"), above(0.0), ours("the other sparse method"), premises=CARRIES),
        )),
    ),
    unlike=few_shot.UNLIKE,
    deviations={
        "paper": (
            "From Omniglot to MNIST in place of miniImageNet to TieredImageNet, CUB and Cars, whose images cannot be "
            "passed on and whose numbers the thesis' text has lost. Fashion-MNIST and digits are shown, not judged.",
            "Networks of 32 filters take 5 inner steps and 1,500 outer ones, on twenty characters from one example of "
            "each, and are judged on tasks of five classes.",
        ),
        "mini-imagenet": few_shot.MINI_DEVIATIONS,
    },
    mutations=(*few_shot.BUGS, few_shot.UNADAPTED),
    mutated=few_shot.SMALL | {"domain_ways": 2},
)  # fmt: skip

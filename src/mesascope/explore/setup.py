"""State that all panels share: the chosen learner, the settings, the task, and the learners to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch

from mesascope import learners
from mesascope.errors import ArgumentError
from mesascope.explore.plots import sentence
from mesascope.explore.ranges import CHOSEN, TASKS, at_share, within
from mesascope.explore.subjects import InOwnDtype, Subject, changed
from mesascope.identification import Candidate, candidates
from mesascope.streams import stream
from mesascope.tasks import Episode
from mesascope.tasks.calling import check_tasks, sample_tasks

LEAST_RIDGE = 1e-3  # smallest ridge penalty


class Setup:
    """Settings of one page, with the tasks and learners that they determine.

    Args:
        subjects: learners of the first menu, by name; the page begins with the first one.

    ``values`` are the positions of the sliders: ``scale`` (input scale relative to training), ``noise``, ``pairs``,
    ``depth``, ``eta``, ``gamma``, and ``free`` (0 to 1, position of the compared learner's parameter in its range).
    """

    def __init__(self, subjects: Mapping[str, Subject]) -> None:
        self.subjects, self.seed, self.chosen = dict(subjects), 0, CHOSEN
        self.values: dict[str, float] = {}
        self._listeners: list[Callable[[], None]] = []
        self._extended = False
        self.choose(next(iter(self.subjects)))

    def choose(self, name: str) -> None:
        """Show another learner, with the settings of its training."""
        self.name, self.subject = name, self.subjects[name]
        self.__dict__.pop("catalogue", None)
        family, algorithm = self.subject.family, self.subject.algorithm
        gamma = algorithm.gamma
        self.values = {
            "scale": 1.0, "noise": getattr(family, "noise", 0.0), "pairs": self.subject.one_task.context.x.shape[-2],
            "depth": algorithm.steps, "eta": float(algorithm.eta.detach().max()),
            "gamma": 0.0 if gamma is None else float(gamma.detach().max()), "free": 0.5,
        }  # fmt: skip
        if self.chosen not in self.catalogue:
            self.chosen = next(iter(self.catalogue))

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of a setting."""
        self._listeners.append(listener)

    def notify(self) -> None:
        for listener in self._listeners:
            listener()

    @cached_property
    def catalogue(self) -> dict[str, Candidate]:
        """Candidates of `identify` by name; scikit-learn's are added by `extend`."""
        return {one.name: one for one in candidates(self.subject.family, sklearn=self._extended)}

    def extend(self) -> None:
        """Add scikit-learn's estimators, if installed, to the catalogue; their import takes a second."""
        candidates(self.subject.family)
        self._extended = True
        self.__dict__.pop("catalogue", None)

    @property
    def has(self) -> dict[str, bool]:
        """Map from slider name to True if the slider has an effect on the tasks or on a learner."""
        family = self.subject.family
        fields = {"scale": "x_scale", "noise": "noise", "pairs": "n_context"}
        found = {name: hasattr(family, field) for name, field in fields.items()}
        return found | {"depth": True, "eta": True, "gamma": self.subject.has_gamma, "free": self.free is not None}

    def family(self, **fields: Any) -> Any:
        """Task family at the sliders' positions."""
        family = self.subject.family
        own = {
            "x_scale": self.values["scale"] * getattr(family, "x_scale", 1.0), "noise": self.values["noise"],
            "n_context": int(self.values["pairs"]),
        }  # fmt: skip
        return changed(family, **(own | fields))

    def task(self) -> Episode:
        """One task with one query, in float64; more pairs extend the same task."""
        most = self.family(n_context=self.subject.most_pairs, n_query=1)
        episode = sample_tasks(most, 1, stream(self.seed, "explore-task")).to(torch.float64)
        check_tasks(episode)
        pairs = int(self.values["pairs"]) if self.has["pairs"] else episode.context.x.shape[-2]
        context = type(episode.context)(*(part[:, :pairs] for part in episode.context))
        return Episode(context, episode.xq[:, :1], episode.yq[:, :1])

    def tasks(self) -> Episode:
        """Fresh tasks, in float64; all settings use the same random stream."""
        episode = sample_tasks(self.family(), TASKS, stream(self.seed, "explore-tasks"))
        check_tasks(episode)
        return episode.to(torch.float64)

    def learners(self) -> dict[str, Any]:
        """Learners by role, each called with float64 contexts."""
        depth, family = int(self.values["depth"]), self.subject.family
        ridge = max((self.values["noise"] / getattr(family, "w_scale", 1.0)) ** 2, LEAST_RIDGE)
        return {
            "network": InOwnDtype(self.subject.at_depth(depth)),
            "algorithm": self.subject.algorithm_at(depth, self.values["eta"], self.values["gamma"]),
            "ridge": learners.LeastSquares(ridge),
            "chosen": self.chosen_learner()[0],
        }

    @property
    def titles(self) -> dict[str, str]:
        """Names of the learners by role."""
        named = {"network": self.subject.title, "algorithm": self.subject.algorithm_title}
        return named | {"ridge": "ridge regression", "chosen": f"{self.chosen} (chosen)"}

    @property
    def free(self) -> str | None:
        """Parameter of the chosen learner that has no slider of its own, or None."""
        own = [name for name in self.catalogue[self.chosen].free if name not in ("eta", "gamma", "steps")]
        return own[0] if own else None

    def chosen_learner(self) -> tuple[Any, dict[str, float]]:
        """The learner of the second menu and its parameters.

        ``eta``, ``gamma`` and ``steps`` come from their sliders, the first other parameter from the slider ``free``.
        Further parameters are in the middle of their ranges.
        """
        one = self.catalogue[self.chosen]
        sliders = {"eta": self.values["eta"], "gamma": self.values["gamma"], "steps": self.values["depth"]}
        parameters = {
            name: within(span, sliders[name]) if name in sliders else at_share(span, self._share(name))
            for name, span in one.free.items()
        }
        try:
            return one.build(**parameters), parameters
        except ArgumentError as error:
            raise ArgumentError(f"{one.name} must be built from the sliders, but is not ({sentence(error)})") from None

    def _share(self, name: str) -> float:
        return self.values["free"] if name == self.free else 0.5

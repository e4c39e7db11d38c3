"""Bugs planted in a study one at a time, and the claims that detect them."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import require_instance
from mesascope.evidence import Arrays, Estimates, judge
from mesascope.progress import tracked
from mesascope.runs import Run, open_run
from mesascope.studies.lab import Lab, by_seed
from mesascope.studies.running import new_run
from mesascope.study import Mutation, Study


@dataclass(frozen=True)
class Mutated:
    """Verdicts of a study's claims with each of its bugs planted.

    Args:
        study: name of the study.
        sound: verdict of each claim without a bug, by the claim's id.
        turned: for each bug, the claims that hold only without it, with their verdicts under the bug.
    """

    study: str
    sound: dict[str, str]
    turned: dict[str, dict[str, str]]

    @property
    def unnoticed(self) -> list[str]:
        """Bugs that no claim detects: each claim that holds without the bug holds with it, too."""
        return [bug for bug, claims in self.turned.items() if not claims]


def claims_text(claims: Mapping[str, str]) -> str:
    """Claims with their verdicts: ``learns (fails), deeper (undecided)``."""
    return ", ".join(f"{name} ({verdict})" for name, verdict in claims.items())


def mutate(study: Study) -> Mutated:
    """Plant each bug of a study, then measure and judge its claims.

    The preset is quick, with the settings of `Study.mutated`. Three general bugs are planted, one at a time, beside
    those that the study declares. (1) Results of another run are copied into the folder. If the study trains networks:
    (2) every seed gets the first seed's measurements; (3) networks have random initial weights. Runs are temporary.

    Raises:
        ArgumentTypeError: ``study`` is not a `Study`.
    """
    require_instance("study", study, Study)
    for mutation in study.mutations:
        mutation.check()
    settings = dataclasses.replace(study.presets["quick"], **study.mutated)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        run = new_run(study, "quick", settings, out=root / "sound")
        sound = _verdicts(study, settings, run)
        turned = {}
        for mutation in tracked(_bugs(study, run), f"bugs of {study.name}"):
            planted = root / "planted"
            copy = new_run(study, "quick", settings, out=planted) if mutation.anew else _unmeasured(run, planted)
            with mutation.planted():
                found = _verdicts(study, settings, copy)
            turned[f"{mutation.bug} (anew)" if mutation.anew else mutation.bug] = _turned(sound, found)
            shutil.rmtree(planted)
        stale = _turned(sound, _of_other_run(study, settings, run, root / "stale"))
    return Mutated(study.name, sound, {**turned, "results of another run lie in the folder": stale})


def _verdicts(study: Study, settings: Any, run: Run) -> dict[str, str]:
    study.measure(Lab(run, settings.seeds), settings)
    return _judged(study, run)


def _judged(study: Study, run: Run) -> dict[str, str]:
    return {record["id"]: record["verdict"] for record in judge(study.claims, run.results, "quick")}


def _turned(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {name: after[name] for name, verdict in before.items() if verdict == "holds" != after[name]}


def _bugs(study: Study, run: Run) -> list[Mutation]:
    """Declared bugs of a study and, if it trains networks, the general bugs that it does not declare itself."""
    own = {mutation.bug for mutation in study.mutations}
    general = GENERAL if (run.path / "checkpoints").is_dir() else ()
    return [*study.mutations, *(mutation for mutation in general if mutation.bug not in own)]


def _unmeasured(run: Run, folder: Path) -> Run:
    """Copy of a run with its trained networks, but without results."""
    shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("results", "figures", ".lock"))
    return open_run(folder)


def _of_other_run(study: Study, settings: Any, run: Run, folder: Path) -> dict[str, str]:
    """Verdicts of a run whose results are those of another run, begun with another seed."""
    other = new_run(study, "quick", settings, seed=1, out=folder)
    shutil.copytree(run.path / "results", other.path / "results")
    return _judged(study, open_run(other.path))


def _equal_seeds(stage: Any) -> Any:
    """Replace the measurements of all seeds by those of the first; training curves stay."""
    return lambda self, name, compute, *arguments: stage(self, name, lambda: _first_for_all(compute(*arguments)))


def _first_for_all(found: Arrays | Estimates | Mapping[str, Any]) -> Arrays | Estimates:
    """Measurements with every replicate replaced by the first."""
    if isinstance(found, Estimates):
        first = [found.names.index(name) for name in found.names]
        covariance = found.covariance[..., first, :][..., first]
        return Estimates(found.names, found.mean[..., first], covariance, found.n, found.cases)
    arrays = found if isinstance(found, Arrays) else by_seed(found)
    axes = arrays.axes
    equal = {
        name: np.broadcast_to(one[:1], one.shape) if "seed" in axes[name][:1] and "step" not in axes[name] else one
        for name, one in arrays.items()
    }
    return Arrays(equal, **{name: " ".join(own) for name, own in axes.items()})


def _untrained(train: Any) -> Any:
    """Replace trained networks by networks with random initial weights."""

    def initial(self: Any, name: str, network: Any, *arguments: Any, **options: Any) -> list[Any]:
        found = train(self, name, network, *arguments, **options)
        if not hasattr(network, "build"):
            return found
        seeds = options.get("seeds") or self.seeds
        return [network.build(self.stream("a bug", seed)).to(self.device) for seed in seeds][: len(found)]

    return initial


GENERAL = (
    Mutation("all seeds are equal", "mesascope.studies.lab:Lab.stage", _equal_seeds),
    Mutation("networks are untrained", "mesascope.studies.lab:Lab.train", _untrained),
)

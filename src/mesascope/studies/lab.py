"""Trainings and measurements of a study, which survive a kill."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, overload

import torch

from mesascope.errors import NumericalError, RunDirectoryError, refuse, require_instance
from mesascope.evidence import Arrays, Stage
from mesascope.evidence.numbers import unmasked
from mesascope.progress import STOP, part_of, tell
from mesascope.records import to_record
from mesascope.runs import Run
from mesascope.runs.checkpoints import TrainingCheckpoints, rewind
from mesascope.runs.files import write_json
from mesascope.runs.results import record_hash
from mesascope.runs.schemas import require_name
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.studies.reuse import Finished, Watch, close_rows, logged_rows, take_over
from mesascope.tasks import Episode, Family, SequenceFamily
from mesascope.training import Ensemble, ParameterGroup, ProgressBar, Training, half_mse, train


class Lab:
    """Seeds, device, trainings, stages and draws of a run, as a study uses them.

    After an interruption, finished trainings and stages are loaded, and the interrupted training continues from its
    last checkpoint. The code of a study is therefore written as one uninterrupted run.
    """

    def __init__(self, run: Run, seeds: int, trainings: int = 0) -> None:
        self.run, self.trainings = run, trainings
        self.seed: int = run.config["seed"]
        self.seeds = [self.seed + index for index in range(seeds)]
        self.device = torch.device(run.config["device"])
        self._begun = 0
        self._stages: set[str] = set()
        self._trained: dict[str, tuple[str, Ensemble]] = {}  # name and networks of each training, by hash of its record
        self._losses: dict[str, Any] = {}  # loss of each training, by hash of its record

    @overload
    def draw(self, family: Family, tasks: int, name: str) -> Episode: ...
    @overload
    def draw(self, family: SequenceFamily, tasks: int, name: str) -> Tensor: ...
    def draw(self, family: Family | SequenceFamily, tasks: int, name: str) -> Episode | Tensor:
        """Fresh tasks; each ``name`` and each seed of a run has its own tasks."""
        self._require_same_images(family)
        return family.sample(tasks, self.stream(name))

    def _require_same_images(self, family: Any) -> None:
        """Raise if a family's images have changed since this run first used them."""
        if (own := getattr(family, "images_checksum", None)) is None:
            return
        known = self.run.config.get("images", {})
        name = record_hash(to_record(family))
        if known.get(name, own) != own:
            raise RunDirectoryError(
                f"the images of {family.dataset} must be those that {self.run.path} was begun with, but have changed: "
                f"restore them, or {self.run.afresh}."
            )
        if name not in known:
            self.run.config["images"] = {**known, name: own}
            write_json(self.run.path / "config.json", self.run.config)

    def stream(self, name: str, step: int = 0) -> torch.Generator:
        """Random generator for a name and a step, on the run's device."""
        return stream(self.seed, name, step, self.device)

    def train(
        self,
        name: str,
        network: Any,
        family: Family | SequenceFamily,
        training: Training,
        *,
        seeds: Sequence[int] | None = None,
        loss: Callable[[Any, Any], Tensor] = half_mse,
        parameter_groups: Sequence[ParameterGroup] = (),
        accumulate: int = 1,
        autocast: torch.dtype | None = None,
        watch: Watch | Sequence[Watch] | None = None,
        start: tuple[str, Sequence[Any]] | None = None,
    ) -> list[Any]:
        """Train networks of ``network.build`` on ``family``, one per seed, or load finished ones; return the networks.

        The config of the networks, the family, the training, the seeds and the name of the start identify a training.
        Calls with equal values share one training, unless their ``watch`` returns other numbers.

        Args:
            name: name of the training in metrics and checkpoints.
            network: registered config of the networks.
            seeds: the run's seeds if None.
            loss: see `mesascope.train`; its name is part of the identity.
            parameter_groups, accumulate, autocast: see `mesascope.train`; part of the identity if they are given.
            start: name and networks (one per seed) to start from, in place of ``network.build``.
            watch: function from a network to numbers to log during training, or one function per seed; stage ``name``
                has the numbers by seed and step.

        Raises:
            NumericalError: a network diverged.
        """
        require_name("the name of a training", name)
        self._require_same_images(family)
        seeds = list(seeds or self.seeds)
        identity = {"network": network, "family": family, "training": training, "seeds": seeds}
        if loss is not half_mse:
            identity["loss"] = _name_of(loss)
        if parameter_groups:
            identity["parameter_groups"] = [dataclasses.asdict(group) for group in parameter_groups]
        if accumulate > 1 or autocast is not None:
            identity["in_parts"] = [accumulate, str(autocast)]
        build = network.build
        if start is not None:
            identity["start"], build = start[0], _one_after_another(start[1])
        record = to_record(identity)
        watches = list(watch) if isinstance(watch, Sequence) else [watch] * len(seeds) if watch else []
        key = record_hash(record)
        if self._losses.setdefault(key, loss) != loss and not isinstance(loss, functools.partial):
            refuse("loss", "have a name of its own", identity["loss"], "define each loss by def, with another name")
        if key in self._trained and watches and not self._logs(key, watches, seeds, training.steps):
            key = f"{key} {name}"  # the same training again, to log other numbers
        if key in self._trained:
            self._stages.discard(name)  # trainings with equal values share one stage
        else:
            trained = self.resumed(
                name, record, training, watches,
                lambda log, checkpoints, bar: train(
                    build, family, training, seeds, loss=loss, parameter_groups=parameter_groups,
                    accumulate=accumulate, autocast=autocast, device=self.device, evaluate=log,
                    checkpoints=checkpoints, observe=bar,
                ),
            )  # fmt: skip
            self._trained[key] = name, trained
        logged, trained = self._trained[key]
        if watch is not None:
            self.stage(name, lambda: self.run.curves(logged))
        return trained.members()

    def _logs(self, key: str, watches: Sequence[Watch], seeds: Sequence[int], steps: int) -> bool:
        """True if the last metrics of a training contain what ``watches`` return, or if it has none yet."""
        name, trained = self._trained[key]
        rows = [row for row in self.run.metrics(name) if row["step"] == steps]
        if not rows:
            return True
        own = logged_rows(name, steps, seeds, watches, trained.members())
        names = set().union(*own)
        return close_rows(own, [{key: row[key] for key in names & set(row)} for row in rows])

    def untrained(self, network: Any) -> list[Any]:
        """Untrained networks of ``network.build``, one per seed, each with its own random weights."""
        return [network.build(self.stream("untrained", index)).to(self.device) for index in range(len(self.seeds))]

    def stage(self, name: str, compute: Callable[..., Stage | Mapping[str, Any]], *arguments: Any) -> Stage:
        """Arrays of stage ``name``, computed by ``compute(*arguments)`` if missing or if code or settings have changed.

        If ``compute`` returns a mapping of arrays (first axis: the seed) and numbers, it is converted to `Arrays`.

        Raises:
            ArgumentError: the study has another stage or watched training of this name.
        """
        if name in self._stages:
            refuse("the name of a stage", "be new in its study", name, "choose another")
        self._stages.add(name)
        results = self.run.results
        if not results.is_current(name):
            if STOP.is_set():
                raise KeyboardInterrupt
            again = " again, as its code or settings have changed" if name in results else ""
            tell(f"measuring: {name}{again}")
            with self._timed(name), part_of(f"measuring {name}"):
                found = compute(*arguments)
                results.save(name, found if isinstance(found, Stage) else by_seed(found))
        return results[name]

    def resumed(
        self,
        name: str,
        record: Any,
        training: Training,
        watches: Sequence[Watch],
        go: Callable[..., Ensemble],
        finished: Finished | None = None,
    ) -> Ensemble:
        """Run ``go(log, checkpoints, bar)`` from its last checkpoint, logging the numbers of ``watches``.

        Args:
            record: identity of the training, with its ``seeds``.
            watches: for each network, the function that returns the numbers to log.
            finished: see `take_over`.
        """
        checkpoints = TrainingCheckpoints(self.run.path / "checkpoints" / name, record, self.device)
        seeds, found = record["seeds"], checkpoints.load()
        if found is None and take_over(self.run, name, checkpoints, finished or (lambda _: watches), training):
            found = checkpoints.load()
        rewind(self.run, name, found[0] if found else None, training, seeds[: len(watches)])

        def log(step: int, ensemble: Ensemble) -> None:
            self.run.append_metrics(logged_rows(name, step, seeds, watches, ensemble.members()))

        self._begun += 1
        count = f"{self._begun} of {self.trainings}" if self._begun <= self.trainings else f"{self._begun}"
        with self._timed(f"train {name}"), ProgressBar(f"training {count}: {name}", training.steps) as bar:
            trained = go(log, checkpoints, bar)
        _require_no_divergence(name, seeds, trained)
        return trained

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.run.add_time(stage, time.monotonic() - start)


def _require_no_divergence(name: str, seeds: Sequence[int], trained: Ensemble) -> None:
    """Raise if a network diverged: its weights are those before the divergence, or not finite."""
    for index, (seed, step) in enumerate(zip(seeds, trained.diverged, strict=True)):
        if step or not all(bool(weight[index].isfinite().all()) for weight in trained.weights.values()):
            when = f" at step {step}" if step else ""
            raise NumericalError(
                f"training {name} must not diverge, but the network of seed {seed} did{when}: start anew with a lower "
                "learning rate."
            )


def _name_of(loss: Any) -> str:
    """Name of a loss; of a `functools.partial`, with its arguments."""
    if isinstance(loss, functools.partial):
        given = [*map(repr, loss.args), *(f"{name}={value!r}" for name, value in loss.keywords.items())]
        return f"{_name_of(loss.func)}({', '.join(given)})"
    return getattr(loss, "__name__", type(loss).__name__)


def _one_after_another(networks: Sequence[Any]) -> Callable[[torch.Generator], Any]:
    """Function that returns a copy of the next network at each call."""
    copies = iter([copy.deepcopy(network) for network in networks])
    return lambda generator: next(copies)


def by_seed(arrays: Mapping[str, Any]) -> Arrays:
    """Arrays whose axes are seed, row, column and entry, in this order; numbers have no axis."""
    require_instance("the result of a stage", arrays, Mapping, "return arrays by name, or Estimates")
    named = {str(name): unmasked(array) for name, array in arrays.items()}
    axes = {name: " ".join(("seed", "row", "column", "entry")[: array.ndim]) for name, array in named.items()}
    return Arrays(named, **axes)

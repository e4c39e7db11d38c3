"""``mesascope identify``."""

from __future__ import annotations

import ast
import importlib
import operator
import os
import shlex
import sys
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import tyro

from mesascope.errors import ArgumentError, refuse, require_choice
from mesascope.loading import module_of

FAMILY = "linear-regression(n_context=10, d_in=10)"


@dataclass(frozen=True)
class Identify:
    """Name the learning algorithm that a learner runs, from its predictions.

    LEARNER is a network in a run folder (RUN, RUN:TRAINING or RUN:TRAINING:SEED) or a Python object (FILE.py:NAME or
    MODULE:NAME).
    """

    learner: tyro.conf.Positional[str] = ""
    """RUN, RUN:TRAINING, RUN:TRAINING:SEED, FILE.py:NAME or MODULE:NAME; omit it with --sklearn, --openai or
    --local."""
    sklearn: str | None = None  # scikit-learn regressor to identify in place of LEARNER, such as "Ridge(alpha=1.0)".
    openai: str | None = None
    """Language model to identify in place of LEARNER: its name on a server with OpenAI's protocol, and optional request
    fields, such as "NAME(reasoning_effort='low', seed=3, max_tokens=2000)". The key is read from OPENAI_API_KEY."""
    local: str | None = None
    """Language model to run in this process in place of LEARNER: a transformers folder or a GGUF file, and optional
    settings, such as "FOLDER(dtype='bfloat16', max_tokens=24)"."""
    base_url: str | None = None
    """URL of the server for --openai, such as http://localhost:8000/v1; OpenAI's own if not given."""
    format: str = "words-to-numbers"  # Format of prompts: words-to-numbers, letters, compact or digits.
    answers: Path = Path("runs/answers.jsonl")
    """File that stores the answers of a language model; prompts in it are not sent again."""
    estimate: Annotated[float | None, tyro.conf.arg(metavar="PRICE")] = None
    """Print the prompt tokens of the budget and their cost at this price per million; call no model."""
    checkpoints: bool = False
    """Identify each checkpoint that the run kept (train with --training.keep 0 100 1000, for example)."""
    layers: bool = False  # Identify the predictions after each layer of the network.
    family: str | None = None
    """Tasks, such as "linear-regression(n_context=20, d_in=5)". Default: the training tasks of the run, otherwise 10
    pairs with 10 inputs."""
    candidates: str | None = None
    """Names of candidates, separated by commas, such as "gradient-descent, lasso"; the whole catalogue if not given."""
    budget: int | None = None
    """Maximum number of predictions, required with --openai and --local. Default: 1,200 for a scikit-learn estimator,
    otherwise 100 tasks per condition and part."""
    tolerance: float = 0.01
    """Maximum mean squared difference between learner and approximation, relative to the variance of predictions."""
    level: float = 0.01  # Error rate, both for ruling out the true algorithm and for naming a false one.
    seed: int = 0  # Seed of all tasks.
    device: str | None = None  # Device to compute on, such as cuda; if not given, the device of the weights.
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder to write; runs/identify-<time> if not given."""

    def __call__(self) -> None:
        from mesascope.identification import along, by_layer, identify
        from mesascope.runs.files import as_path
        from mesascope.runs.run import require_new
        from mesascope.tasks.calling import LearnerError

        if self.out is not None:
            require_new(as_path("--out", self.out))
        name, learner, family = self._learner()
        given = self.family is not None or family is not None
        family = family_of(self.family, family)
        self._move(learner)
        if self.estimate is not None:
            print(learner.estimate(family, self.budget, self.estimate))
            return
        found: Any
        settings = {"tolerance": self.tolerance, "level": self.level, "name": name, "device": self.device}
        try:
            if self.checkpoints or self.layers:
                over = "step" if self.checkpoints else "layer"
                several = learner if self.checkpoints else by_layer(learner, family)
                found = along(several, family, self._chosen(family), self.budget, self.seed, over=over, **settings)
            else:
                found = identify(learner, family, self._chosen(family), self.budget, self.seed, **settings)
        except LearnerError as error:
            if given:
                raise
            raise ArgumentError(f"{str(error).rstrip('.')}, by --family (default: {FAMILY}).") from error
        print(found)
        if self.openai or self.local:
            print(learner.table())
        folder = f"identify-{datetime.now():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
        run = found.save(self.out or Path("runs") / folder, self._asked(family))
        print(f"run directory: {run.path}\nreport: {(run.path / 'report.html').resolve()}")
        if sys.stdout.isatty():  # a long table scrolls the verdict off the screen
            print(found.verdict)

    def _learner(self) -> tuple[str, Any, Any]:
        """Name, learner and, for a network of a run, its task family."""
        flags = {"--sklearn": self.sklearn, "--openai": self.openai, "--local": self.local}
        others = [flag for flag, value in {"--layers": self.layers, **flags}.items() if value]
        if self.checkpoints and others:
            raise ArgumentError(f"--checkpoints goes without {others[0]}, but both are given: leave one out.")
        given = [word for word in (self.learner, *(flag for flag, value in flags.items() if value)) if word]
        if len(given) != 1:
            raise ArgumentError(
                f"mesascope identify takes one learner, but is given {' and '.join(given) or 'none'}: pass one."
            )
        for flag, value, users in (
            ("--base-url", self.base_url, ("--openai",)),
            ("--estimate", self.estimate, ("--openai", "--local")),
        ):
            if value is not None and given[0] not in users:
                raise ArgumentError(f"{flag} goes with {' or '.join(users)}, but there is none: pass {users[0]} MODEL.")
        if self.openai or self.local:
            return self._language_model(given[0])
        return regressor_of(self.sklearn) if self.sklearn else learner_of(self.learner, self.checkpoints)

    def _move(self, learner: Any) -> None:
        """Move the weights of a network, or of its checkpoints, to ``--device``."""
        if self.device is None:
            return
        from torch import nn

        from mesascope.streams import generator_on

        generator_on(self.device)
        for one in learner.values() if self.checkpoints else [learner]:
            if isinstance(one, nn.Module):
                one.to(self.device)

    def _language_model(self, flag: str) -> tuple[str, Any, None]:
        from mesascope.adapters import FORMATS, LocalModel, from_text, openai_model

        require_choice("--format", self.format, FORMATS)
        if self.budget is None:
            raise ArgumentError(
                f"--budget must be given with {flag}, but is not: pass --budget 1000, say (one call per prediction)."
            )
        model, settings = call_of(flag, self.openai or self.local or "")
        try:
            if self.local and not os.path.exists(os.path.expanduser(model)):
                refuse("--local", "be a folder or a GGUF file that exists", model, "correct the path")
            if self.local:
                ask = LocalModel(model, **{"device": self.device or "cpu", **settings})
            else:  # stop an answer before the next pair
                stop = [FORMATS[self.format].between]
                ask = openai_model(model, base_url=self.base_url, **{"stop": stop, **settings})
        except TypeError as error:
            raise ArgumentError(f"{flag} must be a model with its settings, but is not ({error}): mend it.") from None
        self.answers.parent.mkdir(parents=True, exist_ok=True)
        learner = from_text(ask, self.format, cache=self.answers, most_calls=self.budget, batched=bool(self.local))
        return model, learner, None

    def _chosen(self, family: Any) -> Any:
        from mesascope.identification import candidates

        if self.candidates is None:
            return None
        known = {one.name: one for one in candidates(family)}
        names = [name.strip() for name in self.candidates.split(",")]
        for name in names:
            require_choice("--candidates", name, known)
        return [known[name] for name in names]

    def _asked(self, family: Any) -> dict[str, Any]:
        from mesascope.errors import MesascopeError
        from mesascope.records import to_record

        try:
            tasks = to_record(family)
        except MesascopeError:  # a custom family
            tasks = repr(family)
        return {
            "learner": self.openai or self.local or self.sklearn or self.learner, "family": tasks,
            "candidates": self.candidates, "budget": self.budget,
            "tolerance": self.tolerance, "level": self.level, "command": shlex.join(["mesascope", *sys.argv[1:]]),
        }  # fmt: skip


def learner_of(words: str, checkpoints: bool = False) -> tuple[str, Any, Any]:
    """Name, learner and, for a network of a run, its task family; with ``checkpoints``, a dict of learners by step.

    Paths may contain colons, so ``words`` is split at its last colons.
    """
    for colons in range(3):
        place, *names = words.rsplit(":", colons)
        if os.path.isdir(place):
            return _network(place, checkpoints, *names)
    if checkpoints:
        refuse("LEARNER", "be a network of a run with --checkpoints", words, "pass RUN:TRAINING:SEED")
    place, _, attribute = words.rpartition(":")
    try:
        found = operator.attrgetter(attribute)(_module(place or words))
    except (ImportError, AttributeError, OSError) as error:
        if not place and words.endswith(".py") and os.path.isfile(words):
            refuse("LEARNER", "name an object of its file", words, f"pass {words}:NAME")
        said = f"{place or words} holds no {attribute!r}" if isinstance(error, AttributeError) else error
        raise ArgumentError(
            f"LEARNER must be RUN, RUN:TRAINING, RUN:TRAINING:SEED, FILE.py:NAME or MODULE:NAME, but is {words} "
            f"({said}): check the path and the name."
        ) from None
    return attribute, found, None


def _module(place: str) -> ModuleType:
    """Import a module by its name or by the path of its file."""
    if place.endswith(".py"):
        return module_of(Path(place))
    if not all(map(str.isidentifier, place.split("."))):
        raise ImportError(f"there is no folder {place}")
    sys.path.insert(0, os.getcwd())
    return importlib.import_module(place)


def _network(place: str, checkpoints: bool, training: str = "", seed: str = "") -> tuple[str, Any, Any]:
    from mesascope.records import from_record

    run, training, number = _training(place, training, seed)
    steps, record = run.steps(training), run.record(training)
    name, family = f"{training} of seed {number}", from_record(record["family"])
    learner: Any
    if checkpoints:
        if len(steps) == 1:
            raise ArgumentError(
                f"--checkpoints needs two or more checkpoints, but {training} in {place} has only that of "
                f"step {steps[0]}: train with --training.keep 0 100 1000, say."
            )
        learner = {step: run.network(training, number, step) for step in steps}
    else:
        learner, plan = run.network(training, number), record.get("training")
        if isinstance(plan, dict) and steps[-1] < plan.get("steps", 0):
            name += f", after step {steps[-1]} of {plan['steps']}"
    return name, learner, family


def _training(place: str, training: str, seed: str) -> tuple[Any, str, int]:
    """The run, the name of one of its trainings, and a seed."""
    from mesascope.runs import open_run

    run = open_run(place)
    known = run.trainings
    if not training:
        if len(known) != 1:
            names = ", ".join(known) or "none"
            raise ArgumentError(
                f"LEARNER must name a training of the run ({names}), but names none: pass RUN:TRAINING."
            )
        training = known[0]
    if seed and not seed.isdecimal():
        refuse("LEARNER", "end in a seed, a whole number", seed, "pass RUN:TRAINING:0, say")
    return run, training, int(seed or 0)


def regressor_of(words: str) -> tuple[str, Any, None]:
    from mesascope.adapters import from_sklearn
    from mesascope.errors import require_package

    name, values = call_of("--sklearn", words)
    known = dict(require_package("sklearn.utils", "--sklearn", "sklearn").all_estimators(type_filter="regressor"))
    require_choice("--sklearn", name, known)
    try:
        return words, from_sklearn(known[name](**values)), None
    except TypeError as error:
        raise ArgumentError(
            f"--sklearn must be a regressor with its arguments, but is not ({error}): correct it."
        ) from None


def family_of(words: str | None, own: Any, usual: str = FAMILY) -> Any:
    """Task family of --family; if it is not given, the learner's ``own``, or else the ``usual`` one."""
    from mesascope.records import from_record

    if words is None and own is not None:
        return own
    kind, values = call_of("--family", words or usual)
    return from_record({"kind": "family", "name": kind, **values})


def call_of(flag: str, words: str) -> tuple[str, dict[str, Any]]:
    """Parse ``name(key=value, ...)`` into a name and plain values, without running it.

    >>> call_of("--family", "linear-regression(n_context=20, noise=0.1)")
    ('linear-regression', {'n_context': 20, 'noise': 0.1})
    """
    name, _, rest = words.strip().partition("(")
    try:
        call: Any = ast.parse(f"f({rest or ')'}", mode="eval").body
        unnamed, values = call.args, {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, AttributeError):
        refuse(flag, "be name(key=value, ...) with plain values", words, "correct it")
    if unnamed:
        refuse(flag, "name each value, as f(x=1) does", words, f"write {name.strip()}(NAME={ast.unparse(unnamed[0])})")
    return name.strip(), values

"""Running a study: from settings to a finished run."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mesascope.errors import (
    ArgumentError,
    ArgumentTypeError,
    MesascopeError,
    MissingPackageError,
    RunDirectoryError,
    one_line,
    refuse,
    require_choice,
    require_count,
    require_instance,
    require_number,
)
from mesascope.evidence import Claim, Verdicts, judge, least_replicates
from mesascope.loading import file_of
from mesascope.modes import guarded
from mesascope.progress import tell
from mesascope.records import flat, from_record, to_record
from mesascope.reports import draw_figures, write_report
from mesascope.runs import Run, open_run
from mesascope.runs.files import as_path
from mesascope.runs.provenance import available_device, made_with, tell_of_other_machine
from mesascope.runs.results import code_of
from mesascope.study import Study


def new_run(
    study: Study,
    preset: str,
    settings: Any = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path | None = None,
    reuse: str | Path | None = None,
    command: str = "",
) -> Run:
    """Create the folder of a run of a study; runs/<study>-<preset>-<time>-<id> if ``out`` is None.

    Args:
        settings: the preset's settings if None.
        seed: first seed of the networks; it determines every random draw.
        device: auto (a GPU if there is one), cpu, cuda, cuda:1, ...
        reuse: folder of a run whose finished trainings are copied if their records (networks, family, training, seeds)
            are equal. The code of that run may differ.
        command: command line, stored in config.json.

    Raises:
        RunDirectoryError: ``out`` is not empty, or ``reuse`` has no checkpoints.
    """
    require_instance("study", study, Study)
    require_instance("command", command, str)
    require_choice("preset", preset, study.presets)
    settings = study.presets[preset] if settings is None else settings
    require_instance("settings", settings, type(study.presets[preset]))
    if not isinstance(getattr(settings, "seeds", None), int):
        refuse("settings", "have a whole number seeds, of networks per training", settings, "add the field")
    seed = int(require_number("seed", require_count("seed", seed, least=0), most=2**62))
    _require_record(study, settings)
    made = made_with(available_device(device), command)
    id, created = uuid.uuid4().hex, datetime.fromisoformat(made["created"])
    path = Path("runs") / f"{study.name}-{preset}-{created.astimezone():%Y%m%d-%H%M%S}-{id[:6]}" if out is None else out
    config = {
        "id": id,
        "study": study.name,
        "preset": preset,
        "settings": to_record(settings),
        "seed": seed,
        "question": study.question,
        "source": study.source,
        "deviations": [*study.departures(preset), *_overridden(settings, study.presets[preset])],
        **made,
    }
    if study.defined_in:
        code = code_of(file_of(study.defined_in))
        config |= {"defined_in": study.defined_in} | ({"code": code} if code else {})
    if reuse is not None:
        other = open_run(reuse)
        if not (other.path / "checkpoints").is_dir():
            raise RunDirectoryError(
                f"reuse must name a run with its checkpoints, but {other.path} has none (published runs leave them "
                "out): pass another run, or none."
            )
        config["reuse"] = os.path.relpath(other.path.resolve(), as_path("the folder of a run", path).resolve())
    return Run.create(path, "study", config)


def _overridden(settings: Any, preset: Any) -> list[str]:
    """Sentence about settings that are not those of the preset; none if all are."""
    each = ", ".join(_changes(settings, preset))
    return [f"Settings of this run that are not those of its preset (in brackets): {each}."] if each else []


def resume_run(path: str | Path, study: Study | None = None, device: str | None = None) -> tuple[Study, Any, Run]:
    """Study, settings and run to continue; raise if files of the run have changed.

    Args:
        study: the run's study, if its file has moved since the run began.
        device: device on which an unfinished run continues; the run's own if None.
    """
    require_instance("study", study, Study | None)
    run, asked = Run.open(path), study
    if study is None or run.config["kind"] != "study" or study.name != run.config["study"]:
        study = run.study
    assert isinstance(study, Study)
    settings = run.settings_of(study)
    _require_preset(study, run)
    device = available_device(device or run.config["device"])
    run.check()
    if device != run.config["device"] and asked in (None, study) and not run.is_complete:
        with run.lock():
            run.move_device(device)
    if asked in (None, study):
        tell_of_other_machine(run)
    file = file_of(study.defined_in)
    if not run.is_complete and study.defined_in and run.config.get("code") not in (None, code_of(file)):
        tell(
            f"mesascope: {file} has changed since the run began: trainings that are "
            "finished or begun stay as the former code made them; if the change affects them, start a new run."
        )
    return study, settings, run


def _require_record(study: Study, settings: Any) -> None:
    """Raise if settings could not be read back from the run's config."""
    try:
        again = from_record(json.loads(json.dumps(to_record(settings), allow_nan=False)), type(settings))
    except (MesascopeError, ValueError, TypeError) as error:
        again, why = None, one_line(error)
    else:
        why = "other values come back"
    if again != settings:
        raise ArgumentError(
            f"settings of {study.name} must be readable from a record of numbers and texts, but are not ({why}): give "
            "each field a value of its declared type, and no field the name kind."
        )


@guarded
def run_study(study: Study, settings: Any, run: Run) -> Verdicts:
    """Train, measure, judge, draw and report; return the claims' records. Finished trainings and stages are kept.

    A run that is finished, and has all its stages, is judged, drawn and reported anew; nothing is trained or measured.
    Products and convolutions of float32 use IEEE float32, never TF32, regardless of PyTorch's settings.
    """
    from mesascope.ops.products import exact_convolutions, exact_products
    from mesascope.studies.lab import Lab

    try:
        with run.lock(), exact_products(), exact_convolutions():
            run.move_study(study.defined_in)
            if run.is_complete:
                _tell_of_lost_networks(run)
            else:
                _tell_of_few_seeds(study, settings.seeds)
                count = study.trainings if isinstance(study.trainings, int) else study.trainings(settings)
                study.measure(Lab(run, settings.seeds, count), settings)
            run.discard_parts()
            return _concluded(study, run)
    except (ArgumentError, ArgumentTypeError, MissingPackageError):  # errors that no check of the settings found
        run.discard_if_new()
        raise


def _tell_of_few_seeds(study: Study, seeds: int) -> None:
    """Print the claims that need more seeds for a verdict, and how many they need."""
    known = {claim.id: claim for claim in study.claims}

    def needed(claim: Claim) -> int:
        own = least_replicates(claim) if claim.over == "seeds" else 0
        return max([own, *(needed(known[premise]) for premise in claim.premises or ())])

    few = {claim.id: least for claim in study.claims if (least := needed(claim)) > seeds}
    if few:
        groups = [(least, [name for name in few if few[name] == least]) for least in sorted({*few.values()})]
        wanted = "; ".join(f"at least {least} for {', '.join(names)}" for least, names in groups)
        undecided = "no claim can" if len(few) == len(known) else f"{len(few)} of {len(known)} claims cannot"
        tell(f"mesascope: seeds is {seeds}, so {undecided} be decided: pass {wanted}.")


def _tell_of_lost_networks(run: Run) -> None:
    from mesascope.runs.checkpoints import lost

    names = [stage.removeprefix("train ") for stage in run.times if stage.startswith("train ")]
    if missed := lost(run.path / "checkpoints", names):
        tell(
            f"mesascope: {run.path / 'checkpoints'} must hold the trained networks, but those of {', '.join(missed)} "
            "are missing or damaged: the finished run keeps its claims, arrays and figures."
        )


def conclude(study: Study, run: Run) -> Verdicts:
    """Judge, draw and report a finished run anew, by today's claims and figures; return the claims' records.

    The caller holds the run's lock.

    Raises:
        RunDirectoryError: a file is damaged or missing; the claims are left as they were.
    """
    run.check()
    if not run.is_complete:
        raise RunDirectoryError(
            f"{run.path / 'results'} must hold the stages that the run finished with, but does not: --resume the run "
            "to measure those that are missing."
        )
    return _concluded(study, run)


def _concluded(study: Study, run: Run) -> Verdicts:
    run.check()
    records = judge_run(study, run)
    run.forget_figures([figure.name for figure in study.figures])
    draw_figures(run, study.figures)
    run.save_claims(records)
    write_report(run, method=study.method)
    return records


def judge_run(study: Study, run: Run) -> Verdicts:
    """Judge the claims of a study on the arrays of a run."""
    _require_preset(study, run)
    list(run.results)  # a damaged index raises here, rather than at each claim
    shown = {one.id: figure.name for figure in study.figures for one in figure.claims if isinstance(one, Claim)}
    records = judge(study.claims, run.results, run.config["preset"])
    return Verdicts({**record, "figure": shown.get(record["id"], "")} for record in records)


def _require_preset(study: Study, run: Run) -> None:
    """Raise if the study does not have the preset of the run."""
    if run.config["preset"] not in study.presets:
        raise RunDirectoryError(
            f"{run.path / 'config.json'} must name a preset of {study.name}, but names {run.config['preset']!r}: "
            "restore it, or start a new run."
        )


def changed_settings(study: Study, run: Run) -> list[str]:
    """Differences of a run's settings from its preset, each as ``name value (value in the preset)``."""
    _require_preset(study, run)
    return _changes(run.settings_of(study), study.presets[run.config["preset"]])


def _changes(settings: Any, preset: Any) -> list[str]:
    return [f"{name} {own} ({ours})" for name, own, ours in differences(to_record(settings), to_record(preset))]


def differences(own: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Fields in which two records differ: (dotted name, value in ``own``, value in ``other``), None if missing."""
    mine, theirs = flat(own), flat(other)
    names = dict.fromkeys([*mine, *theirs])
    return [(name, mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)]


def close(one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str], tolerance: float) -> bool:
    """True if two records have the same numbers under these keys, to a relative tolerance."""
    pairs = [(one[key], other[key]) for key in keys]
    return all(a == b or (None not in (a, b) and math.isclose(a, b, rel_tol=tolerance)) for a, b in pairs)

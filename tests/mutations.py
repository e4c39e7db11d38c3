"""Bugs planted one at a time, and the claims that each of them turns: ``make mutations``, or names of studies.

A bug is planted while a study measures networks that were trained without it, or trains them anew, at the smallest
settings that decide its claims (`Study.mutated`). A claim turns if it holds without the bug and does not with it.
Beside the bugs that a study declares, three are planted in each study that trains: equal seeds, untrained networks, and
results of another run. Prints a table, and writes the rows of these studies to docs/mutations.md. Exits with 1 if a bug
turns no claim, or if a study has fewer than five bugs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mesascope import records
from mesascope.evidence import Arrays, Estimates, judge
from mesascope.runs import Run, open_run
from mesascope.studies import Lab, new_run
from mesascope.studies.lab import by_seed
from mesascope.study import Mutation
from mesascope.training import keep_freed_memory

ABOUT = (
    "Each bug is planted while a study measures networks that were trained without it, or, where it says *anew*, while "
    "they train, too. A claim turns if it holds without the bug and does not with it: it *fails*, or is *undecided*, "
    "mostly because its premise no longer holds. Written by `make mutations`. The bugs of `pretrained`, which needs a "
    "language model, are planted by `tests/test_pretrained_study.py` on a small stand-in."
)
PAGE = Path(__file__).parent.parent / "docs" / "mutations.md"
# Bugs that each study has at least.
LEAST = 5
# Studies whose bugs are planted by tests, on a stand-in for what the study needs.
ELSEWHERE = ("pretrained",)
# Studies that take longest, which begin first.
LONGEST = ("deep", "language-mesa", "curvature", "finite-tasks", "layernorm")


def equal_seeds(stage: Any) -> Any:
    """Measurements of the first seed for all seeds; curves of training remain."""

    def equal(self: Any, name: str, compute: Any, *arguments: Any) -> Any:
        return stage(self, name, lambda: first_for_all(compute(*arguments)))

    return equal


def first_for_all(found: Arrays | Estimates | Mapping[str, Any]) -> Arrays | Estimates:
    """Measurements whose replicates are all the first one."""
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


def untrained(train: Any) -> Any:
    """Networks at their initial weights, in place of those that were trained."""

    def initial(self: Any, name: str, network: Any, *arguments: Any, **options: Any) -> list[Any]:
        found = train(self, name, network, *arguments, **options)
        if not hasattr(network, "build"):
            return found
        seeds = options.get("seeds") or self.seeds
        return [network.build(self.stream("a bug", seed)).to(self.device) for seed in seeds][: len(found)]

    return initial


GENERAL = (
    Mutation("all seeds are equal", "mesascope.studies.lab:Lab.stage", equal_seeds),
    Mutation("networks are untrained", "mesascope.studies.lab:Lab.train", untrained),
)


def measured(study: Any, settings: Any, run: Run, mutation: Mutation | None = None) -> dict[str, str]:
    """Verdicts of a run measured with a bug in place."""
    with mutation.planted() if mutation else contextlib.nullcontext():
        study.measure(Lab(run, settings.seeds), settings)
        return {record["id"]: record["verdict"] for record in judge(study.claims, run.results, "quick")}


def without_results(run: Run, folder: Path) -> Run:
    """A copy of a run with its networks and nothing measured."""
    shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("results", "figures", ".lock"))
    return open_run(folder)


def stale(study: Any, settings: Any, run: Run, folder: Path) -> dict[str, str]:
    """Verdicts of a run whose files are those of another run, begun with another seed."""
    other = new_run(study, "quick", settings, seed=1, out=folder)
    shutil.copytree(run.path / "results", other.path / "results")
    found = judge(study.claims, open_run(other.path).results, "quick")
    return {record["id"]: record["verdict"] for record in found}


def turned(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [f"{name} ({after[name]})" for name, verdict in before.items() if verdict == "holds" != after[name]]


def bugs(study: Any) -> list[Mutation]:
    """Bugs that a study declares, and the general ones that it does not declare in a form of its own."""
    own = {mutation.bug for mutation in study.mutations}
    return [*study.mutations, *(mutation for mutation in GENERAL if study.trainings and mutation.bug not in own)]


def rows_of(study: Any, root: Path) -> Iterator[tuple[str, list[str]]]:
    """Claims that do not hold without a bug, and then each bug and the claims that it turns."""
    settings = dataclasses.replace(study.presets["quick"], **study.mutated)
    sound = new_run(study, "quick", settings, out=root / study.name)
    before = measured(study, settings, sound)
    yield "", [f"{name} ({verdict})" for name, verdict in before.items() if verdict != "holds"]
    for index, mutation in enumerate(bugs(study)):
        folder = root / f"{study.name}-{index}"
        run = new_run(study, "quick", settings, out=folder) if mutation.anew else without_results(sound, folder)
        yield (
            mutation.bug + (" (anew)" if mutation.anew else ""),
            turned(before, measured(study, settings, run, mutation)),
        )
        shutil.rmtree(run.path)
    yield "results of another run lie in the folder", turned(before, stale(study, settings, sound, root / "stale"))
    shutil.rmtree(root)


def judged(name: str) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """Plant the bugs of a study, in a process of its own; return lines to print, and the rows of the table."""
    torch.set_num_threads(1)
    keep_freed_memory()
    study, start = records.registered("study")[name], time.process_time()
    lines, rows = [], []
    for bug, claims in rows_of(study, Path(tempfile.mkdtemp())):
        took = f"{time.process_time() - start:.0f} s"
        if bug:
            rows.append((bug, name, claims))
            lines.append(f"  {bug}: {', '.join(claims) or 'NOTHING'} ({took})")
        else:
            lines.append(f"{name}: without a bug, all claims hold except {', '.join(claims) or 'none'} ({took})")
        start = time.process_time()
    return lines, rows


def write(rows: list[tuple[str, str, list[str]]]) -> str:
    """Replace the rows of these studies on the page, and return it."""
    known, done = records.registered("study"), {name for _, name, _ in rows}
    former = [tuple(line[2:-2].split(" | ")) for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = [row for row in former[1:] if row[1] in known and row[1] not in done]
    found += [(bug, name, ", ".join(claims) or "**none**") for bug, name, claims in rows]
    page = ["# Bugs and the claims they turn", "", ABOUT, ""]
    page += ["| bug | study | claims that no longer hold |", "|---|---|---|"]
    page += [f"| {' | '.join(row)} |" for row in sorted(found, key=lambda row: list(known).index(row[1]))]
    PAGE.write_text("\n".join(page) + "\n")
    return "\n".join(page)


def main() -> int:
    known = records.registered("study")
    parser = argparse.ArgumentParser(description="Plant bugs in studies, and list the claims that each of them turns.")
    parser.add_argument("studies", nargs="*", help="names of studies; all if none is given")
    parser.add_argument("--workers", type=int, default=2, help="studies side by side, one thread each")
    options = parser.parse_args()
    if unknown := sorted({*options.studies} - {*known}):
        parser.error(f"studies must be registered, but {', '.join(unknown)} are not: choose from {', '.join(known)}.")
    names = options.studies or [name for name in known if name not in ELSEWHERE]
    # One more than these: results of another run.
    if few := {name: len(bugs(known[name])) + 1 for name in names if len(bugs(known[name])) + 1 < LEAST}:
        listed = ", ".join(f"{name} has {count}" for name, count in few.items())
        print(f"Each study must have at least {LEAST} bugs, but {listed}: declare more in its Study(mutations=...).")
        return 1
    names = sorted(names, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    rows: list[tuple[str, str, list[str]]] = []
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(judged, name) for name in names]):
            lines, own = done.result()
            rows += own
            print("\n".join(lines), flush=True)
            page = write(rows)
    print(page)
    return int(any(not claims for _, _, claims in rows))


if __name__ == "__main__":
    sys.exit(main())

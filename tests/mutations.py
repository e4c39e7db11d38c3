"""Bugs planted one at a time, and the claims that each of them turns: ``make mutations``, or names of studies.

A bug is planted while a study measures networks that were trained without it, or trains them anew, at the smallest
settings that decide its claims (`Study.mutated`). A claim turns if it holds without the bug and does not with it.
Beside the bugs that a study declares, three are planted in each study that trains: equal seeds, untrained networks, and
results of another run. Prints a table, and writes the rows of these studies to docs/mutations.md. Exits with 1 if a bug
turns no claim.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mesascope import records
from mesascope.evidence import judge_all
from mesascope.runs import Run, open_run
from mesascope.studies import Lab, new_run
from mesascope.study import Mutation
from mesascope.training import keep_freed_memory

ABOUT = (
    "Each bug is planted while a study measures networks that were trained without it, or, where it says *anew*, while "
    "they train, too. A claim turns if it holds without the bug and does not with it: it *fails*, or is *undecided*, "
    "mostly because its premise no longer holds. Written by `make mutations`."
)


def equal_seeds(train: Any) -> Any:
    def equal(self: Any, *arguments: Any, **options: Any) -> list[Any]:
        networks = train(self, *arguments, **options)
        return [networks[0]] * len(networks)

    return equal


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
    Mutation("all seeds are equal", "mesascope.studies.lab:Lab.train", equal_seeds),
    Mutation("networks are untrained", "mesascope.studies.lab:Lab.train", untrained),
)


def measured(study: Any, settings: Any, run: Run, mutation: Mutation | None = None) -> dict[str, str]:
    """Verdicts of a run measured with a bug in place."""
    with mutation.planted() if mutation else contextlib.nullcontext():
        study.measure(Lab(run, settings.seeds), settings)
        return {record["id"]: record["verdict"] for record in judge_all(study.claims, "quick", run.results)}


def without_results(run: Run, folder: Path) -> Run:
    """A copy of a run with its networks and nothing measured."""
    shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("results", "figures", ".lock"))
    return open_run(folder)


def stale(study: Any, settings: Any, run: Run, folder: Path) -> dict[str, str]:
    """Verdicts of a run whose files are those of another run, begun with another seed."""
    other = new_run(study, "quick", settings, seed=1, out=folder)
    shutil.copytree(run.path / "results", other.path / "results")
    found = judge_all(study.claims, "quick", open_run(other.path).results)
    return {record["id"]: record["verdict"] for record in found}


def turned(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [f"{name} ({after[name]})" for name, verdict in before.items() if verdict == "holds" != after[name]]


def rows_of(study: Any, root: Path) -> Iterator[tuple[str, list[str]]]:
    """Each bug, and the claims that it turns."""
    settings = dataclasses.replace(study.presets["quick"], **study.mutated)
    sound = new_run(study, "quick", settings, out=root / study.name)
    before = measured(study, settings, sound)
    print(f"{study.name}: {sum(v == 'holds' for v in before.values())} of {len(before)} claims hold", flush=True)
    trains = any((sound.path / "checkpoints").glob("*"))
    own = {mutation.bug for mutation in study.mutations}
    general = [mutation for mutation in GENERAL if trains and mutation.bug not in own]
    for index, mutation in enumerate((*study.mutations, *general)):
        folder = root / f"{study.name}-{index}"
        run = new_run(study, "quick", settings, out=folder) if mutation.anew else without_results(sound, folder)
        yield (
            mutation.bug + (" (anew)" if mutation.anew else ""),
            turned(before, measured(study, settings, run, mutation)),
        )
        shutil.rmtree(run.path)
    yield "results of another run lie in the folder", turned(before, stale(study, settings, sound, root / "stale"))
    shutil.rmtree(root)


def main() -> int:
    keep_freed_memory()
    rows: list[tuple[str, str, list[str]]] = []
    known = records.registered("study")
    for name, study in known.items():
        if not study.mutations or (sys.argv[1:] and name not in sys.argv[1:]):
            continue
        start = time.monotonic()
        for bug, claims in rows_of(study, Path(tempfile.mkdtemp())):
            rows.append((bug, name, claims))
            print(f"  {bug}: {', '.join(claims) or 'NOTHING'} ({time.monotonic() - start:.0f} s)", flush=True)
            start = time.monotonic()
    path = Path(__file__).parent.parent / "docs" / "mutations.md"
    former = [tuple(line[2:-2].split(" | ")) for line in path.read_text().splitlines() if line.startswith("| ")]
    done = {name for _, name, _ in rows}
    kept = [row for row in former[1:] if row[1] in known and known[row[1]].mutations and row[1] not in done]
    found = kept + [(bug, name, ", ".join(claims) or "**none**") for bug, name, claims in rows]
    page = ["# Bugs and the claims they turn", "", ABOUT, ""]
    page += ["| bug | study | claims that no longer hold |", "|---|---|---|"]
    page += [f"| {' | '.join(row)} |" for row in sorted(found, key=lambda row: list(known).index(row[1]))]
    path.write_text("\n".join(page) + "\n")
    print("\n".join(page))
    return int(any(not claims for _, _, claims in rows))


if __name__ == "__main__":
    sys.exit(main())

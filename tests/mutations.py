"""Bugs planted one at a time, and the claims that each of them turns: ``make mutations``, or names of studies.

See `mesascope.studies.mutate`. Prints what each bug turns, and writes the rows of these studies to docs/mutations.md.
Exits with 1 if a bug turns no claim, and with 2 if a study declares fewer than five bugs of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch
from test_pretrained_study import with_stand_in
from test_studies import own_bugs

from mesascope import records
from mesascope.studies import Mutated, mutate
from mesascope.studies.mutating import claims_text
from mesascope.training import keep_freed_memory

ABOUT = (
    "Each bug is planted while a study measures networks that were trained without it, or, where it says *anew*, while "
    "they train, too. A claim turns if it holds without the bug and does not with it: it *fails*, or is *undecided*, "
    "mostly because its premise no longer holds. Written by `make mutations`; `mesascope mutate STUDY` plants the bugs "
    "of one study, or of your own. Those of `pretrained`, which needs a language model, are planted with a small "
    "stand-in for the model."
)
PAGE = Path(__file__).parent.parent / "docs" / "mutations.md"
# Bugs that each study declares at least.
LEAST = 5
# Studies with a stand-in for what they need.
STANDING_IN = {"pretrained": with_stand_in}
# Studies that take longest, which begin first.
LONGEST = ("deep", "language-mesa", "curvature", "finite-tasks", "layernorm")


def mutated(name: str) -> tuple[Mutated, float]:
    """Plant the bugs of a study, in a process of its own; return what they turn, and the seconds of processor."""
    torch.set_num_threads(1)
    keep_freed_memory()
    study = records.registered("study")[name]
    with STANDING_IN.get(name, partial(contextlib.nullcontext, study))() as known:
        return mutate(known), time.process_time()


def write(found: list[Mutated]) -> None:
    """Replace the rows of these studies on the page."""
    known, done = list(records.registered("study")), {one.study for one in found}
    former = [tuple(line[2:-2].split(" | ")) for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in former[1:] if row[1] in known and row[1] not in done]
    rows += [(bug, one.study, claims_text(claims) or "**none**") for one in found for bug, claims in one.turned.items()]
    page = ["# Bugs and the claims they turn", "", ABOUT, ""]
    page += ["| bug | study | claims that no longer hold |", "|---|---|---|"]
    page += [f"| {' | '.join(row)} |" for row in sorted(rows, key=lambda row: known.index(row[1]))]
    PAGE.write_text("\n".join(page) + "\n")


def main() -> int:
    known = records.registered("study")
    parser = argparse.ArgumentParser(description="Plant bugs in studies, and list the claims that each of them turns.")
    parser.add_argument("studies", nargs="*", help="names of studies; all if none is given")
    parser.add_argument("--workers", type=int, default=2, help="studies side by side, one thread each")
    options = parser.parse_args()
    if unknown := sorted({*options.studies} - {*known}):
        parser.error(f"studies must be registered, but {', '.join(unknown)} are not: choose from {', '.join(known)}.")
    names = options.studies or list(known)
    few = [f"{name} ({len(own_bugs(known[name]))})" for name in names if len(own_bugs(known[name])) < LEAST]
    if few:
        parser.error(f"each study must declare at least {LEAST} bugs of its own, but {', '.join(few)} declare fewer: "
                     "add some to Study(mutations=...).")  # fmt: skip
    names = sorted(names, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    found: list[Mutated] = []
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(mutated, name) for name in names]):
            one, seconds = done.result()
            found.append(one)
            write(found)
            print(f"{one.study}: {len(one.turned)} bugs, {len(one.unnoticed)} unnoticed, {seconds:.0f} s", flush=True)
            for bug in one.unnoticed:
                print(f"  unnoticed: {bug}", flush=True)
    return int(any(one.unnoticed for one in found))


if __name__ == "__main__":
    sys.exit(main())

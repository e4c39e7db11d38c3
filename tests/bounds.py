"""Claims that changed after a run was published with them, from the history of docs/results.

Run by hand: ``python tests/bounds.py``. Prints tables of bounds, kinds of source and quantifiers that changed, and of
claims that were first judged on published arrays; docs/evidence.md states which bounds moved in substance.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOG = ("log", "--first-parent", "--reverse", "--format=@%h %as", "--name-only", "--", "docs/results")


class Published(NamedTuple):
    """A claim as a commit published it; ``measured`` if the commit also changed arrays or curves of the run."""

    commit: str
    record: dict[str, Any]
    measured: bool


Claims = dict[tuple[str, str], list[Published]]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout


def has_history() -> bool:
    """True in a complete clone; False in a shallow one and in a source archive."""
    asked = ("rev-parse", "--is-shallow-repository", "--show-toplevel")
    return bool(shutil.which("git")) and git(*asked).split() == ["false", str(ROOT)]


def history() -> Claims:
    """Each claim by study and id: its records in the order of commits."""
    found: Claims = {}
    for part in git(*LOG).split("@")[1:]:
        commit, *files = part.split("\n")
        measured = {file.split("/")[2] for file in files if file.endswith((".npz", "metrics.jsonl"))}
        for file in files:
            if file.endswith("/claims.json"):
                study, text = file.split("/")[2], git("show", f"{commit.split()[0]}:{file}")
                for record in json.loads(text or "[]"):
                    one = Published(commit, record, study in measured)
                    found.setdefault((study, record["id"]), []).append(one)
    return found


def kind(record: dict[str, Any]) -> str:
    before = record["source"].partition(":")[0]
    return before if before in ("ours", "derived") else "printed"


# Studies of language, of identify, and of chapters 3 and 4 of von Oswald (2024).
LATER = ("language", "llm", "pretrained", "identify", "mesa", "sparse", "cross", "continual")
VERDICTS = ("holds", "fails", "undecided")
CHANGES: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "bound": lambda record: record["bound"],
    "kind of source": kind,
    "quantifier": lambda record: record.get("quantifier"),  # the first runs state none
}


def changed(found: Claims, of: str) -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    """Claims with more than one value: each value, with its first commit and the last verdict under it."""
    moved = {}
    for claim, published in found.items():
        steps: list[tuple[str, str, str]] = []
        for commit, record, _ in published:
            value = CHANGES[of](record)
            if steps and steps[-1][0] == value:
                commit = steps.pop()[1]
            if value is not None:
                steps.append((value, commit, record["verdict"]))
        if len({value for value, *_ in steps}) > 1:
            moved[claim] = steps
    return moved


def late(found: Claims) -> dict[tuple[str, str], Published]:
    """Claims that first had a value in a commit that changed neither arrays nor training curves of the run."""
    judged = {claim: [one for one in each if one.record["value"] is not None] for claim, each in found.items()}
    return {claim: each[0] for claim, each in judged.items() if each and not each[0].measured}


def counts(found: Claims) -> dict[str, list[int]]:
    """Numbers that docs/evidence.md states, in its order."""
    sources, quantifiers = changed(found, "kind of source"), changed(found, "quantifier")
    before = [steps[0][2] for steps in sources.values()]
    without_mean = sum(steps[0][0] == "mean" and len(steps) == 2 for steps in quantifiers.values())
    judged = [one.record for one in late(found).values()]
    support = [one for one in judged if any(word in one["source"] for word in ("premise", "control"))]
    others = [one["verdict"] for one in judged if one not in support]
    return {
        "bound": [len(found), len(changed(found, "bound"))],
        "later studies": [sum(study.startswith(LATER) for study, _ in one) for one in (found, changed(found, "bound"))],
        "kind of source": [len(sources), *map(before.count, VERDICTS)],
        "quantifier": [len(quantifiers), without_mean],
        "published arrays": [
            len(judged), len(support), sum(one["verdict"] == "holds" for one in support), len(others),
            *map(others.count, VERDICTS),
        ],
    }  # fmt: skip


def main() -> None:
    found = history()
    for of in CHANGES:
        moved = changed(found, of)
        print(f"{len(moved)} of {len(found)} claims have had more than one {of}.\n")
        print(f"| study | claim | {of}, with its first commit and last verdict |\n|---|---|---|")
        for claim, steps in moved.items():
            values = "; ".join(f"{value} ({commit}, {verdict})" for value, commit, verdict in steps)
            print(f"| {' | '.join(claim)} | {values} |")
        print()
    print(f"{len(late(found))} claims were first judged on published arrays.\n")
    print("| study | claim | source | commit | verdict |\n|---|---|---|---|---|")
    for claim, (commit, record, _) in late(found).items():
        print(f"| {' | '.join(claim)} | {record['source']} | {commit} | {record['verdict']} |")


if __name__ == "__main__":
    main()

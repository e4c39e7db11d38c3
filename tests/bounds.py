"""Bounds of claims that moved after a run was published with them, from the history of docs/results.

Run by hand: ``python tests/bounds.py``. Prints a table; docs/evidence.md states which of them moved in substance.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOG = ("log", "--first-parent", "--reverse", "--format=@%h %as", "--name-only", "--", "docs/results/*/claims.json")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout


def history() -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    """Each claim's bounds in the order of commits, each with the first commit and the verdict there."""
    found: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    commit = ""
    for line in git(*LOG).splitlines():
        if line.startswith("@"):
            commit = line[1:]
        elif line.endswith("claims.json"):
            text = git("show", f"{commit.split()[0]}:{line}")
            for record in json.loads(text) if text.startswith("[") else []:
                steps = found.setdefault((line.split("/")[2], record["id"]), [])
                if not steps or steps[-1][1] != record["bound"]:
                    steps.append((commit, record["bound"], record["verdict"]))
    return found


def main() -> None:
    found = history()
    moved = {claim: steps for claim, steps in found.items() if len({bound for _, bound, _ in steps}) > 1}
    print(f"{len(moved)} of {len(found)} claims have had more than one bound.\n")
    print("| study | claim | bounds, each with its first commit and the verdict there |\n|---|---|---|")
    for (study, claim), steps in moved.items():
        print(
            f"| {study} | {claim} | {'; '.join(f'{bound} ({commit}, {verdict})' for commit, bound, verdict in steps)} |"
        )


if __name__ == "__main__":
    main()

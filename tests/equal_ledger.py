"""Compare the claims and figures of published runs, made by this tree, with those made by another commit.

``python tests/equal_ledger.py`` prints the claims whose bound, interval or verdict differ from those of HEAD,
and exits with 1 if any does; ``--commit NAME`` compares with another commit. Sentences and texts of ``measures`` may
differ. Both judge the same arrays: those of this tree. Given names of runs (``one-step two-steps``), only these are
compared, and their figures too, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FREE = {"measures", "sentence", "former"}

# The question to each package, whose answer is a record for each claim and figure.
MAKE = """
import hashlib, json, sys
from pathlib import Path
from mesascope import open_run
from mesascope.reports import figure_files
from mesascope.studies import running
found, names = {}, sys.argv[2:]
for place in sorted(Path(sys.argv[1]).iterdir()):
    run = open_run(place)
    if run.config["kind"] != "study" or names and place.name not in names:
        continue
    judge = getattr(running, "judge_run", None) or running.judged  # its name before
    for record in judge(run.study, run):
        found[f"{place.name}: {record['id']}"] = record
    for figure in run.study.figures if names else ():
        drawn = hashlib.sha256(figure_files(figure, run.results)["svg"]).hexdigest()
        found[f"{place.name}: figure {figure.name}"] = {"svg": drawn, "caption": figure.caption}
print(json.dumps(found))
"""


def made(source: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Records by run and name, made by the package in ``source``."""
    command = [sys.executable, "-c", MAKE, str(ROOT / "docs" / "results"), *names]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--commit", default="HEAD")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, given.commit], cwd=ROOT, check=True)
        try:
            before, now = (made(source / "src", given.names) for source in (Path(folder), ROOT))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)
    different = 0
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, {}), now.get(name, {})
        changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)} - FREE
        different += bool(changed)
        for key in sorted(changed) if old and new else ():
            print(f"{name}: {key} was {old.get(key)!r}, is {new.get(key)!r}")
        if not (old and new):
            print(f"{name}: is only {'before' if old else 'now'}")
    print(f"{len(before)} at {given.commit}, {len(now)} now; {different} differ.")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())

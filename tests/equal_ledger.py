"""Compare the claims of every published run, judged by this tree, with those judged by another commit.

``python tests/equal_ledger.py [COMMIT]`` (HEAD if left out) prints the claims whose sentence, bound, interval or verdict
differ, and exits with 1 if any does. Texts of ``measures`` may differ. Both judge the same arrays: those of this tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FREE = {"measures", "figure"}


# What each package is asked for.
JUDGE = """
import json, sys
from pathlib import Path
from mesascope import open_run
from mesascope.studies.running import judged
found = {}
for place in sorted(Path(sys.argv[1]).iterdir()):
    run = open_run(place)
    if run.config["kind"] == "study":
        for record in judged(run.study, run):
            found[f"{place.name}: {record['id']}"] = record
print(json.dumps(found))
"""


def claims(source: Path) -> dict[str, dict[str, Any]]:
    """Records of all claims, judged by the package in ``source``."""
    command = [sys.executable, "-c", JUDGE, str(ROOT / "docs" / "results")]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout)


def main(commit: str = "HEAD") -> int:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
        try:
            before, now = claims(Path(folder) / "src"), claims(ROOT / "src")
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
    print(f"{len(before)} claims at {commit}, {len(now)} now; {different} differ.")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Time of a sweep of 40 points on two workers beside the ideal: half of the points' times on one worker.

``python benchmarks/sweeps.py [KIND ...]`` writes ``benchmarks/results/sweeps.json``. Points of *waiting* sleep for
fifteen seconds, so that only the time around them counts, whatever else the machine does; *study* has 40 points of the
study in tests/tiny_study.py with longer trainings, and needs two free cores. The start of workers and sweep counts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
STUDY = HERE.parents[1] / "tests" / "tiny_study.py"
POINTS, WORKERS = 40, 2
KINDS: dict[str, tuple[str, dict[str, list[Any]]]] = {
    "waiting": (f"{HERE}:waiting", {"place": list(range(POINTS))}),
    "study": (f"{STUDY}:STUDY", {"tasks": list(range(2000, 2000 + POINTS)), "training.steps": [1000]}),
}


def waiting(settings: dict[str, Any], seed: int) -> dict[str, float]:
    """A point of fifteen seconds that needs no processor."""
    time.sleep(15)
    return {"place": settings["place"]}


def timed(task: str, settings: dict[str, list[Any]], workers: int, out: Path) -> tuple[float, float]:
    """Seconds that a sweep takes, the start of its workers included, and the sum of its points' times."""
    from mesascope import Sweep

    sweep = Sweep(task, settings, out=out)
    start = time.monotonic()
    sweep.run(workers=workers)
    assert not sweep.failed, sweep.failed
    return time.monotonic() - start, sum(sweep.seconds([point.key for point in sweep.points]))


def main() -> None:
    found = json.loads(results.read_text()) if (results := HERE.parent / "results" / "sweeps.json").exists() else {}
    for kind in sys.argv[1:] or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            load = os.getloadavg()[0]
            took, own = timed(*KINDS[kind], WORKERS, Path(folder) / "two")
            # points that sleep take as long on one worker as on two
            alone, ideal = (None, own) if kind == "waiting" else timed(*KINDS[kind], 1, Path(folder) / "one")
        found[kind] = {
            "points": POINTS, "workers": WORKERS, "seconds": round(took, 1), "ideal": round(ideal / WORKERS, 1),
            "over_ideal": round(took / (ideal / WORKERS) - 1, 3), "sum_of_points_on_two": round(own, 1),
            "seconds_on_one": alone and round(alone, 1),
            "load_of_other_processes": round(load, 1), "cores": os.cpu_count(), "niceness": os.nice(0),
        }  # fmt: skip
        print(kind, found[kind], flush=True)
        results.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""The whole catalogue of `identify` against itself: every candidate planted, and asked for among all of them.

Two processes share the learners; each learner is asked for 8 tasks of every condition and part. Writes
benchmarks/results/identify.json: seconds, processor seconds, and of each learner what the answer says. Takes a few
minutes; ``python benchmarks/identify.py`` from the root of the project.
"""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "identify.json"
PROCESSES, TASKS = 2, 8


def family() -> Any:
    from mesascope.tasks import LinearRegression

    return LinearRegression(n_context=12, d_in=3, noise=0.3)


def asked(part: int) -> list[dict[str, Any]]:
    """Every second candidate, planted two fifths of the way along its ranges."""
    import torch

    from mesascope.identification import candidates, identify
    from mesascope.studies.identifying.calibration import along, budget

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    catalogue = candidates(family())
    rows = []
    for one in catalogue[part::PROCESSES]:
        planted = {name: along(free, 0.4) for name, free in one.free.items()}
        start = time.process_time()
        found = identify(one.build(**planted), family(), catalogue, budget(TASKS))
        rows.append({
            "planted": one.name, "kind": found.standing.kind, "set": list(found.names),
            "processor_seconds": round(time.process_time() - start, 2),
        })  # fmt: skip
    return rows


def main() -> None:
    start = time.perf_counter()
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        rows = [row for part in pool.map(asked, range(PROCESSES)) for row in part]
    seconds = time.perf_counter() - start
    processor = sum(row["processor_seconds"] for row in rows)
    inside = [row for row in rows if row["planted"] in row["set"]]
    sizes = sorted(len(row["set"]) for row in rows)
    found = {
        "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1), "learners": len(rows), "in_the_set": len(inside),
        "median_size": sizes[len(sizes) // 2], "rows": sorted(rows, key=lambda row: row["planted"]),
    }  # fmt: skip
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print({name: value for name, value in found.items() if name != "rows"})
    print("not in the set:", [row["planted"] for row in rows if row not in inside])


if __name__ == "__main__":
    main()

"""Every candidate of `identify` planted behind every adapter, with noise, and asked for among fourteen.

These are the candidates of `identify-calibration`, and itself. Two processes; a learner is asked for 8 tasks of every
condition and part, with normal noise of standard deviation 0.01 and 0.1 in its answers. Writes
benchmarks/results/adapters.json: of each learner the set that the answer names, and the largest relative error of a
parameter. Takes some twenty minutes; learners that are in the file already are not asked again.
``python benchmarks/adapters.py`` from the root of the project.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from identify import PROCESSES, TASKS, family

RESULTS = Path(__file__).parent / "results" / "adapters.json"
NOISES = (0.01, 0.1)


def asked(name: str) -> list[dict[str, Any]]:
    """One candidate behind each adapter, with each noise."""
    import torch

    from mesascope.identification import candidates
    from mesascope.studies.identifying.calibration import ADAPTERS, PLANTED

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    catalogue = {one.name: one for one in candidates(family()) if one.name in (name, *PLANTED)}
    return [answer(catalogue, name, adapter, noise) for adapter in (*ADAPTERS, "replay") for noise in NOISES]


def answer(catalogue: dict[str, Any], name: str, adapter: str, noise: float) -> dict[str, Any]:
    from mesascope.adapters import record, replay
    from mesascope.identification import identify
    from mesascope.streams import stream
    from mesascope.studies.identifying.calibration import Noisy, along, behind, budget

    planted = {key: along(free, 0.4) for key, free in catalogue[name].free.items()}
    learner = Noisy(catalogue[name].build(**planted), noise, stream(0, name))
    options = [family(), list(catalogue.values()), budget(TASKS)]
    with tempfile.TemporaryDirectory() as folder:
        if adapter == "replay":
            calls = Path(folder) / "calls.jsonl"
            identify(record(learner, calls), family(), [catalogue["mean"]], budget(TASKS))
            found = identify(replay(calls), *options)
        else:
            found = identify(behind(adapter, learner), *options)
    error = None
    if name in found.names and not catalogue[name].own_sizes:
        error = max((abs(found.parameters(name)[key] / value - 1) for key, value in planted.items()), default=None)
    return {
        "planted": name, "adapter": adapter, "noise": noise, "kind": found.standing.kind, "set": list(found.names),
        "largest_error_of_a_parameter": error,
    }  # fmt: skip


def main() -> None:
    from mesascope.identification import candidates

    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    left = [one.name for one in candidates(family()) if one.name not in {row["planted"] for row in rows}]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for part in pool.map(asked, left):
            rows += part
            RESULTS.write_text(json.dumps(summary(rows), indent=1) + "\n")
            print(part[0]["planted"], [row["planted"] in row["set"] for row in part], flush=True)
    RESULTS.write_text(json.dumps(summary(rows), indent=1) + "\n")
    print({name: value for name, value in summary(rows).items() if name != "rows"})


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    inside = [row for row in rows if row["planted"] in row["set"]]
    counted = Counter(f"{row['adapter']}, noise {row['noise']}" for row in inside)
    return {
        "learners": len(rows), "in_the_set": len(inside), "in_the_set_by_adapter": dict(sorted(counted.items())),
        **{f"noise {noise}": of_noise([row for row in inside if row["noise"] == noise]) for noise in NOISES},
        "not_in_the_set": [[row["planted"], row["adapter"], row["noise"]] for row in rows if row not in inside],
        "rows": sorted(rows, key=lambda row: row["planted"]),
    }  # fmt: skip


def of_noise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [row["largest_error_of_a_parameter"] for row in rows]
    return {
        "first": sum(row["set"][0] == row["planted"] for row in rows),
        "median_size": statistics.median(len(row["set"]) for row in rows),
        "with_parameters": sum(error is not None for error in errors),
        "within_5_percent": sum(error is not None and error < 0.05 for error in errors),
    }


if __name__ == "__main__":
    main()

"""Speed of `identify`, asked about the whole catalogue: of single learners of each kind, and of the catalogue itself.

``python benchmarks/identify.py`` plants every candidate and asks for it among all of them, with 8 tasks a condition,
in two processes, and writes benchmarks/results/identify.json. ``python benchmarks/identify.py learners`` times learners
of each kind that are not in benchmarks/results/identify-learners.json yet, with the default budget and one thread. Each
takes some ten minutes; run them from the root of the project with nothing else running.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "identify.json"
OF_LEARNERS = RESULTS.with_name("identify-learners.json")
PROCESSES, TASKS = 2, 8


def family() -> Any:
    from mesascope.tasks import LinearRegression

    return LinearRegression(n_context=12, d_in=3, noise=0.3)


def asked(part: int) -> list[dict[str, Any]]:
    """Every second candidate, planted two fifths of the way along its ranges."""
    import torch

    from mesascope.identification import candidates, identify
    from mesascope.studies.identifying.calibration import budget, value_at

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    catalogue = candidates(family())
    rows = []
    for one in catalogue[part::PROCESSES]:
        planted = {name: value_at(free, 0.4) for name, free in one.free.items()}
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


class Told(io.StringIO):
    """Standard error that keeps when the first sentence about families was printed."""

    first: float | None = None

    def write(self, text: str) -> int:
        if self.first is None and text.startswith("a first look"):  # not the progress of that look
            self.first = time.perf_counter()
        return super().write(text)


def kinds() -> dict[str, Any]:
    """Learners of each kind: functions, networks, estimators, and models of text that answer at once."""
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.linear_model import BayesianRidge, HuberRegressor, LassoCV
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.neural_network import MLPRegressor
    from sklearn.svm import SVR

    from mesascope.adapters import from_numpy, from_sklearn, from_text
    from mesascope.constructions import gradient_descent
    from mesascope.learners import GradientDescent

    def ridge(x: Any, y: Any, xq: Any) -> Any:
        import numpy as np

        return xq @ np.linalg.solve(x.T @ x + 0.7 * np.eye(x.shape[1]), x.T @ y)

    def last_label(prompt: str) -> str:
        return prompt.split("Output:")[-2].split()[0]

    estimators = (
        BayesianRidge(), HuberRegressor(), KNeighborsRegressor(3), SVR(), GaussianProcessRegressor(alpha=0.1),
        GradientBoostingRegressor(), MLPRegressor(max_iter=50), LassoCV(), RandomForestRegressor(),
    )  # fmt: skip
    learners = {"function of NumPy": from_numpy(ridge), "function of torch": GradientDescent(2, 1.5)}
    learners["built network"] = gradient_descent(3, 1, 0.8, n_context=12, steps=2).network
    learners["trained network"] = trained()
    learners["model of text that answers at once"] = from_text(last_label)
    return learners | {type(one).__name__: from_sklearn(one) for one in estimators}


def trained() -> Any:
    from mesascope import Training, train
    from mesascope.nets import InContextRegressorConfig, TransformerConfig

    config = InContextRegressorConfig(TransformerConfig(width=4, init_scale=0.02))
    return train(config.build, family(), Training(steps=400, batch=128, learning_rate=0.01))[0]


def timed(learner: Any) -> dict[str, Any]:
    from mesascope import identify

    told = Told()
    start, processor = time.perf_counter(), time.process_time()
    with contextlib.redirect_stderr(told):
        found = identify(learner, family())
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "first_sentence": None if told.first is None else round(told.first - start, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "predictions": found.asked, "exactly": found.exactly,
    }  # fmt: skip


def learners() -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = json.loads(OF_LEARNERS.read_text()) if OF_LEARNERS.exists() else {}
    for name, learner in kinds().items():
        if name not in found:
            found[name] = timed(learner)
            print(name, found[name], flush=True)
    OF_LEARNERS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    learners() if sys.argv[1:] == ["learners"] else main()

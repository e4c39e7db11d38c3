"""Times on an accelerator beside those on the CPU of the same machine, with the agreement of the two.

Cases are ensembles of small networks, the mesa-layer beside softmax attention, one outer step of MAML, a training step
of a language model, and explicit algorithms on many tasks. A time is the fastest of several calls, after two that do
not count. ``--studies`` adds the wall time of whole studies at their quick presets, and how many claims have the same
verdict on both. Writes benchmarks/results/devices.json. ``python benchmarks/devices.py`` needs a CUDA device; some ten
minutes with studies.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from mesascope import open_run
from mesascope.language import language_model_config, next_token_loss
from mesascope.learners import GradientDescent, LeastSquares
from mesascope.meta import MetaLearner, MetaLearnerConfig
from mesascope.nets import ClassifierConfig, InContextRegressorConfig, TransformerConfig
from mesascope.ops import mesa_attention
from mesascope.streams import stream
from mesascope.tasks import FewShotImages, LinearRegression
from mesascope.training import EnsembleState, ModuleState, Training, half_mse, keep_freed_memory
from mesascope.training.family import stacked

RESULTS = Path(__file__).parent / "results" / "devices.json"
PLAN = Training(steps=100, learning_rate=1e-3, schedule="constant")
STUDIES = ("one-step", "language-recall", "sparse-maml")
# From a device to a call that is timed, and that returns numbers to compare.
Case = Callable[[str], Callable[[], Tensor]]


def ensemble(members: int, batch: int = 2048) -> Case:
    """One training step of linear layers, all members at once."""

    def on(device: str) -> Callable[[], Tensor]:
        config = InContextRegressorConfig(TransformerConfig(11, init_scale=0.002))
        nets = [config.build(stream(seed, "init")).to(device) for seed in range(members)]
        state = EnsembleState(nets, half_mse, PLAN)
        tasks = stacked([LinearRegression().sample(batch, stream(seed, "tasks")) for seed in range(members)]).to(device)
        return lambda: torch.as_tensor(state.update(tasks)["loss"])

    return on


def attention(kind: str, t: int, dtype: torch.dtype = torch.float32) -> Case:
    """Forward and backward of 16 heads of width 64."""

    def on(device: str) -> Callable[[], Tensor]:
        drawn = (torch.randn(1, 16, t, 64, generator=stream(0, name)) for name in "qkv")
        q, k, v = (part.to(device, dtype).requires_grad_() for part in drawn)
        gate, ridge = torch.full((1, 16, t), -0.01, device=device), torch.ones(16, device=device)

        def call() -> Tensor:
            if kind == "mesa":
                y = mesa_attention(normalize(q, dim=-1), normalize(k, dim=-1), v, log_forget=gate, ridge=ridge)
            else:
                y = scaled_dot_product_attention(q, k, v, is_causal=True)
            return torch.autograd.grad(y.float().square().mean(), v)[0]

        return call

    return on


def maml(device: str) -> Callable[[], Tensor]:
    """An outer step of first-order MAML: Conv4 of 64 filters, 5 ways, 5 shots, 15 queries, 5 inner steps, 4 tasks."""
    config = MetaLearnerConfig(ClassifierConfig("convnet4", 64, size=28, classes=5), "maml", 0.1, 5)
    tasks = FewShotImages(ways=5, shots=5, queries=15, size=28).sample(4, stream(0, "tasks")).to(device)
    state = ModuleState(config.build(stream(0, "init")).to(device), MetaLearner.loss, PLAN)
    return lambda: torch.as_tensor(state.update(tasks)["loss"])


def language(kind: str) -> Case:
    """A training step of two blocks of width 256 on 8 sequences of 1,024 tokens."""

    def on(device: str) -> Callable[[], Tensor]:
        config = language_model_config(f"{kind}, {kind}", 4096, 1024, width=256, n_heads=4)
        state = ModuleState(config.build(stream(0, "init")).to(device), next_token_loss, PLAN)
        tokens = torch.randint(4096, (8, 1025), generator=stream(0, "tokens")).to(device)
        return lambda: torch.as_tensor(state.update(tokens)["loss"])

    return on


def algorithm(learner: torch.nn.Module, count: int) -> Case:
    """An explicit algorithm on tasks of 20 pairs in ten dimensions."""

    def on(device: str) -> Callable[[], Tensor]:
        context, xq, _ = LinearRegression(20).sample(count, stream(0, "tasks")).to(device)
        own = copy.deepcopy(learner).to(device)
        return lambda: own(context, xq)

    return on


CASES: dict[str, Case] = {
    **{f"ensemble, {members} linear layers, batch 2048": ensemble(members) for members in (1, 16, 64)},
    **{f"mesa, t = {t}": attention("mesa", t) for t in (512, 2048, 8192)},
    **{f"softmax, t = {t}": attention("softmax", t) for t in (512, 2048, 8192)},
    "MAML, Conv4": maml,
    **{f"language model, {kind}": language(kind) for kind in ("softmax", "linear", "mesa")},
    "20 steps of descent, 20,000 tasks": algorithm(GradientDescent(20, 0.5), 20_000),
    "least squares, 20,000 tasks": algorithm(LeastSquares(), 20_000),
}


def fastest(call: Callable[[], Tensor], seconds: float) -> tuple[float, Tensor]:
    """Milliseconds of the fastest of at least three calls within ``seconds``, and the numbers of the first."""

    def timed() -> tuple[float, Tensor]:
        start = time.perf_counter()
        found = call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start), found

    first = timed()[1].detach().double().cpu()
    timed()
    times: list[float] = []
    while len(times) < 3 or sum(times) < 1e3 * seconds:
        times.append(timed()[0])
    return min(times), first


def measured(name: str, case: Case, seconds: float) -> dict[str, Any]:
    """Times of a case on both devices, the ratio, and the relative difference between their first numbers."""
    times, numbers = {}, {}
    for device in ("cuda", "cpu"):
        times[device], numbers[device] = fastest(case(device), seconds)
    difference = float((numbers["cuda"] - numbers["cpu"]).norm() / numbers["cpu"].norm())
    return {"case": name, **times, "cpu / cuda": times["cpu"] / times["cuda"], "difference": difference}


def study(name: str) -> dict[str, Any]:
    """Wall seconds of a study at its quick preset on both devices, and the claims whose verdicts agree."""
    seconds, verdicts = {}, {}
    for device in ("cuda", "cpu"):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            words = ("run", name, "--device", device, "--out", f"{folder}/{name}")
            subprocess.run([sys.executable, "-m", "mesascope", *words], check=True, capture_output=True)
            seconds[device] = time.perf_counter() - start
            verdicts[device] = {one["id"]: one["verdict"] for one in open_run(Path(folder) / name).claims}
    same = sum(verdicts["cuda"][key] == verdict for key, verdict in verdicts["cpu"].items())
    return {"study": name, **seconds, "claims": len(verdicts["cpu"]), "same": same, "verdicts": verdicts}


def shown(rows: list[dict[str, Any]]) -> Table:
    columns = [name for name in rows[0] if name != "verdicts"]
    table = Table(*columns)
    for row in rows:
        table.add_row(*(f"{row[name]:.3g}" if isinstance(row[name], float) else str(row[name]) for name in columns))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="at least, of each case and device")
    parser.add_argument("--studies", action="store_true", help="also run studies at their quick presets")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    keep_freed_memory()
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "threads": torch.get_num_threads(),
               "processor": platform.machine()}  # fmt: skip
    found: dict[str, Any] = {"machine": machine, "cases": [], "studies": []}
    for key, names, measure in (
        ("cases", CASES, lambda name: measured(name, CASES[name], given.seconds)),
        ("studies", STUDIES if given.studies else (), study),
    ):
        for name in names:
            try:
                found[key].append(measure(name))
                print({part: value for part, value in found[key][-1].items() if part != "verdicts"}, flush=True)
            except Exception as error:  # so that one failure does not lose the others
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                found.setdefault("failed", {})[name] = f"{type(error).__name__}: {error}"
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    for rows in filter(None, (found["cases"], found["studies"])):
        Console().print(shown(rows))


if __name__ == "__main__":
    main()

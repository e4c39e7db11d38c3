"""Speed of training and evaluating linear self-attention nets, with accuracy beside it.

Each case runs in a process of its own; cases that are compared take turns, so that what else the machine does hits all.
Writes benchmarks/results/training.json and prints a table. Takes about six minutes on two cores.
"""

from __future__ import annotations

import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from mesascope.learners import GradientDescent
from mesascope.lenses import alignment
from mesascope.nets import (
    Alternating,
    EmbeddedDescentConfig,
    EmbeddingConfig,
    InContextRegressorConfig,
    TransformerConfig,
)
from mesascope.streams import stream
from mesascope.tasks import Family, LinearRegression, SineWaves
from mesascope.training import Training, keep_freed_memory, train

RESULTS = Path(__file__).parent / "results" / "training.json"
ROUNDS = 5
# Milliseconds a step of one seed of the original JAX code on two cores, as measured for the same nets and batch: linear
# layers by their number, the copying net, and the sine net and its control (220 to 310; this is the lower end).
ORIGINAL = {1: 10.4, 2: 15.6, 5: 59.6, "copying": 130.0, "sine": 220.0, "control": 220.0}


@dataclass(frozen=True)
class Case:
    """One training to time: linear layers (2 are shared, more are separate), batch 2048."""

    layers: int = 1
    seeds: int = 5
    n: int = 10
    d: int = 10
    token_clip: float | None = None


def linear(case: Case) -> tuple[Callable[[torch.Generator], torch.nn.Module], Family]:
    """The learner and the tasks of a case of linear layers."""
    config = TransformerConfig(
        width=case.d + 1,
        n_layers=case.layers,
        shared=case.layers == 2,
        token_clip=case.token_clip,
        init_scale=0.002,
    )
    family = LinearRegression(case.n, case.d, x_scale=0.5)
    return InContextRegressorConfig(config).build, family


def copying() -> tuple[Callable[[torch.Generator], torch.nn.Module], Family]:
    """Softmax, then linear, on alternating tokens of 10 numbers and 10 of position."""
    config = TransformerConfig(20, n_layers=2, attention=("softmax", "linear"), init_scale=0.002)
    return InContextRegressorConfig(config, Alternating()).build, LinearRegression()


def sine() -> tuple[Callable[[torch.Generator], torch.nn.Module], Family]:
    """An embedding and its MLP before one linear layer."""
    config = TransformerConfig(40, init_scale=0.002)
    return InContextRegressorConfig(config, embedding=EmbeddingConfig(2, 40)).build, SineWaves()


def control() -> tuple[Callable[[torch.Generator], torch.nn.Module], Family]:
    """The same embedding and MLP before one gradient step."""
    return EmbeddedDescentConfig(EmbeddingConfig(2, 40)).build, SineWaves()


STUDIES = {"copying": copying, "sine": sine, "control": control}


def step_time(case: Case | str) -> dict[str, float]:
    """Milliseconds of one optimiser step of all seeds, its data included, and the process's peak memory.

    A case is one of linear layers, or the name of a study's net, which three seeds train.
    """
    torch.set_num_threads(2)
    keep_freed_memory()
    make, family = STUDIES[case]() if isinstance(case, str) else linear(case)
    seeds = 3 if isinstance(case, str) else case.seeds
    small = not isinstance(case, str) and case.layers < 5 and case.n * case.d * case.seeds <= 1000
    clock: list[float] = []
    warm = 10
    steps = warm + (40 if small else 12)
    train(
        make,
        family,
        Training(steps=steps, learning_rate=1e-3, clip=1.0),
        seeds=range(seeds),
        observe=lambda step, metrics: clock.append(time.perf_counter()),
    )
    gaps = [after - before for before, after in zip(clock[warm:], clock[warm + 1 :], strict=False)]
    return {"ms": 1e3 * statistics.median(gaps), "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def forms(layers: int) -> dict[str, float]:
    """Forward and backward of one net on 10,240 tasks: tokens against the form that the net chooses."""
    torch.set_num_threads(2)
    config = TransformerConfig(11, n_layers=layers, shared=layers == 2, init_scale=0.1)
    learner = InContextRegressorConfig(config).build(stream(0, "init"))
    net = learner.transformer
    episode = LinearRegression(x_scale=0.5).sample(10_240, stream(0, "bench"))
    context, query = learner._tokens(episode.context, episode.xq)
    calls = {
        "tokens": lambda: net._token_form(context, query, last_context=False)[-1],
        "chosen": lambda: net(context, query),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    gradients = {}
    for _ in range(8):
        for name, call in calls.items():
            net.zero_grad()
            start = time.perf_counter()
            call().square().mean().backward()
            times[name].append(time.perf_counter() - start)
            gradients[name] = torch.cat([w.grad.flatten() for w in net.parameters() if w.grad is not None])
    gap = (gradients["chosen"] - gradients["tokens"]).abs().max() / gradients["tokens"].abs().max()
    return {f"{name}_ms": 1e3 * statistics.median(t[2:]) for name, t in times.items()} | {"gradient_gap": float(gap)}


def evaluation() -> dict[str, float]:
    """Seconds of the paired comparison of one net with gradient descent on 100,000 tasks."""
    torch.set_num_threads(2)
    episodes = LinearRegression(x_scale=0.5).sample(100_000, stream(0, "bench"))
    net, gd = InContextRegressorConfig(TransformerConfig(11)).build(stream(0, "init")), GradientDescent(1, 6.06)
    alignment(net, gd, episodes.part(0, 10_000))
    start = time.perf_counter()
    alignment(net, gd, episodes)
    return {"seconds": time.perf_counter() - start}


def alone(function, *arguments):
    """Run in a fresh process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    depth = [Case(1), Case(2), Case(5), Case(5, token_clip=10.0)]
    growth = {
        "N": [Case(n=n) for n in (10, 100, 1000)],
        "d": [Case(d=d) for d in (5, 10, 20, 50, 100)],
        "seeds": [Case(seeds=s) for s in (1, 2, 5, 10, 20)],
    }
    rounds = [[alone(step_time, case) for case in depth] for _ in range(ROUNDS)]
    rows = []
    for index, case in enumerate(depth):
        times = sorted(one[index]["ms"] for one in rounds)
        per_seed = statistics.median(times) / case.seeds
        rows.append(
            asdict(case)
            | {"ms_step": times, "ms_seed": per_seed, "original_ms": ORIGINAL[case.layers]}
            | {"ratio": ORIGINAL[case.layers] / per_seed, "peak_mib": rounds[0][index]["peak_mib"]}
        )
    times = {name: sorted(alone(step_time, name)["ms"] / 3 for _ in range(ROUNDS)) for name in STUDIES}
    studies = {name: {"ms_seed": times[name], "original_ms": ORIGINAL[name]} for name in STUDIES}
    results = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "training": rows,
        "studies": studies,
        "forms": {str(layers): alone(forms, layers) for layers in (1, 2, 5)},
        "evaluation_100k": alone(evaluation),
        "growth": {name: [asdict(case) | alone(step_time, case) for case in cases] for name, cases in growth.items()},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    show(results)


def show(results: dict) -> None:
    console = Console(width=110)
    table = Table(title="one training step, five seeds, batch 2048, N = d = 10", title_justify="left")
    for column in (
        "layers",
        "token clip",
        "ms a step",
        "ms a step and seed",
        "original, one seed",
        "times faster",
        "MiB",
    ):
        table.add_column(column)
    for row in results["training"]:
        low, high = row["ms_step"][0], row["ms_step"][-1]
        cells = (f"{low:.1f} .. {high:.1f}", f"{row['ms_seed']:.2f}", f"{row['original_ms']}", f"{row['ratio']:.1f}")
        table.add_row(str(row["layers"]), str(row["token_clip"] or "-"), *cells, f"{row['peak_mib']:.0f}")
    console.print(table)
    for name, row in results["studies"].items():
        low, middle, high = row["ms_seed"][0], statistics.median(row["ms_seed"]), row["ms_seed"][-1]
        said = f"{middle:.1f} ms a step and seed ({low:.1f} .. {high:.1f}), original {row['original_ms']:.0f}"
        console.print(f"{name}: {said}: {row['original_ms'] / middle:.1f} times faster")
    for layers, form in results["forms"].items():
        ratio = form["tokens_ms"] / form["chosen_ms"]
        said = f"chosen form {ratio:.1f} times faster than tokens, gradients {form['gradient_gap']:.0e} apart"
        console.print(f"{layers} layers: {said}")
    console.print(f"paired comparison on 100,000 tasks: {results['evaluation_100k']['seconds']:.2f} s")
    for name, cases in results["growth"].items():
        key = {"N": "n", "d": "d", "seeds": "seeds"}[name]
        console.print(f"ms a step by {name}: " + ", ".join(f"{case[key]}: {case['ms']:.1f}" for case in cases))
    console.print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()

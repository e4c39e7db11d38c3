"""Speed of the mesa-layer, with its accuracy beside it.

Methods that are compared take turns within one process; times are the fastest of several, forward and backward.
Writes benchmarks/results/mesa.json and prints tables. Takes about a minute on two cores.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from mesascope.ops import MesaState, mesa_attention, mesa_step
from mesascope.streams import stream

RESULTS = Path(__file__).parent / "results" / "mesa.json"
HEADS, D = 16, 64


def inputs(t: int, d: int = D, *, forget: float = 0.99, ridge: float = 1.0, dtype=torch.float32) -> dict[str, Tensor]:
    """Unit keys and queries of one sequence of 16 heads."""
    generator = stream(0, "mesa")
    q, k, v = (torch.randn(1, HEADS, t, d, generator=generator, dtype=torch.float64) for _ in range(3))
    gate = torch.full((1, HEADS, t), forget, dtype=torch.float64).log()
    named = {"q": normalize(q, dim=-1), "k": normalize(k, dim=-1), "v": v, "log_forget": gate}
    named["ridge"] = torch.full((HEADS,), ridge, dtype=torch.float64)
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in named.items()}


def run(leaves: dict[str, Tensor], **options) -> list[Tensor]:
    """The output, and the gradients of q, k, v, gates and ridge."""
    y = mesa_attention(**leaves, **options)
    cotangent = torch.randn(y.shape, generator=stream(0, "cotangent"), dtype=torch.float64).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, list(leaves.values()), cotangent)]


def softmax(leaves: dict[str, Tensor]) -> None:
    """Softmax attention, forward and backward."""
    q, k, v = (leaves[name] for name in "qkv")
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.autograd.grad(y, (q, k, v), torch.ones_like(y))


def milliseconds(cases: dict[str, Callable[[], object]], rounds: int = 4) -> dict[str, float]:
    """The fastest of several calls of each case, in turns."""
    fastest = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            fastest[name] = min(fastest[name], 1e3 * (time.perf_counter() - start))
    return fastest


def accuracy() -> list[dict]:
    """Relative errors in float32 against float64, by condition number."""
    rows = []
    for forget, ridge in ((1.0, 1.0), (1.0, 0.01), (1.0, 1e-3), (0.99, 0.01), (0.95, 0.01), (0.95, 1e-3)):
        exact = run(inputs(512, forget=forget, ridge=ridge, dtype=torch.float64))
        row: dict = {"forget": forget, "ridge": ridge, "condition": condition(forget, ridge)}
        for method in ("chunk", "scan"):
            rough = run(inputs(512, forget=forget, ridge=ridge), method=method)
            errors = [float((one.double() - true).norm() / true.norm()) for one, true in zip(rough, exact, strict=True)]
            row[method] = dict(zip(("y", "q", "k", "v", "log_forget", "ridge"), errors, strict=True))
        rows.append(row)
    return rows


def condition(forget: float, ridge: float) -> float:
    """The largest condition number of H_t that the first head meets."""
    leaves = inputs(512, forget=forget, ridge=ridge, dtype=torch.float64)
    H, worst = ridge * torch.eye(D, dtype=torch.float64), 1.0
    for t, k in enumerate(leaves["k"][0, 0].detach()):
        H = forget * H + k[:, None] * k
        worst = max(worst, float(torch.linalg.cond(H))) if t % 16 == 0 else worst
    return worst


def by_length(lengths: Sequence[int]) -> list[dict]:
    rows = []
    for t in lengths:
        leaves = inputs(t)
        cases: dict[str, Callable[[], object]] = {"chunk": partial(run, leaves), "softmax": partial(softmax, leaves)}
        if t <= 512:
            cases |= {method: partial(run, leaves, method=method) for method in ("scan", "cg")}
        rows.append({"t": t, **milliseconds(cases)})
    return rows


def by_width(widths: Sequence[int], chunks: Sequence[int]) -> list[dict]:
    rows = []
    for d in widths:
        leaves = inputs(512, d)
        rows.append({"d": d, **milliseconds({str(chunk): partial(run, leaves, chunk=chunk) for chunk in chunks})})
    return rows


def decoding(positions: Sequence[int]) -> list[dict]:
    """Microseconds of one token of all heads, and bytes of what is kept, after so many tokens."""
    rows = []
    for t in positions:
        with torch.no_grad():
            leaves = inputs(t)
            _, state = mesa_attention(**leaves, return_state=True)
            token = {name: leaves[name][:, :, 0] for name in ("q", "k", "v", "log_forget")}
            cache = [leaves[name] for name in "kv"]
            mesa = partial(mesa_step, **token, state=state, ridge=leaves["ridge"])
            attend = partial(scaled_dot_product_attention, token["q"][:, :, None], *cache)
            times = milliseconds({"mesa": mesa, "softmax": attend}, rounds=30)
        rows.append(
            {"t": t, **{name: 1e3 * value for name, value in times.items()}}
            | {"mesa bytes": size(state), "softmax bytes": size(cache)}
        )
    return rows


def size(kept: MesaState | list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def show(title: str, rows: list[dict], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    flat = [
        {key: max(value.values()) if isinstance(value, dict) else value for key, value in row.items()} for row in rows
    ]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    for column in columns:
        table.add_column(column, justify="right")
    for row in flat:
        table.add_row(*(f"{row[column]:.3g}" if column in row else "" for column in columns))
    console.print(table)


def main() -> None:
    run(inputs(128))
    results = {
        "accuracy, float32: worst relative error of outputs and gradients": accuracy(),
        "ms forward and backward by length": by_length((128, 512, 2048, 8192)),
        "ms forward and backward by width and chunk, T = 512": by_width((16, 32, 64, 128, 256), (16, 32, 64, 128)),
        "microseconds of a decoded token": decoding((512, 4096, 32768)),
    }
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    RESULTS.write_text(json.dumps({**machine, **results}, indent=1) + "\n")
    for title, rows in results.items():
        show(title, rows, Console(width=120))


if __name__ == "__main__":
    main()

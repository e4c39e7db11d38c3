"""Milliseconds of a training step of the thesis' transformers, beside the same networks in plain PyTorch.

Forward, backward, clipping and AdamW of sequences of width 10, one seed alone and three at once; all take turns in one
process, so that what else the machine does hits all. Predictions of both are compared first. Writes
benchmarks/results/sequences.json and prints a table. Takes some five minutes on two cores.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from mesascope.ops import sinusoidal
from mesascope.streams import stream
from mesascope.studies.mesa.raw_tokens import LAYERS, transformer
from mesascope.tasks import LinearDynamics
from mesascope.training import Ensemble, EnsembleState, Training, half_mse, keep_freed_memory

RESULTS = Path(__file__).parent / "results" / "sequences.json"
ROUNDS, SEEDS = 9, 3
PLAN = Training(learning_rate=1e-3, optimizer="adamw", weight_decay=0.05, clip=1.0)
# Batch and number of elements to predict from: as the studies of dynamics have them, and as those of pairs.
SIZES = ((256, 50), (64, 50), (64, 224))


class Plain(nn.Module):
    """The same network as one writes it: a matrix product, an attention and a matrix product a layer."""

    def __init__(self, network) -> None:
        super().__init__()
        self.kinds, self.clip = network.config.transformer.attentions, network.config.transformer.token_clip
        self.w_in, self.w_out = (nn.Parameter(w.detach().clone()) for w in (network.w_in, network.w_out))
        layers = [layer.attention for layer in network.transformer.layers]
        self.parts = nn.ParameterList(
            nn.Parameter(getattr(layer, name).weight.detach().clone())
            for layer in layers
            for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        )
        mesa = next((layer for layer in layers if hasattr(layer, "ridge")), None)
        self.ridge = None if mesa is None else nn.Parameter(mesa.ridge.detach().clone())
        self.positions, self.heads = (
            network.config.transformer.heads.positions,
            network.config.transformer.heads.n_heads,
        )

    def forward(self, sequence: Tensor) -> Tensor:
        tokens = sequence @ self.w_in.mT
        places = sinusoidal(torch.arange(sequence.shape[1]), self.positions).to(tokens).expand(len(sequence), -1, -1)
        for layer, kind in enumerate(self.kinds):
            w_q, w_k, w_v, w_o = self.parts[4 * layer : 4 * layer + 4]
            placed = tokens if layer else torch.cat([tokens, places], -1)
            q, k, v = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in (placed @ w_q.mT, placed @ w_k.mT, tokens @ w_v.mT)
            )
            tokens = tokens + self.attend(kind, q, k, v).transpose(1, 2).flatten(2) @ w_o.mT
            if self.clip is not None:
                tokens = tokens.clamp(-self.clip, self.clip)
        return tokens @ self.w_out.mT

    def attend(self, kind: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kind == "softmax":
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if kind == "mesa":
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
            known = (k[..., :, None] * k[..., None, :]).cumsum(2)
            known = known + self.ridge[:, None, None, None] * torch.eye(k.shape[-1])
            q = torch.linalg.solve(known, q)
        return (q @ k.mT).tril() @ v


def stepper(model: nn.Module) -> Callable[[Tensor], None]:
    """A training step of a plain module."""
    optimizer = torch.optim.AdamW(model.parameters(), PLAN.learning_rate, weight_decay=PLAN.weight_decay)

    def step(batch: Tensor) -> None:
        optimizer.zero_grad()
        ((model(batch[:, :-1]) - batch[:, 1:]).square().mean() / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), PLAN.clip)
        optimizer.step()

    return step


def ours(config, seeds: int) -> Callable[[Tensor], None]:
    """A training step of so many networks at once."""
    members = [config.build(stream(seed, "init")) for seed in range(seeds)]
    state = EnsembleState(Ensemble(members), half_mse, PLAN, seed=0)
    return lambda batch: state.update(batch.expand(seeds, *batch.shape))


def timed(name: str, batch: int, t: int) -> dict:
    """Median milliseconds a step and seed of each, and how far predictions are apart."""
    config, sequences = transformer(name), LinearDynamics(length=t + 1).sample(batch, stream(0, "bench"))
    network = config.build(stream(0, "init"))
    plain = Plain(network)
    with torch.no_grad():
        one, other = network(sequences[:, :-1]), plain(sequences[:, :-1])
    calls = {"plain": stepper(plain), "one": ours(config, 1), "three": ours(config, SEEDS)}
    times: dict[str, list[float]] = {key: [] for key in calls}
    for _ in range(ROUNDS + 2):
        for key, call in calls.items():
            start = time.perf_counter()
            call(sequences)
            times[key].append(time.perf_counter() - start)
    medians = {key: 1e3 * statistics.median(own[2:]) for key, own in times.items()}
    apart = float((one - other).abs().max() / other.abs().max())
    return {
        "net": name, "batch": batch, "t": t, "plain_ms": medians["plain"], "ms": medians["one"],
        "ms_of_three": medians["three"] / SEEDS, "apart": apart,
    }  # fmt: skip


def main() -> None:
    keep_freed_memory()
    torch.set_flush_denormal(True)
    rows = [timed(name, batch, t) for batch, t in SIZES for name in LAYERS]
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    RESULTS.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    columns = ("net", "batch", "t", "plain, ms a step", "mesascope", "of 3 seeds, each", "times plain", "apart")
    table = Table(*columns, title="a training step of a seed")
    for row in rows:
        sizes, speeds = (str(row[key]) for key in ("batch", "t")), (row["plain_ms"], row["ms"], row["ms_of_three"])
        ratio = row["plain_ms"] / row["ms_of_three"]
        table.add_row(row["net"], *sizes, *(f"{one:.0f}" for one in speeds), f"{ratio:.2f}", f"{row['apart']:.0e}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()

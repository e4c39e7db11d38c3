"""The mesa-layer in thousands of random configurations beside its definition in float64; see docs/torture-mesa.md.

``python tests/torture_mesa.py [COUNT]``; not a part of the tests, as 10,000 take some ten minutes.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.nn.functional import normalize

from mesascope.errors import NumericalError
from mesascope.ops import FixedRidgeState, MesaState, mesa_attention
from mesascope.streams import stream

PAGE = Path(__file__).parents[1] / "docs" / "torture-mesa.md"
# The bound, in units of rounding: see the page.
BASE, SLOPE = 100, 30
GATES = {
    "none": lambda u: torch.zeros_like(u),
    "U(.95, 1)": lambda u: (1 - 0.05 * u).log(),
    "U(.6, 1)": lambda u: (1 - 0.4 * u).log(),
    "10^U(-6, 0)": lambda u: -6 * math.log(10) * u,
    "a few forget all": lambda u: torch.where(u < 0.1, -torch.inf, -0.01 * u),
}


def drawn(number: int) -> tuple[dict[str, Tensor], dict[str, Any], torch.dtype]:
    """Inputs in float64 that the dtype holds exactly, options, and the dtype."""
    chance, generator = random.Random(number), stream(number, "torture")
    dtype = chance.choice([torch.float32, torch.float64])
    kind = chance.choice(["decaying", "constant", "relative"])
    batch, heads, t = chance.choice([(), (2,), (0,), (2, 1)]), chance.randint(1, 3), chance.choice([0, 1, 2, 7, 40, 90])
    dk, dv = chance.choice([1, 2, 5, 16]), chance.choice([1, 3, 8])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    size = 10.0 ** chance.uniform(-3, 3)
    ridge = 10.0 ** chance.uniform(-4, 2) * (1 if kind == "relative" else size**2)
    gates = chance.choice(list(GATES)[: 3 if kind == "decaying" else None])
    keys = normal(*batch, heads, t, dk)
    keys = size * (normalize(keys, dim=-1) if chance.random() < 0.7 else keys)
    if chance.random() < 0.2:  # the same key over and over
        keys = keys[..., :1, :].expand_as(keys).clone()
    inputs = {"q": normal(*batch, heads, t, dk), "k": keys, "v": normal(*batch, heads, t, dv)}
    inputs["ridge"] = ridge * (1 + torch.rand(heads, dk, generator=generator, dtype=torch.float64))
    inputs["log_forget"] = GATES[gates](torch.rand(*batch, heads, t, generator=generator, dtype=torch.float64))
    inputs["beta"] = torch.rand(*batch, heads, t, generator=generator, dtype=torch.float64).clamp(0.1, 0.9) - 0.1
    if chance.random() < 0.3:
        half = normal(*batch, heads, dk, dk)
        within = torch.diag_embed(inputs["ridge"]) if kind == "decaying" else 0
        state = size**2 * half @ half.mT / dk + within
        inputs |= {"H": state, "G": normal(*batch, heads, dv, dk)}
    methods = ["auto", "cg", "solve"] + ["chunk"] * 2 * (kind == "decaying")
    options = {"method": chance.choice(methods), "ridge_kind": kind}
    if options["method"] not in ("solve", "auto") and chance.random() < 0.5:
        options["chunk"] = chance.choice([1, 2, 5, 16, 64])
    rough = {name: part.to(dtype).double() for name, part in inputs.items()}
    return rough, options, dtype


def definition(inputs: dict[str, Tensor], kind: str) -> tuple[list[Tensor], float]:
    """Outputs and the last states, a token at a time, and the largest condition number."""
    q, k, v, ridge, log_forget, beta = (inputs[name] for name in ("q", "k", "v", "ridge", "log_forget", "beta"))
    shape, worst, rows = (*q.shape[:-2], q.shape[-1], q.shape[-1]), 1.0, []
    regulariser = torch.diag_embed(ridge)
    H = inputs.get("H", (regulariser if kind == "decaying" else 0 * regulariser).expand(shape))
    G = inputs.get("G", q.new_zeros(*q.shape[:-2], v.shape[-1], q.shape[-1]))
    for t in range(q.shape[-2]):
        forget, counted = log_forget[..., t, None, None].exp(), beta[..., t, None] * k[..., t, :]
        H = forget * H + counted[..., :, None] * k[..., t, None, :]
        G = forget * G + v[..., t, :, None] * counted[..., None, :]
        norm = H.square().sum((-2, -1), keepdim=True)
        own = {"decaying": 0, "constant": 1, "relative": norm.where(norm > 0, 1).sqrt()}[kind]
        A = H + own * regulariser
        rows.append((G @ torch.linalg.solve(A, q[..., t, :, None])).squeeze(-1))
        if A.numel():
            worst = max(worst, float(torch.linalg.cond(A.detach()).max()))
    return [torch.stack(rows, -2) if rows else v, H, G], worst


def with_gradients(inputs: dict[str, Tensor], call: Any) -> list[Tensor]:
    """Outputs, states, and the gradients of one number made of all of them."""
    leaves = {name: part.detach().clone().requires_grad_() for name, part in inputs.items()}
    outputs = call(leaves)
    cotangents = [torch.randn(part.shape, generator=stream(n, "cotangent")).to(part) for n, part in enumerate(outputs)]
    cotangents[1] = cotangents[1] + cotangents[1].mT  # H is symmetric, and so must be what is asked of it
    total = sum((part * cotangent).sum() for part, cotangent in zip(outputs, cotangents, strict=True))
    return [*outputs, *torch.autograd.grad(total, list(leaves.values()), materialize_grads=True, allow_unused=True)]


def called(leaves: dict[str, Tensor], options: dict[str, Any]) -> list[Tensor]:
    named = {name: part for name, part in leaves.items() if name not in "HG"}
    kind = MesaState if options["ridge_kind"] == "decaying" else FixedRidgeState
    state = kind(leaves["H"], leaves["G"]) if "H" in leaves else None
    y, after = mesa_attention(**named, state=state, return_state=True, **options)
    return [y, *after]


def error(found: list[Tensor], expected: list[Tensor], inputs: dict[str, Tensor]) -> float:
    """The largest over outputs, states and gradients, each relative to its own size.

    Those of gates are what is left of sums that cancel, often nearly so; they count relative to their terms, which are
    as large as anything else times its gradient, and for beta so much over beta.
    """
    names = ["y", "last H", "last G", *inputs]
    known = [name for name in ("q", "k", "v", "ridge", "H", "G") if name in inputs]
    terms = max(float((inputs[name] * expected[names.index(name)]).norm()) for name in known)
    worst = 0.0
    for name, one, true in zip(names, found, expected, strict=True):
        own, true = one.detach().double(), true.detach()
        if name == "H":  # a symmetric matrix, whose halves count together
            own, true = own + own.mT, true + true.mT
        size = true.norm().expand_as(true)
        if name in ("log_forget", "beta"):
            beta = inputs["beta"]
            size = size.clamp(min=terms / beta.where(beta > 0, 1) if name == "beta" else terms)
        if bool((size > 0).all()):
            worst = max(worst, float(((own - true) / size).norm()))
    return worst


def main(count: int = 10_000) -> None:
    tally: Counter[str] = Counter()
    worst: dict[str, float] = {}
    failures = []
    for number in track(range(count), "configurations"):
        inputs, options, dtype = drawn(number)
        kind, bits = options["ridge_kind"], str(dtype).removeprefix("torch.")
        condition = 1.0

        def by_definition(leaves: dict[str, Tensor], kind: str = kind) -> list[Tensor]:
            nonlocal condition
            outputs, condition = definition(leaves, kind)
            return outputs

        expected = with_gradients(inputs, by_definition)
        eps = torch.finfo(dtype).eps
        rough = {name: part.to(dtype) for name, part in inputs.items()}
        group = f"{bits}, {kind}"
        tally[group] += 1
        try:
            found = with_gradients(rough, lambda leaves, options=options: called(leaves, options))
        except NumericalError:
            tally[f"{group}: refused"] += 1
            if condition < 0.01 / eps:
                failures.append((number, "refused", condition))
            continue
        bound = eps * (BASE + SLOPE * condition)
        off = error(found, expected, inputs) / bound
        if off > 1:  # no worse than the definition in the same dtype will do
            dense = error(with_gradients(rough, by_definition), expected, inputs)
            off = off * bound / max(bound, 2 * dense)
        worst[group] = max(worst.get(group, 0.0), off)
        if not off < 1:
            failures.append((number, off, condition))
    report(count, tally, worst, failures)


def report(count: int, tally: Counter[str], worst: dict[str, float], failures: list[Any]) -> None:
    rows = "\n".join(
        f"| {group} | {tally[group]:,} | {tally[f'{group}: refused']:,} | {worst.get(group, 0.0):.2f} |"
        for group in sorted(group for group in tally if "refused" not in group)
    )
    text = f"""# The mesa-layer in random configurations

`python tests/torture_mesa.py` draws shapes, keys, gates, ridges, states, methods and chunks at random, and compares
outputs, states and all gradients with the definition, a token at a time in float64. The bound on the largest relative
error is ({BASE} + {SLOPE} kappa) units of rounding, kappa the largest condition number of any token's matrix, or twice
the error of the definition in the same dtype, where that is more. Gradients of gates, which are sums that may cancel,
count relative to their terms. An error in place of an answer is right only where kappa is above 0.01 over the unit.

{count:,} configurations, {len(failures)} outside.

| dtype, ridge | configurations | refused, as singular | largest error / its bound |
|---|---|---|---|
{rows}
"""
    for failure in failures[:20]:
        print(*failure)
    print(text)
    if count >= 10_000:
        PAGE.write_text(text)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""The mesa-layer in thousands of random configurations beside its definition in float64; see docs/torture-mesa.md.

``python tests/torture_mesa.py [COUNT]``; the suite runs a few of them (`test_mesa`), as 10,000 take some 25 minutes.
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
from mesascope.ops import FixedRidgeState, MesaState, mesa_attention, mesa_attention_reference
from mesascope.streams import stream

PAGE = Path(__file__).parents[1] / "docs" / "torture-mesa.md"
# The bound, in units of rounding: see the page.
BASE, SLOPE = 100, 30
# Condition number, in units of 1 over rounding, above which an error in place of an answer is right.
SINGULAR = 0.1
GATES = {
    "none": lambda u: torch.zeros_like(u),
    "U(.95, 1)": lambda u: (1 - 0.05 * u).log(),
    "U(.6, 1)": lambda u: (1 - 0.4 * u).log(),
    "10^U(-6, 0)": lambda u: -6 * math.log(10) * u,
    "a few forget all": lambda u: torch.where(u < 0.1, -torch.inf, -0.01 * u),
}
# Tokens and entries of keys, with how often each is drawn: most are small, since the definition takes T d^3.
TOKENS = {0: 5, 1: 5, 2: 5, 7: 20, 40: 20, 90: 20, 300: 4, 8192: 0.1}
ENTRIES = {1: 5, 2: 10, 5: 20, 16: 20, 64: 8, 128: 4}


def drawn(number: int) -> tuple[dict[str, Tensor], dict[str, Any], torch.dtype]:
    """Inputs in float64 that the dtype holds exactly, options, and the dtype."""
    chance, generator = random.Random(number), stream(number, "torture")
    dtype = chance.choice([torch.float32, torch.float64])
    kind = chance.choice(["decaying", "constant", "relative"])
    t, dk = (chance.choices(list(sizes), sizes.values())[0] for sizes in (TOKENS, ENTRIES))
    t = min(t, 50_000 // dk)
    many = t > 90 or dk > 16
    batch, heads = ((), 1) if many else (chance.choice([(), (2,), (0,), (2, 1)]), chance.randint(1, 3))
    dv = chance.choice([1, 3, 8])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    size = 10.0 ** chance.uniform(-3, 3)
    ridge = 10.0 ** chance.uniform(-4, 2) * (1 if kind == "relative" else size**2)
    gates = chance.choice(list(GATES)[: 3 if kind == "decaying" else None])
    keys = correlated(chance, normal, (*batch, heads), t, dk)
    keys = size * (normalize(keys, dim=-1) if chance.random() < 0.7 else keys)
    inputs = {"q": normal(*batch, heads, t, dk), "k": keys, "v": normal(*batch, heads, t, dv)}
    inputs["ridge"] = ridge * (1 + torch.rand(heads, dk, generator=generator, dtype=torch.float64))
    inputs["log_forget"] = GATES[gates](torch.rand(*batch, heads, t, generator=generator, dtype=torch.float64))
    strengths = torch.rand(*batch, heads, t, generator=generator, dtype=torch.float64)
    inputs["beta"] = chance.choice(
        [strengths.clamp(0.1, 0.9) - 0.1, 10 ** (-4 * strengths), torch.ones_like(strengths)]
    )
    if chance.random() < 0.3:
        half = normal(*batch, heads, dk, dk)
        within = torch.diag_embed(inputs["ridge"]) if kind == "decaying" else 0
        state = size**2 * half @ half.mT / dk + within
        inputs |= {"H": state, "G": normal(*batch, heads, dv, dk)}
    methods = ["exact", "exact"] + ["reference"] * (t <= 90) + ["exact"] * 2 * (kind == "decaying")
    options = {"method": chance.choice(methods), "ridge_kind": kind}
    if options["method"] == "exact" and chance.random() < 0.5:
        options["chunk"] = chance.choice([1, 2, 5, 16, 64])
    rough = {name: part.to(dtype).double() for name, part in inputs.items()}
    return rough, options, dtype


def correlated(chance: random.Random, normal: Any, shape: tuple[int, ...], t: int, dk: int) -> Tensor:
    """Keys of independent directions, near one direction, of a few, or a few keys over and over."""
    law = chance.choice(["independent", "independent", "near one", "of a few", "repeated", "graded"])
    keys, few = normal(*shape, t, dk), chance.randint(1, max(dk // 2, 1))
    if law == "near one":
        keys = normal(*shape, 1, dk) + 10.0 ** chance.uniform(-4, 0) * keys
    if law == "of a few":
        keys = normal(*shape, t, few) @ normal(*shape, few, dk) + 10.0 ** chance.uniform(-9, -1) * keys
    if law == "repeated":
        keys = normal(*shape, few, dk)[..., torch.tensor([chance.randrange(few) for _ in range(t)]).long(), :]
    if law == "graded":
        keys = keys * 10.0 ** -torch.linspace(0, chance.uniform(0, 4), dk, dtype=torch.float64)
    return keys


def definition(inputs: dict[str, Tensor], kind: str) -> tuple[list[Tensor], float]:
    """Outputs and the last states, by a sum and a solve for every token, and the largest condition number."""
    q, k, v, ridge, log_forget, beta = (inputs[name] for name in ("q", "k", "v", "ridge", "log_forget", "beta"))
    shape = (*q.shape[:-2], q.shape[-1], q.shape[-1])
    regulariser = torch.diag_embed(ridge)
    H = inputs.get("H", (regulariser if kind == "decaying" else 0 * regulariser).expand(shape))
    G = inputs.get("G", q.new_zeros(*q.shape[:-2], v.shape[-1], q.shape[-1]))
    if not q.shape[-2]:
        return [v, H, G], 1.0
    states, known = [], torch.cat([k, v], -1)[..., :, None] * (beta[..., None] * k)[..., None, :]
    state = torch.cat([H, G], -2)
    for forget, new in zip(log_forget.exp()[..., None, None].unbind(-3), known.unbind(-3), strict=True):
        state = forget * state + new
        states.append(state)
    H, G = torch.stack(states, -3).split([k.shape[-1], v.shape[-1]], -2)
    norm = H.square().sum((-2, -1), keepdim=True)
    own = {"decaying": 0, "constant": 1, "relative": norm.where(norm > 0, 1).sqrt()}[kind]
    A = H + own * regulariser[:, None]
    y = (G @ torch.linalg.solve(A, q[..., None])).squeeze(-1)
    spectra = torch.linalg.eigvalsh(A.detach())
    worst = (spectra[..., -1] / spectra[..., 0].clamp(min=1e-300)).flatten()
    return [y, H[..., -1, :, :], G[..., -1, :, :]], float(worst.max()) if len(worst) else 1.0


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
    options = dict(options)
    attend = mesa_attention_reference if options.pop("method") == "reference" else mesa_attention
    y, after = attend(**named, state=state, return_state=True, **options)
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


def judged(number: int) -> tuple[str, float, float]:
    """The group of one configuration, its largest error over its bound (nan if refused), and its condition number."""
    inputs, options, dtype = drawn(number)
    kind, eps, condition = options["ridge_kind"], torch.finfo(dtype).eps, 1.0

    def by_definition(leaves: dict[str, Tensor]) -> list[Tensor]:
        nonlocal condition
        outputs, condition = definition(leaves, kind)
        return outputs

    expected, group = with_gradients(inputs, by_definition), f"{str(dtype).removeprefix('torch.')}, {kind}"
    rough = {name: part.to(dtype) for name, part in inputs.items()}
    try:
        found = with_gradients(rough, lambda leaves: called(leaves, options))
    except NumericalError:
        return group, math.nan, condition * eps
    known, bound = condition, eps * (BASE + SLOPE * condition)
    off = error(found, expected, inputs)
    if off > bound:  # no worse than the definition in the same dtype will do
        bound = max(bound, 2 * error(with_gradients(rough, by_definition), expected, inputs))
    return group, off / bound, known * eps


def is_right(off: float, condition: float) -> bool:
    """True if the error keeps its bound, or if what is refused is singular to the dtype."""
    return condition > SINGULAR if math.isnan(off) else off < 1


def main(count: int = 10_000) -> None:
    tally: Counter[str] = Counter()
    worst: dict[str, float] = {}
    failures = []
    for number in track(range(count), "configurations"):
        group, off, condition = judged(number)
        tally[group] += 1
        if math.isnan(off):
            tally[f"{group}: refused"] += 1
        else:
            worst[group] = max(worst.get(group, 0.0), off)
        if not is_right(off, condition):
            failures.append((number, off, condition))
    report(count, tally, worst, failures)


def report(count: int, tally: Counter[str], worst: dict[str, float], failures: list[Any]) -> None:
    rows = "\n".join(
        f"| {group} | {tally[group]:,} | {tally[f'{group}: refused']:,} | {worst.get(group, 0.0):.2f} |"
        for group in sorted(group for group in tally if "refused" not in group)
    )
    text = f"""# The mesa-layer in random configurations

`python tests/torture_mesa.py` draws at random: shapes (up to {max(TOKENS):,} tokens, keys of up to {max(ENTRIES)}
entries), keys (independent, nearly parallel, in few dimensions, repeated, or with entries of unequal size), gates,
input strengths, ridges, initial states, methods and chunk sizes. It compares outputs, states and all gradients with a
float64 reference that solves the least-squares problem of each token separately. The bound on the relative error is
the larger of two numbers: ({BASE} + {SLOPE} kappa) eps, and twice the error of the reference in the same dtype. Here
eps is the unit of rounding, and kappa the largest condition number of any token's matrix. Errors of gradients of gates
are relative to the size of the summed terms, as these may cancel. The layer may refuse to answer only if kappa exceeds
{SINGULAR} / eps.

{len(failures):,} of {count:,} configurations exceeded the bound.

| dtype, ridge | configurations | refused, as singular | largest error / bound |
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

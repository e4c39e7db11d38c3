"""What do the weights of trained layers look like beside those constructed to run gradient descent?

ICML paper: Figures 9 and 11. Products W_KQ and W_PV of one linear layer, of three looped linear layers, and of one
softmax layer with two heads, rescaled as in appendix A.3.

The row and column of W_KQ that meet targets carry no gradient where the query's target is zero: one layer keeps there
what it began with. The structure is therefore read on the inputs' block, and the whole matrix beside it in the figure.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from matplotlib.figure import Figure

from mesascope.constructions import gradient_descent, gradient_descent_plus_plus
from mesascope.learners import one_step_optimum
from mesascope.lenses import rescaled_products
from mesascope.measurement import Measurement
from mesascope.nets import InContextRegressor, TransformerConfig
from mesascope.runs import Bound, Claim
from mesascope.studies.evidence import both, largest
from mesascope.studies.icl_gd.panels import captioned, heat_maps
from mesascope.studies.icl_gd.regression import tied_gd_plus_plus, train_nets
from mesascope.studies.icl_gd.softmax import Softmax
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study

__all__ = ["STUDY"]

NETS = {
    "one-layer": TransformerConfig(width=11),
    "three-looped": TransformerConfig(width=11, n_layers=3, shared=True),
    "two-heads": TransformerConfig(width=11, n_heads=2, key_size=11, attention="softmax"),
}
D = 10

CLAIMS = (
    Claim(
        "one-layer-structure",
        "largest entry off the diagonal of one layer's W_KQ, % of the mean diagonal (worst seed)",
        "ICML paper, Fig. 9 left",
        both(Bound(high=3.0)),
        reference=3.0,
    ),
    Claim(
        "looped-structure",
        "largest entry off the diagonal of three looped layers' W_KQ, % of the mean diagonal (worst seed)",
        "ICML paper, Fig. 9 right",
        both(Bound(high=3.0)),
    ),
    Claim(
        "looped-values",
        "largest entry of the looped W_PV off its diagonal, % of the target's (worst seed)",
        "ICML paper, Fig. 9 right",
        both(Bound(high=3.0)),
    ),
    Claim(
        "curvature-constant",
        "largest distance of the diagonal of the looped W_PV's input block from its mean, % of it (worst seed)",
        "ICML paper, Fig. 9 right",
        both(Bound(high=3.0)),
    ),
    Claim(
        "heads-cancel",
        "off-diagonal mass of the two heads' summed products over that of a single head (worst seed)",
        "ICML paper, Fig. 11",
        both(Bound(high=0.1)),
    ),
)


def measure(lab: Lab, settings: Softmax) -> Results:
    """Train the three kinds of network and read their products."""
    results: dict = {}
    for name, config in NETS.items():
        scale, training = settings.init_scale, settings.training
        if name == "two-heads":
            scale = settings.two_heads_init_scale
            training = dataclasses.replace(training, learning_rate=settings.two_heads_learning_rate)
        config = dataclasses.replace(config, init_scale=scale)
        nets = train_nets(lab, name, config, settings.family, training)
        read = _heads if name == "two-heads" else _products
        results[name] = lab.stage(name, lambda nets=nets, read=read: read(nets))
    optimum = one_step_optimum(settings.family)
    _, eta, gamma = tied_gd_plus_plus(settings.family, 3, settings.tune_tasks, lab.seed)
    built = {
        "one-layer": gradient_descent(D, 1, optimum.eta, D).network,
        "three-looped": gradient_descent_plus_plus(D, 1, eta, gamma, D, steps=3).network,
    }
    return results | {
        f"{name}-construction": lab.stage(f"{name}-construction", lambda net=net: _products([net]))
        for name, net in built.items()
    }


def _products(nets: list[InContextRegressor]) -> dict[str, np.ndarray]:
    """The rescaled products of each network's first layer, ``(nets, width, width)``."""
    first = [rescaled_products(net)[0] for net in nets]
    return {
        "w_kq": np.stack([layer.w_kq[0].cpu().numpy() for layer in first]),
        "w_pv": np.stack([layer.w_pv[0].cpu().numpy() for layer in first]),
    }


def _heads(nets: list[InContextRegressor]) -> dict[str, np.ndarray]:
    """W_KQ of each head times its W_PV's target entry: what the paper's appendix A.9 adds up, ``(nets, 2, d, d)``."""
    products = [net.products()[0] for net in nets]
    scaled = [(w_kq * w_pv[:, -1:, -1:])[:, :D, :D] for w_kq, w_pv in products]
    return {"scaled_kq": np.stack([one.detach().cpu().numpy() for one in scaled])}


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    one, looped = results["one-layer"], results["three-looped"]
    curvature = np.diagonal(looped["w_pv"], axis1=1, axis2=2)[:, :D]
    mean = curvature.mean(axis=1, keepdims=True)
    heads = results["two-heads"]["scaled_kq"]
    single = _off_diagonal_norm(heads).min(axis=1)
    values = np.abs(_off_diagonal(looped["w_pv"])).max(axis=(1, 2)) / np.abs(looped["w_pv"][:, -1, -1])
    return {
        "one-layer-structure": largest(100 * np.abs(_off_diagonal(one["w_kq"][:, :D, :D])).max(axis=(1, 2))),
        "looped-structure": largest(100 * np.abs(_off_diagonal(looped["w_kq"])).max(axis=(1, 2))),
        "looped-values": largest(100 * values),
        "curvature-constant": largest(100 * np.abs(curvature / mean - 1).max(axis=1)),
        "heads-cancel": largest(_off_diagonal_norm(heads.sum(axis=1)) / single),
    }


def _off_diagonal(matrices: np.ndarray) -> np.ndarray:
    return matrices * (1 - np.eye(matrices.shape[-1]))


def _off_diagonal_norm(matrices: np.ndarray) -> np.ndarray:
    return np.linalg.norm(_off_diagonal(matrices), axis=(-2, -1))


def draw(results: Results) -> dict[str, Figure]:
    """Heat maps of the first seed, trained beside constructed."""
    figures: dict = {}
    for name, words in (("one-layer", "One layer"), ("three-looped", "Three looped layers")):
        run, built = results[name], results[f"{name}-construction"]
        panels = [
            (f"$W_{{{index}}}$ {kind}", arrays[key][0])
            for key, index in (("w_kq", "KQ"), ("w_pv", "PV"))
            for kind, arrays in (("trained (seed 0)", run), ("construction", built))
        ]
        figures[name] = heat_maps(panels, 1.0), f"{words}: products rescaled as in appendix A.3. Paper: Fig. 9."
    heads = results["two-heads"]["scaled_kq"][0]
    panels = [("head 1", heads[0]), ("head 2", heads[1]), ("sum of both", heads.sum(axis=0))]
    caption = (
        "Softmax layer with two heads (seed 0): W_KQ of each head times the target entry of its W_PV, and their "
        "sum, on the inputs. Paper: Fig. 11."
    )
    figures["two-heads"] = heat_maps(panels), caption
    return captioned(figures)


STUDY = Study(
    name="weights",
    question="What do the weights of trained layers look like beside those constructed to run gradient descent?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Figs. 9, 11",
    presets={
        "quick": Softmax(steps=1000, learning_rate=4e-3, clip=0.001, init_scale=0.02),
        "paper": Softmax(
            steps=5000, learning_rate=1e-3, clip=0.001, two_heads_learning_rate=1e-3, two_heads_init_scale=0.002
        ),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)

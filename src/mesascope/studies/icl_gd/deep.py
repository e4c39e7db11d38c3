"""Do five separate linear self-attention layers, and ten looped ones, run GD++?

ICML paper: Figures 3 (right), 6c and 7. Tokens are clipped at 10 throughout. Five layers with weights of their own are
compared with five gradient steps (a tuned step size each), with five steps of GD++ (an eta and a gamma each, tuned),
and with the GD++ whose step sizes their own weights spell: step sizes of deep GD++ have many good values, and each
network finds its own. Ten looped layers are compared with ten tied steps of GD++.

Means rest on the rare contexts where these polynomials explode, so medians stand beside them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mesascope.constructions import gradient_descent_plus_plus
from mesascope.errors import require_count, require_number
from mesascope.learners import GradientDescentPlusPlus, tune
from mesascope.lenses import agreement, interpolate, step_sizes
from mesascope.measurement import Measurement
from mesascope.nets import InContextRegressor, TransformerConfig
from mesascope.reports import COLOURS, STYLE
from mesascope.runs import Bound, Claim
from mesascope.streams import stream
from mesascope.studies.evidence import arrays_of, both, excess_percent, largest, smallest
from mesascope.studies.icl_gd.panels import captioned, contrast_figures
from mesascope.studies.icl_gd.regression import (
    QUANTILES,
    Regression,
    comparison,
    contrast,
    tied_gd_plus_plus,
    untied_descents,
)
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study
from mesascope.tasks import Episode

__all__ = ["STUDY", "Deep"]

D, CLIP = 10, 10.0
SEPARATE, LOOPED = 5, 10
PATH = (0.0, 0.25, 0.5, 0.75, 1.0)

CLAIMS = (
    Claim(
        "median-below-gd",
        "median loss of five per-step-tuned gradient steps over that of five separate layers (worst seed)",
        "ICML paper, Fig. 3b left",
        {"quick": Bound(low=3.0), "paper": Bound(low=5.0)},
    ),
    Claim(
        "loss-matches-own-gd++",
        "distance of the loss of five layers from that of GD++ with their own step sizes, % (worst seed, paired)",
        "ICML paper, Fig. 3b left",
        both(Bound(high=10.0)),
    ),
    Claim(
        "cosine-own-gd++",
        "cosine of five layers with GD++ whose step sizes are read from their weights (worst seed)",
        "ICML paper, Fig. 3b centre",
        both(Bound(low=0.99)),
    ),
    Claim(
        "cosine-tuned-gd++",
        "cosine of five layers with five tuned steps of GD++ (worst seed)",
        "ICML paper, Fig. 3b centre",
        both(Bound(low=0.99)),
    ),
    Claim(
        "gd++-above-gd",
        "cosine of five layers with tuned GD++ less that with tuned gradient descent (worst seed)",
        "ICML paper, Fig. 3b centre",
        both(Bound(low=0.0)),
    ),
    Claim(
        "looped-matches-gd++",
        "distance of the loss of ten looped layers from tied GD++'s, % (worst seed, paired)",
        "ICML paper, Fig. 7",
        {"quick": Bound(high=50.0), "paper": Bound(high=10.0)},
    ),
    Claim(
        "looped-worse",
        "mean loss of ten looped layers over that of five separate ones (lowest looped, highest separate seed)",
        "ICML paper, appendix A.2",
        both(Bound(low=1.0)),
    ),
    Claim(
        "interpolation",
        "excess loss halfway between five rescaled layers and their own GD++ over either end, % (worst but one seed)",
        "ICML paper, Fig. 3b left: left to future work",
        both(Bound(high=10.0)),
    ),
)


@dataclass(frozen=True)
class Deep(Regression):
    """Settings of the study."""

    looped_steps: int = 5000
    """Training steps of the ten looped layers."""
    looped_learning_rate: float = 4e-3
    """Their largest learning rate."""
    looped_init_scale: float = 0.02
    """Their init_scale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("looped_steps", self.looped_steps)
        for name in ("looped_learning_rate", "looped_init_scale"):
            require_number(name, getattr(self, name), above=0)


def measure(lab: Lab, settings: Deep) -> Results:
    """Train both kinds of network, and compare."""
    family = settings.family
    fresh = family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))
    references, tuned = untied_descents(lab, family, SEPARATE, CLIP, settings.tune_tasks)
    config = TransformerConfig(width=D + 1, n_layers=SEPARATE, token_clip=CLIP, init_scale=settings.init_scale)
    nets, results = contrast(lab, settings, "separate", config, references)
    own = [_own(net) for net in nets]

    tied = lab.stage("tied", lambda: _tied(lab, settings))
    clipped = GradientDescentPlusPlus(LOOPED, tied["eta"].item(), tied["gamma"].item(), token_clip=CLIP)
    config = dataclasses.replace(config, n_layers=LOOPED, shared=True, init_scale=settings.looped_init_scale)
    training = dataclasses.replace(
        settings, steps=settings.looped_steps, learning_rate=settings.looped_learning_rate
    ).training
    _, looped = contrast(lab, settings, "looped", config, {"gd++": clipped}, training)
    return {
        **results,
        **looped,
        "own": lab.stage("own", lambda: comparison(nets, {"own": own}, fresh)),
        "interpolation": lab.stage("interpolation", lambda: _paths(nets, own, references["gd++"], fresh)),
        "tuned": tuned,
        "tied": tied,
    }


def _tied(lab: Lab, settings: Deep) -> dict[str, np.ndarray]:
    """Step sizes of ten tied GD++ steps with clipped tokens.

    They are tuned from the optimum of three steps without clip; that of ten explodes once its tokens are clipped.
    """
    family, tasks = settings.family, settings.tune_tasks
    start = tied_gd_plus_plus(family, 3, tasks, lab.seed)
    clipped = GradientDescentPlusPlus(LOOPED, start.eta, start.gamma, token_clip=CLIP)
    tuned = tune(clipped, family, tasks=tasks, seed=lab.seed).step_sizes
    return {name: np.array(size.value) for name, (size,) in tuned.items()}


def _own(net: InContextRegressor) -> GradientDescentPlusPlus:
    """GD++ with the step sizes that a network's weights spell."""
    eta, gamma = (sizes.tolist() for sizes in step_sizes(net, D))
    return GradientDescentPlusPlus(SEPARATE, eta, gamma, token_clip=CLIP)


def _paths(
    nets: list[InContextRegressor], own: list[GradientDescentPlusPlus], tuned: GradientDescentPlusPlus, fresh: Episode
) -> dict[str, np.ndarray]:
    """Losses from each network to its own GD++ and to tuned GD++; halfway, over the larger end as well."""
    arrays: dict[str, np.ndarray] = {"t": np.array(PATH)}
    for name, algorithms in (("own", own), ("tuned", [tuned] * len(nets))):
        ends = [_as_network(net, algorithm) for net, algorithm in zip(nets, algorithms, strict=True)]
        seen = [
            [agreement(interpolate(net, end, t), net, fresh).mse_a.value for t in PATH]
            for net, end in zip(nets, ends, strict=True)
        ]
        arrays[name] = np.array(seen)
        middles = [interpolate(net, end, 0.5) for net, end in zip(nets, ends, strict=True)]
        ratios = [
            agreement(middle, side, fresh).mse_ratio
            for middle, net, end in zip(middles, nets, ends, strict=True)
            for side in (net, end)
        ]
        arrays |= {f"{name}_ratio_{key}": array.reshape(-1, 2) for key, array in arrays_of(ratios).items()}
    return arrays


def _as_network(net: InContextRegressor, algorithm: GradientDescentPlusPlus) -> InContextRegressor:
    """The construction of ``algorithm`` in an architecture like ``net``'s, clip included."""
    assert algorithm.gamma is not None
    built = gradient_descent_plus_plus(D, 1, algorithm.eta.tolist(), algorithm.gamma.tolist(), D, SEPARATE).network
    like = net.products()[0].w_kq
    return net.with_products([type(layer)(*(part.to(like) for part in layer)) for layer in built.products()])


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    main, own, looped = (results[name] for name in ("separate-comparison", "own", "looped-comparison"))
    to_gd, to_plus = (main[f"{name}_sensitivity_cosine_value"] for name in ("gd", "gd++"))
    spread = np.hypot(*(main[f"{name}_sensitivity_cosine_stderr"] for name in ("gd", "gd++")))
    tasks = int(main["tasks"])
    median = QUANTILES.index(0.5)
    times = main["gd_quantiles"][median] / main["quantiles"][:, median]
    relative_median = np.hypot(
        main["median_stderr"] / main["quantiles"][:, median], main["gd_median_stderr"] / main["gd_quantiles"][median]
    )
    between = results["interpolation"]
    worst = between["own_ratio_value"].argmax(axis=1)[:, None]
    value, stderr, n = (
        np.take_along_axis(between[f"own_ratio_{key}"], worst, axis=1)[:, 0] for key in ("value", "stderr", "n")
    )
    kept = np.argsort(value)[: max(len(value) - 1, 1)]
    lowest, highest = looped["mse_value"].argmin(), main["mse_value"].argmax()
    ratio = looped["mse_value"][lowest] / main["mse_value"][highest]
    relative = [part["mse_stderr"][i] / part["mse_value"][i] for part, i in ((looped, lowest), (main, highest))]
    return {
        "median-below-gd": smallest(times, times * relative_median, tasks),
        "loss-matches-own-gd++": excess_percent(own, "own_mse_ratio", sign=0),
        "cosine-own-gd++": smallest(*(own[f"own_sensitivity_cosine_{key}"] for key in ("value", "stderr", "n"))),
        "cosine-tuned-gd++": smallest(to_plus, main["gd++_sensitivity_cosine_stderr"], tasks),
        "gd++-above-gd": smallest(to_plus - to_gd, spread, tasks),
        "looped-matches-gd++": excess_percent(looped, "gd++_mse_ratio", sign=0),
        "looped-worse": Measurement(float(ratio), float(ratio * np.hypot(*relative)), tasks),
        "interpolation": largest(100 * (value - 1)[kept], 100 * stderr[kept], n[kept]),
    }


def draw(results: Results) -> dict[str, Figure]:
    """The paper's panels, the spread over tasks, and the paths between weights."""
    figures = contrast_figures(
        results, "separate", "five separate layers", ["gd", "gd++"], source="Paper: Figs. 3b and 6c", log=True
    )
    figures |= contrast_figures(results, "looped", "ten looped layers", ["gd++"], source="Paper: Fig. 7", log=True)
    main, between = results["separate-comparison"], results["interpolation"]
    with matplotlib.rc_context(STYLE):
        spread = Figure(figsize=(5, 3))
        axes = spread.subplots()
        axes.plot(main["quantile"], main["quantiles"].T / 2, ".-", color=COLOURS["trained"], lw=0.8)
        axes.plot([], [], ".-", color=COLOURS["trained"], label="five separate layers, each seed")
        for name, label in (("gd", "gradient descent"), ("gd++", "GD++")):
            axes.plot(main["quantile"], main[f"{name}_quantiles"] / 2, "o-", color=COLOURS[name], label=label)
        axes.set(title="Spread over tasks", xlabel="quantile", ylabel="half squared error", yscale="log")
        axes.legend()
        paths = Figure(figsize=(5, 3))
        axes = paths.subplots()
        for name, role, label in (("own", "interpolated", "to its own GD++"), ("tuned", "gd++", "to tuned GD++")):
            axes.plot(between["t"], between[name].T / 2, ".-", color=COLOURS[role], lw=0.8)
            axes.plot([], [], ".-", color=COLOURS[role], label=label)
        axes.set(
            title="From the network to GD++", xlabel="share of GD++", ylabel="half mean squared error", yscale="log"
        )
        axes.legend()
    source = "Paper: Fig. 3b"
    return captioned(
        figures
        | {
            "separate-comparison": (spread, f"Quantiles over fresh tasks of the squared error. {source}."),
            "interpolation": (paths, f"Loss between each network's rescaled products and GD++'s. {source}."),
        }
    )


STUDY = Study(
    name="deep",
    question="Do five separate linear self-attention layers, and ten looped ones, run GD++?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Figs. 3 right, 6c, 7",
    presets={
        "quick": Deep(
            steps=700,
            batch=512,
            learning_rate=8e-3,
            clip=0.001,
            init_scale=3.0,
            tasks=10_000,
            sweep_tasks=500,
            looped_steps=300,
            tune_tasks=500,
        ),
        "paper": Deep(steps=6000, learning_rate=8e-3, clip=0.001, init_scale=3.0, sweep_tasks=5000, tune_tasks=5000),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)

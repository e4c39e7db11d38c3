"""Do two looped linear self-attention layers run two steps of GD++?

ICML paper: Figures 3 (left) and 6b. One layer applied twice is compared with two steps of gradient descent (one tuned
step size) and with two tied steps of GD++ (one eta, one gamma), both tuned from spectra on tasks of their own.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from mesascope.constructions import gradient_descent_plus_plus
from mesascope.learners import GradientDescent, tune_spectral
from mesascope.lenses import step_sizes
from mesascope.measurement import Measurement
from mesascope.nets import TransformerConfig
from mesascope.runs import Bound, Claim
from mesascope.streams import stream
from mesascope.studies.evidence import both, excess_percent, largest, smallest
from mesascope.studies.icl_gd.panels import captioned, contrast_figures
from mesascope.studies.icl_gd.regression import Regression, contrast, halfway, tied_gd_plus_plus
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study

__all__ = ["STUDY"]

CLAIMS = (
    Claim(
        "beats-gd",
        "how far the trained loss is below two tuned gradient steps', % (worst seed, paired)",
        "ICML paper, Fig. 3a left",
        both(Bound(low=20.0)),
        reference=28.4,
    ),
    Claim(
        "loss-matches-gd++",
        "distance of the trained loss from tied GD++'s, % (worst seed, paired)",
        "ICML paper, Fig. 3a left",
        both(Bound(high=3.0)),
        reference=1.9,
    ),
    Claim(
        "sensitivity-cosine",
        "mean cosine of dy/dx_q with tied GD++'s (worst seed)",
        "ICML paper, Fig. 3a centre right",
        both(Bound(low=0.997)),
        reference=0.9974,
    ),
    Claim(
        "gd-early",
        "cosine to gradient descent less cosine to GD++ where the former peaks (worst seed)",
        "ICML paper, Fig. 3a centre",
        both(Bound(low=0.0)),
    ),
    Claim(
        "gd++-late",
        "cosine to GD++ less cosine to gradient descent at the end of training (worst seed)",
        "ICML paper, Fig. 3a centre",
        both(Bound(low=0.0)),
        reference=0.045,
    ),
    Claim(
        "eta-read",
        "distance of the eta in the weights from tuned GD++'s, % (worst seed)",
        "ICML paper, section 3",
        both(Bound(high=5.0)),
    ),
    Claim(
        "gamma-read",
        "distance of the gamma in the weights from tuned GD++'s, % (worst seed)",
        "ICML paper, section 3 and appendix A.10",
        both(Bound(high=5.0)),
    ),
    Claim(
        "interpolation",
        "excess loss halfway between trained weights and construction over either end, % (worst seed)",
        "ICML paper, Fig. 3a left",
        both(Bound(high=3.0)),
    ),
    Claim(
        "input-scale-low",
        "lowest loss ratio trained / GD++ for input scales up to 1.25 times training's (worst seed and scale)",
        "ICML paper, Figs. 3a right and 6b",
        both(Bound(low=0.8)),
    ),
    Claim(
        "input-scale-high",
        "highest loss ratio trained / GD++ for input scales up to 1.25 times training's (worst seed and scale)",
        "ICML paper, Figs. 3a right and 6b",
        both(Bound(high=1.25)),
    ),
)


def measure(lab: Lab, settings: Regression) -> Results:
    """Train and compare."""
    tied, eta, gamma = tied_gd_plus_plus(settings.family, 2, settings.tune_tasks, lab.seed)
    gd = tune_spectral(GradientDescent(2, 1.0), settings.family, contexts=settings.tune_tasks, seed=lab.seed).learner
    config = TransformerConfig(width=11, n_layers=2, shared=True, init_scale=settings.init_scale)
    nets, results = contrast(lab, settings, "looped", config, {"gd": gd, "gd++": tied})
    construction = gradient_descent_plus_plus(10, 1, eta, gamma, 10, steps=2).network.float().to(lab.device)
    fresh = settings.family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))

    def read() -> dict[str, np.ndarray]:
        sizes = [step_sizes(net, 10) for net in nets]
        return {
            "eta": np.array([size.eta[0].item() for size in sizes]),
            "gamma": np.array([size.gamma[0].item() for size in sizes]),
            "gd++_eta": np.array(eta),
            "gd++_gamma": np.array(gamma),
        }

    return {
        **results,
        "step-sizes": lab.stage("step-sizes", read),
        "interpolation": lab.stage("interpolation", lambda: halfway(nets, [construction] * len(nets), fresh)),
    }


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    run, main, read, swept = (
        results[name] for name in ("looped", "looped-comparison", "step-sizes", "looped-input-scale")
    )
    to_gd, to_pp = run["gd_sensitivity_cosine"], run["gd++_sensitivity_cosine"]
    peak = to_gd.argmax(axis=1)[:, None]
    seeds_peak = np.take_along_axis(to_gd - to_pp, peak, axis=1)
    near = swept["x_scale"] <= 1.25 * 0.5
    ratio, stderr = (swept[f"gd++_ratio{suffix}"][:, near] for suffix in ("", "_stderr"))
    between = results["interpolation"]
    return {
        "beats-gd": smallest(
            100 * (1 - main["gd_mse_ratio_value"]), 100 * main["gd_mse_ratio_stderr"], main["gd_mse_ratio_n"]
        ),
        "loss-matches-gd++": excess_percent(main, "gd++_mse_ratio", sign=0),
        "sensitivity-cosine": smallest(*(main[f"gd++_sensitivity_cosine_{key}"] for key in ("value", "stderr", "n"))),
        "gd-early": smallest(seeds_peak),
        "gd++-late": smallest((to_pp - to_gd)[:, -1]),
        "eta-read": largest(100 * np.abs(read["eta"] / read["gd++_eta"] - 1)),
        "gamma-read": largest(100 * np.abs(read["gamma"] / read["gd++_gamma"] - 1)),
        "interpolation": largest(100 * (between["value"] - 1), 100 * between["stderr"], between["n"]),
        "input-scale-low": smallest(ratio, stderr, int(swept["tasks"])),
        "input-scale-high": largest(ratio, stderr, int(swept["tasks"])),
    }


def draw(results: Results) -> dict[str, Figure]:
    """The paper's panels."""
    source = "Paper: Figs. 3a and 6b"
    return captioned(contrast_figures(results, "looped", "two looped layers", ["gd", "gd++"], source=source))


STUDY = Study(
    name="two-steps",
    question="Do two looped linear self-attention layers run two steps of GD++?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Figs. 3 left, 6b",
    presets={
        "quick": Regression(learning_rate=4e-3, clip=0.001, init_scale=0.02),
        "paper": Regression(steps=5000, learning_rate=1e-3, clip=0.001),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)

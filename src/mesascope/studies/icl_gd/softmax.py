"""Does softmax self-attention run a step of gradient descent, and what does a second head add?

ICML paper: Figure 12. One softmax layer with one head and with two is compared with one step of gradient descent,
and with one on centred inputs: the softmax' denominators, which the paper's expansion leaves out, subtract the mean.

Settings are not all the authors'. Batches hold 512 tasks: with 2048, whose gradients are less noisy, four of five seeds
of one head stay for thousands of steps on a plateau where they predict 0. Learning rates are higher, and decay. Two
heads of the quick preset start farther apart and train faster.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from mesascope.learners import Centred, GradientDescent, one_step_optimum, tune
from mesascope.measurement import Measurement
from mesascope.nets import TransformerConfig
from mesascope.runs import Bound, Claim
from mesascope.studies.evidence import both, excess_percent, largest, smallest
from mesascope.studies.icl_gd.panels import captioned, contrast_figures
from mesascope.studies.icl_gd.regression import Regression, contrast
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study

__all__ = ["STUDY"]

NETS = {"one-head": 1, "two-heads": 2}


@dataclass(frozen=True)
class Softmax(Regression):
    """Settings of the study; two heads may train by a rate and from a scale of their own."""

    two_heads_learning_rate: float = 1e-2
    """Largest learning rate of the layer with two heads."""
    two_heads_init_scale: float = 0.2
    """Its init_scale: heads that start farther apart part sooner."""


CLAIMS = (
    Claim(
        "one-head-loss",
        "excess of the one-head loss over one gradient step's, % (best seed, paired)",
        "ICML paper, Fig. 12a left",
        both(Bound(low=30.0)),
        reference=40.1,
    ),
    Claim(
        "two-heads-loss",
        "excess of the two-head loss over one gradient step's, % (worst seed, paired)",
        "ICML paper, Fig. 12b left",
        both(Bound(high=10.0)),
        reference=6.1,
    ),
    Claim(
        "one-head-cosine",
        "distance of the one-head cosine with gradient descent from 0.72 (worst seed)",
        "ICML paper, Fig. 12a centre",
        both(Bound(high=0.04)),
        reference=0.0,
    ),
    Claim(
        "two-heads-cosine",
        "mean cosine of dy/dx_q of two heads with gradient descent's (worst seed)",
        "ICML paper, Fig. 12b centre",
        both(Bound(low=0.96)),
        reference=0.965,
    ),
    Claim(
        "similar-curves",
        "distance of two heads' loss curve over input scales from gradient descent's, both relative to the training "
        "scale, in powers of 2 (worst seed and scale)",
        "ICML paper, Fig. 12b right",
        both(Bound(high=1.0)),
    ),
    Claim(
        "two-heads-centred",
        "cosine of two heads with gradient descent on centred inputs, less that with plain descent (worst seed)",
        "derived: the denominators that appendix A.9 leaves out",
        both(Bound(low=0.0)),
    ),
)


def measure(lab: Lab, settings: Softmax) -> Results:
    """Train and compare."""
    references = {
        "gd": GradientDescent(1, one_step_optimum(settings.family).eta),
        "centred": tune(
            Centred(GradientDescent(1, 6.0)), settings.family, tasks=settings.tune_tasks, seed=lab.seed
        ).learner,
    }
    results: dict = {}
    for name, heads in NETS.items():
        scale, rate = settings.init_scale, settings.learning_rate
        if heads == 2:
            scale, rate = settings.two_heads_init_scale, settings.two_heads_learning_rate
        config = TransformerConfig(width=11, n_heads=heads, key_size=11, attention="softmax", init_scale=scale)
        training = dataclasses.replace(settings.training, learning_rate=rate)
        results |= contrast(lab, settings, name, config, references, training)[1]
    return results


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    one, two = (results[f"{name}-comparison"] for name in NETS)
    swept = results["two-heads-input-scale"]
    start = swept["x_scale"].tolist().index(0.5)
    shape = np.abs(np.log2(swept["gd_ratio"] / swept["gd_ratio"][:, start, None]))
    gain = two["centred_sensitivity_cosine_value"] - two["gd_sensitivity_cosine_value"]
    cosine = np.abs(one["gd_sensitivity_cosine_value"] - 0.72)
    excess = 100 * (one["gd_mse_ratio_value"] - 1)
    return {
        "one-head-loss": smallest(excess, 100 * one["gd_mse_ratio_stderr"], one["gd_mse_ratio_n"]),
        "two-heads-loss": excess_percent(two, "gd_mse_ratio"),
        "one-head-cosine": largest(cosine, one["gd_sensitivity_cosine_stderr"], one["gd_sensitivity_cosine_n"]),
        "two-heads-cosine": smallest(*(two[f"gd_sensitivity_cosine_{key}"] for key in ("value", "stderr", "n"))),
        "similar-curves": largest(shape, swept["gd_ratio_stderr"] / swept["gd_ratio"], int(swept["tasks"])),
        "two-heads-centred": smallest(gain, two["gd_sensitivity_cosine_stderr"], two["gd_sensitivity_cosine_n"]),
    }


def draw(results: Results) -> dict[str, Figure]:
    """The paper's panels."""
    figures: dict = {}
    for name in NETS:
        title = f"softmax layer, {name.replace('-', ' ')}"
        figures |= contrast_figures(results, name, title, ["gd", "centred"], source="Paper: Fig. 12")
    return captioned(figures)


STUDY = Study(
    name="softmax",
    question="Does softmax self-attention run a step of gradient descent, and what does a second head add?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 12",
    presets={
        "quick": Softmax(
            steps=1500,
            batch=512,
            learning_rate=3e-3,
            two_heads_learning_rate=4e-3,
            two_heads_init_scale=0.02,
        ),
        "paper": Softmax(
            steps=5000,
            batch=512,
            learning_rate=3e-3,
            two_heads_learning_rate=4e-3,
            two_heads_init_scale=0.02,
        ),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)

"""What does LayerNorm cost a layer that would run gradient descent?

ICML paper: Figure 14. One linear layer behind LayerNorm is compared with one step of gradient descent, and two linear
layers with LayerNorm between them only with two steps of gradient descent and of GD++. The same layers without
LayerNorm are trained as controls.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from mesascope.learners import GradientDescent, GradientDescentPlusPlus, one_step_optimum, tune_spectral
from mesascope.measurement import Measurement
from mesascope.nets import TransformerConfig
from mesascope.runs import Bound, Claim
from mesascope.studies.evidence import both, largest, smallest
from mesascope.studies.icl_gd.panels import captioned, contrast_figures
from mesascope.studies.icl_gd.regression import Regression, contrast
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study

__all__ = ["STUDY"]

NORMS = {"one-layer": True, "two-layers": (False, True)}
CONTROLS = {"one-layer": "one-layer-plain", "two-layers": "two-layers-plain"}
REFERENCES = {"one-layer": ("gd",), "two-layers": ("gd", "gd++")}

CLAIMS = (
    Claim(
        "one-layer-loss",
        "excess of one normalised layer's loss over one gradient step's, % (best seed, paired)",
        "ICML paper, Fig. 14a left",
        both(Bound(low=0.0, high=60.0)),
    ),
    Claim(
        "two-layers-gd",
        "excess of two normalised layers' loss over two gradient steps', % (best seed, paired)",
        "ICML paper, Fig. 14b left",
        both(Bound(low=0.0)),
    ),
    Claim(
        "two-layers-gd++",
        "excess of two normalised layers' loss over two GD++ steps', % (best seed, paired)",
        "ICML paper, Fig. 14b left",
        both(Bound(low=0.0, high=60.0)),
    ),
    Claim(
        "one-layer-alignment",
        "cosine with gradient descent, less that of a layer without LayerNorm (highest seed)",
        "ICML paper, Fig. 14a centre",
        both(Bound(high=0.0)),
    ),
    Claim(
        "two-layers-alignment",
        "cosine with GD++, less that of layers without LayerNorm (highest seed)",
        "ICML paper, Fig. 14b centre",
        both(Bound(high=0.0)),
    ),
    Claim(
        "one-layer-large-inputs",
        "loss ratio to gradient descent of one normalised layer at twice the training scale (worst seed)",
        "ICML paper, Fig. 14a right",
        both(Bound(high=1.0)),
    ),
    Claim(
        "two-layers-large-inputs",
        "loss ratio to gradient descent of two normalised layers at twice the training scale (worst seed)",
        "ICML paper, Fig. 14b right",
        both(Bound(high=1.0)),
    ),
)


def measure(lab: Lab, settings: Regression) -> Results:
    """Train and compare, with LayerNorm and without."""
    family = settings.family
    one = {"gd": GradientDescent(1, one_step_optimum(family).eta)}
    two = {
        "gd": tune_spectral(GradientDescent(2, 1.0), family, contexts=settings.tune_tasks, seed=lab.seed).learner,
        "gd++": tune_spectral(
            GradientDescentPlusPlus(2, [2.0, 1.0], 0.01), family, contexts=settings.tune_tasks, seed=lab.seed
        ).learner,
    }
    results: dict = {}
    for name, references in (("one-layer", one), ("two-layers", two)):
        depth = 1 if name == "one-layer" else 2
        for run, norm in ((name, NORMS[name]), (CONTROLS[name], False)):
            config = TransformerConfig(width=11, n_layers=depth, layer_norm=norm, init_scale=settings.init_scale)
            results |= contrast(lab, settings, run, config, references)[1]
    return results


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    measured = {}
    for name, references in REFERENCES.items():
        main, control = (results[f"{run}-comparison"] for run in (name, CONTROLS[name]))
        for reference in references:
            key = f"{name}-loss" if name == "one-layer" else f"{name}-{reference}"
            ratio, stderr, n = (main[f"{reference}_mse_ratio_{part}"] for part in ("value", "stderr", "n"))
            measured[key] = smallest(100 * (ratio - 1), 100 * stderr, n)
        last = f"{references[-1]}_sensitivity_cosine"
        lower = main[f"{last}_value"] - control[f"{last}_value"]
        spread = np.hypot(main[f"{last}_stderr"], control[f"{last}_stderr"])
        measured[f"{name}-alignment"] = largest(lower, spread, main[f"{last}_n"])
        swept = results[f"{name}-input-scale"]
        ratio, stderr = (swept[f"gd_ratio{part}"][:, -1] for part in ("", "_stderr"))
        measured[f"{name}-large-inputs"] = largest(ratio, stderr, int(swept["tasks"]))
    return measured


def draw(results: Results) -> dict[str, Figure]:
    """The paper's panels, and the controls'."""
    figures: dict = {}
    for name, references in REFERENCES.items():
        words = name.replace("-", " ")
        figures |= contrast_figures(results, name, f"{words}, LayerNorm", references, source="Paper: Fig. 14")
        figures |= contrast_figures(results, CONTROLS[name], words, references, source="Control without LayerNorm")
    return captioned(figures)


STUDY = Study(
    name="layernorm",
    question="What does LayerNorm cost a layer that would run gradient descent?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 14",
    presets={
        "quick": Regression(
            steps=800,
            batch=512,
            learning_rate=8e-3,
            clip=0.001,
            init_scale=0.02,
            tasks=20_000,
            sweep_tasks=1000,
            tune_tasks=2000,
        ),
        "paper": Regression(steps=5000, learning_rate=1e-3, clip=0.001),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)

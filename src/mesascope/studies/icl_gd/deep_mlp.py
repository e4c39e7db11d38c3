"""Do twelve blocks of linear self-attention and MLPs go on as GD++ does?

ICML paper: Figure 8. Twelve blocks of four heads and a GELU MLP, tokens clipped at 10, are compared with twelve steps
of gradient descent and of GD++, each with tuned sizes for every step.

The authors train for 50,000 steps at 5e-4. Here gradients are clipped at 1e-3 and the learning rate is higher, which
reaches lower losses in a tenth of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from mesascope.errors import require_count
from mesascope.measurement import Measurement
from mesascope.nets import TransformerConfig
from mesascope.runs import Bound, Claim
from mesascope.studies.evidence import both, largest, smallest
from mesascope.studies.icl_gd.panels import captioned, contrast_figures
from mesascope.studies.icl_gd.regression import Regression, contrast, untied_descents
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study

__all__ = ["STUDY", "Blocks"]

CLIP = 10.0

CLAIMS = (
    Claim(
        "below-gd",
        "loss of the blocks over that of as many per-step-tuned gradient steps (worst seed, paired)",
        "ICML paper, Fig. 8 left",
        both(Bound(high=1.0)),
    ),
    Claim(
        "cosine-gd++",
        "mean cosine of dy/dx_q with tuned GD++'s (worst seed)",
        "ICML paper, Fig. 8 centre",
        both(Bound(low=0.95)),
    ),
    Claim(
        "gd++-above-gd",
        "cosine with tuned GD++ less that with tuned gradient descent (worst seed)",
        "ICML paper, Fig. 8 centre",
        both(Bound(low=0.0)),
    ),
)


@dataclass(frozen=True)
class Blocks(Regression):
    """Settings of the study."""

    blocks: int = 12
    """Blocks of the network, and steps of the references."""
    heads: int = 4
    """Heads of each block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("blocks", self.blocks)
        require_count("heads", self.heads)


def measure(lab: Lab, settings: Blocks) -> Results:
    """Train and compare."""
    references, sizes = untied_descents(lab, settings.family, settings.blocks, CLIP, settings.tune_tasks)
    config = TransformerConfig(
        width=11,
        n_layers=settings.blocks,
        n_heads=settings.heads,
        key_size=11,
        mlp=4,
        token_clip=CLIP,
        init_scale=settings.init_scale,
    )
    _, results = contrast(lab, settings, "blocks", config, references)
    return results | {"tuned": sizes}


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    main = results["blocks-comparison"]
    tasks = int(main["tasks"])
    to_gd, to_plus = (main[f"{name}_sensitivity_cosine_value"] for name in ("gd", "gd++"))
    errors = [main[f"{name}_sensitivity_cosine_stderr"] for name in ("gd", "gd++")]
    return {
        "below-gd": largest(main["gd_mse_ratio_value"], main["gd_mse_ratio_stderr"], tasks),
        "cosine-gd++": smallest(to_plus, errors[1], tasks),
        "gd++-above-gd": smallest(to_plus - to_gd, np.hypot(*errors), tasks),
    }


def draw(results: Results) -> dict[str, Figure]:
    """The paper's panels."""
    source = "Paper: Fig. 8"
    return captioned(
        contrast_figures(results, "blocks", "blocks of attention and MLP", ["gd", "gd++"], source=source, log=True)
    )


STUDY = Study(
    name="deep-mlp",
    question="Do twelve blocks of linear self-attention and MLPs go on as GD++ does?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 8",
    presets={
        "quick": Blocks(
            blocks=4,
            steps=400,
            batch=256,
            learning_rate=8e-3,
            clip=0.001,
            init_scale=0.2,
            tasks=10_000,
            sweep_tasks=500,
            tune_tasks=1000,
        ),
        "paper": Blocks(
            steps=2500, batch=512, learning_rate=3e-3, clip=0.001, init_scale=0.2, sweep_tasks=2000, tune_tasks=2000
        ),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)

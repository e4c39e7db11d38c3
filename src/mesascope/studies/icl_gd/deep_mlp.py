"""Do blocks of linear self-attention and MLPs go on as GD++ does?

ICML paper: Figure 8. Tasks are noiseless linear regression with N = d = 10. Blocks of attention and a GELU MLP,
tokens clipped at 10, are compared with as many steps of gradient descent and of GD++, each with tuned sizes for
every step. As many linear layers without MLPs train beside them: their weights spell step sizes, which tuned ones
must not be worse than.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mesascope.errors import require_count
from mesascope.evidence import Claim, above, below, printed, stage, two_sided
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd.regression import (
    PAPER,
    Recipe,
    Regression,
    contrast,
    network,
    own_descent,
    untied_descents,
)
from mesascope.studies.icl_gd.shared_claims import derivatives, no_better_descent
from mesascope.studies.icl_gd.shared_figures import contrast_figures
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

CLIP = 10.0
PREMISES = ("converged", "gd++-at-its-optimum", "derivatives")
MAIN = "blocks-comparison"


@dataclass(frozen=True)
class Blocks(Regression):
    """Settings of the study."""

    blocks: int = 12
    """Blocks of the network, and steps of the references."""
    heads: int = 4
    """Heads of each block."""
    linear: Recipe = field(default_factory=lambda: Recipe(plan(2500, 8e-3, batch=512, clip=0.001), init_scale=3.0))
    """How the linear layers train."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("blocks", self.blocks)
        require_count("heads", self.heads)


CLAIMS = (
    converged("blocks", most=0.1, log=True),
    no_better_descent(
        MAIN, "gd++", "GD++ of as many steps", id="gd++-at-its-optimum", tolerance=0.1, quantity="median"
    ),
    derivatives(MAIN),
    Claim(
        "below-gd", "each network of blocks loses less than as many steps of gradient descent, each tuned",
        stage(MAIN).ratio("trained", "gd"), below(1.0, by="paper"), printed("Fig. 8 left"), premises=("converged",),
    ),
    Claim(
        "loss-matches-gd++", "each network of blocks loses what as many tuned steps of GD++ do, within a quarter",
        stage(MAIN).ratio("trained", "gd++"), two_sided(0.25), printed("Fig. 8: a close resemblance"),
        premises=("converged", "gd++-at-its-optimum"),
    ),
    Claim(
        "cosine-gd++", "each network of blocks has a cosine above 0.95 with tuned GD++",
        stage(MAIN)["cosine", "trained", "gd++"], above(0.95), printed("Fig. 8 centre right"), premises=PREMISES,
    ),
    Claim(
        "gd++-above-gd", "each network of blocks is nearer to tuned GD++ than to tuned gradient descent",
        stage(MAIN)["cosine", "trained", "gd++"] - stage(MAIN)["cosine", "trained", "gd"], above(0.0, by="paper"),
        printed("Fig. 8 centre"), premises=PREMISES,
    ),
    Claim(
        "input-scale", "on inputs of 1.25 and 1.5 times the training scale, losses stay within a quarter of GD++'s",
        lambda r: _larger(r["blocks-input-scale"]).ratio("trained", "gd++"), two_sided(0.25),
        printed("Fig. 8 right: a close resemblance"), measures="loss of trained / of GD++, at each scale",
        premises=("converged", "gd++-at-its-optimum"),
    ),
)  # fmt: skip


def _larger(swept: Any) -> Any:
    x = swept.cases["x_scale"]
    return swept.where((x > 0.5) & (x <= 0.75))


def measure(lab: Lab, settings: Blocks) -> None:
    """Train and compare."""
    depth, family = settings.blocks, settings.family()
    references = untied_descents(lab, settings, depth, CLIP)
    config = network(settings, n_layers=depth, token_clip=CLIP, init_scale=settings.linear.init_scale)
    linear = lab.train("linear", config, family, settings.linear.training)

    def witnesses(_: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
        return {"own": [own_descent(net, depth) for net in linear], "linear": linear}

    config = network(settings, n_layers=depth, n_heads=settings.heads, key_size=11, mlp=4, token_clip=CLIP)
    contrast(lab, settings, "blocks", config, references, more=witnesses)


STUDY = Study(
    name="deep-mlp",
    source=f"{PAPER}: Fig. 8",
    presets={
        "quick": Blocks(
            plan(800, 8e-3, batch=256, clip=0.001),
            init_scale=0.2,
            tasks=10_000,
            sweep_tasks=500,
            tune_tasks=1000,
            blocks=4,
            linear=Recipe(plan(400, 8e-3, batch=256, clip=0.001), init_scale=3.0),
        ),
        "paper": Blocks(plan(2500, 3e-3, batch=512, clip=0.001), init_scale=0.2, sweep_tasks=2000, tune_tasks=2000),
    },
    measure=measure,
    trainings=2,
    claims=CLAIMS,
    figures=contrast_figures(
        "blocks",
        "blocks of attention and MLP",
        ("gd", "gd++"),
        "Paper: Fig. 8",
        "y",
        claims=("below-gd", "loss-matches-gd++", "cosine-gd++", "gd++-above-gd"),
        away=("input-scale",),
    ),
    deviations=(
        "Training takes 2,500 steps of 512 tasks, a twentieth of the steps and an eightieth of "
        "the tasks of the paper; the learning rate is 3e-3 in place of "
        "5e-4 and decays, and weights are averaged.",
        "Gradients are clipped at 0.001 in place of 10.",
        "Networks start from weights of larger variance, 0.2 in place of 0.002.",
        "GD++ is tuned by L-BFGS on 2,000 tasks in place of 30,000 steps of Adam on fresh ones.",
    ),
)

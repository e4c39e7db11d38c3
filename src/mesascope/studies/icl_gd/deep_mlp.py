"""Do blocks of linear self-attention and MLPs run GD++?

ICML paper: Figure 8. Tasks are noiseless linear regression with N = d = 10. Blocks of attention and a GELU MLP,
tokens clipped at 10, are compared with as many steps of gradient descent and of GD++, each with tuned sizes for
every step. Linear networks of the same depth, without MLPs, are trained beside them. A premise checks that tuned
GD++ is not worse (10 % tolerance) than GD++ with the step sizes read from the weights of these networks.
"""

from __future__ import annotations

from mesascope import study
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd import bugs, regression, shared
from mesascope.studies.icl_gd.regression import CLIP, SecondTraining, authors_plan
from mesascope.studies.icl_gd.shared import SUITED
from mesascope.study import Claim, Count, Study, above, below, ours, printed, stage, two_sided

PREMISES = ("converged", "gd++-at-its-optimum", "derivatives")
TUNED = ("converged", "gd++-at-its-optimum")

main = stage("blocks-comparison", trained="blocks")
larger = stage("blocks-input-scale", trained="blocks").where(
    lambda cases: shared.over_training(cases["x_scale"]) > 1, "at each larger scale"
)  # fmt: skip


@study.frozen
class Blocks(regression.Regression):
    blocks: Count = 12  # Blocks of the network, and steps of the references.
    heads: Count = 4  # Heads of each block.
    linear: SecondTraining = SecondTraining(plan(2500, 8e-3, batch=512, clip=0.001), init_scale=3.0)
    """Training of the linear layers."""


def measure(lab: study.Lab, settings: Blocks) -> None:
    depth, family = settings.blocks, settings.family()
    references = regression.untied_descents(lab, settings, depth)
    config = regression.network(settings, n_layers=depth, token_clip=CLIP, init_scale=settings.linear.init_scale)
    linear = lab.train("linear", config, family, settings.linear.training)
    witnesses = {"own": [regression.own_descent(net, depth) for net in linear], "linear": linear}
    config = regression.network(settings, n_layers=depth, n_heads=settings.heads, key_size=11, mlp=4, token_clip=CLIP)
    regression.contrast(lab, settings, "blocks", config, references, more=lambda _: witnesses)


STUDY = Study(
    name="deep-mlp",
    source=f"{regression.PAPER}: Fig. 8",
    presets={
        "quick": Blocks(
            plan(800, 8e-3, batch=256, clip=0.001), init_scale=0.2, tasks=10_000, sweep_tasks=500, tune_tasks=1000,
            blocks=4, linear=SecondTraining(plan(400, 8e-3, batch=256, clip=0.001), init_scale=3.0),
        ),
        "paper": Blocks(plan(2500, 3e-3, batch=512, clip=0.001), init_scale=0.2, sweep_tasks=2000),
        "thesis": Blocks(authors_plan(50_000, learning_rate=5e-4, clip=10.0)),
    },
    measure=measure,
    trainings=2,
    premises=PREMISES,
    claims=(
        converged("blocks", most=0.1, log=True),
        shared.no_better_descent(main, "gd++",
                                 "GD++ of as many steps", id="gd++-at-its-optimum", tolerance=0.1, quantity="median"),
        shared.derivatives(main),
        Claim("gd++-below-gd", "control: tuned GD++ has a smaller loss than as many tuned steps of gradient descent",
              main.ratio("gd++", "gd"), below(1.0), study.ours("control: the two references differ"),
              over="algorithms"),
        shared.suits_training(stage("blocks-input-scale"), "tuned gradient descent"),
    ),
    figures=shared.contrast_figures(
        "blocks", "blocks of attention and MLP", ("gd", "gd++"), "Paper: Fig. 8", "y",
        claims=(
            Claim("below-gd", "each network of blocks has a smaller loss than as many tuned steps of gradient descent",
                  main.ratio("trained", "gd"), below(1.0, by="paper"), printed("section 3"),
                  premises=("converged", SUITED)),
            Claim("loss-matches-gd++", "the median loss of each network of blocks is within a quarter of that of as "
                  "many tuned steps of GD++", main.ratio("trained", "gd++", "median"), two_sided(0.25),
                  ours("Fig. 8 shows means, and a few tasks on which GD++ explodes make most of its mean"),
                  premises=TUNED, former="printed; of means, failed"),
            Claim("cosine-gd++", "each network of blocks has a cosine above 0.95 with tuned GD++",
                  main["cosine", "trained", "gd++"], above(0.95), printed("Fig. 8 centre right")),
            Claim("gd++-above-gd", "each network of blocks is nearer to tuned GD++ than to tuned gradient descent",
                  main["cosine", "trained", "gd++"] - main["cosine", "trained", "gd"], above(0.0, by="paper"),
                  printed("section 3"), premises=(*PREMISES, SUITED)),
        ),
        away=(
            Claim("input-scale", "on inputs of 1.25 to 2 times the training scale, losses stay within a quarter of "
                  "GD++'s", larger.ratio("trained", "gd++"), two_sided(0.25),
                  printed("Fig. 8 right: a close resemblance"), premises=TUNED, former="up to 1.5 times, failed"),
        ),
    ),
    unlike=dict.fromkeys(("quick", "paper"), "50,000 steps of 2,048 tasks at a learning rate of 5e-4"),
    deviations={
        "paper": (
            "Training takes 2,500 steps of 512 tasks, a twentieth of the steps and an eightieth of the tasks of the "
            "paper; the learning rate is 3e-3 in place of 5e-4 and decays, and weights are averaged.",
            "Gradients are clipped at 0.001 in place of 10.",
            "Losses are compared on larger inputs alone: up to the scale of training, GD++'s mean loss has no known "
            "error.",
            "Networks start from weights of larger variance, 0.2 in place of 0.002.",
            "GD++ is tuned by L-BFGS from 100,000 spectra in place of 30,000 steps of Adam.", shared.INPUTS,
        ),
        "thesis": (
            "The authors' code has no Fig. 8; the optimiser and initial weights are those of its other figures.",
            "GD++ is tuned by L-BFGS from 100,000 spectra in place of 30,000 steps of Adam.",
            "Linear networks, a control of ours, train as in preset paper.", shared.INPUTS, shared.INITIAL, shared.ADAM,
        ),
    },
    mutations=(
        bugs.HALF_TUNED, bugs.FLIPPED_GAMMA, bugs.POOR_OPTIMUM, bugs.OTHER_TASKS, bugs.SHIFTED_TARGETS,
        bugs.WITHOUT_MLPS, bugs.FIRST_HEAD,
    ),
    mutated={
        "training": plan(600, 8e-3, batch=128, clip=0.001), "tasks": 3000, "sweep_tasks": 2000, "blocks": 2, "heads": 2,
    },
)  # fmt: skip

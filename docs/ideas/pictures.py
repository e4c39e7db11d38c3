"""Draw the pictures of the pages of ideas, from the package and published runs: ``python docs/ideas/pictures.py``."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch

from mesascope import (
    GradientDescent,
    InContextRegressorConfig,
    LeastSquares,
    LinearDynamics,
    LinearRegression,
    OnlineGradientDescent,
    RecursiveLeastSquares,
    Training,
    TransformerConfig,
    gradient_descent,
    interpolate,
    open_run,
    train,
    tune,
)
from mesascope.learners import KernelSmoother, NearestNeighbours
from mesascope.streams import stream

HERE = Path(__file__).parent
# A two-sided claim for each verdict, with intervals that fit one picture.
VERDICTS = (("one-step", "loss-matches-gd"), ("deep", "near-close"), ("deep", "teacher-scale"))
BLUE, ORANGE, GREEN, GREY = "#2a6fbb", "#d9772b", "#3f8f5b", "#777777"


def one_task():
    """A context of eight pairs with one input."""
    tasks = LinearRegression(n_context=8, d_in=1, noise=0.3).sample(1, stream(3, "picture"))
    return tasks.context


def axes(width=5.0, height=2.6, columns=1):
    return plt.subplots(1, columns, figsize=(width, height), layout="constrained")


def context():
    pairs = one_task()
    fig, ax = axes()
    ax.plot(pairs.x.flatten(), pairs.y.flatten(), "o", color=BLUE, label="context: pairs (x, y)")
    ax.axvline(0.6, color=ORANGE, linestyle="--", label="query: which y?")
    ax.set(xlabel="input x", ylabel="target y", xlim=(-1, 1))
    ax.legend(frameon=False)
    return fig


def learner():
    pairs = one_task()
    queries = torch.linspace(-1, 1, 201)[None, :, None]
    learners = {
        "one gradient step": (GradientDescent(1, eta=1.0), BLUE),
        "ridge regression": (LeastSquares(ridge=0.1), ORANGE),
        "kernel smoother": (KernelSmoother("gaussian", bandwidth=0.2), GREEN),
        "nearest neighbour": (NearestNeighbours(1), GREY),
    }
    fig, ax = axes()
    for name, (learner, color) in learners.items():
        ax.plot(queries.flatten(), learner(pairs, queries).detach().flatten(), color=color, label=name)
    ax.plot(pairs.x.flatten(), pairs.y.flatten(), "ko", markersize=4)
    ax.set(xlabel="query", ylabel="prediction", xlim=(-1, 1))
    ax.legend(frameon=False, fontsize=8)
    return fig


def predictor():
    sequences = LinearDynamics(d=3, length=20).sample(500, stream(0, "picture"))
    fig, ax = axes()
    predictors = {"one gradient step": OnlineGradientDescent(1, eta=0.01), "least squares": RecursiveLeastSquares(1e-3)}
    for (name, predictor), color in zip(predictors.items(), (BLUE, ORANGE), strict=True):
        error = (predictor(sequences)[:, :-1] - sequences[:, 1:]).square().sum(-1)
        scale = sequences[:, 1:].square().sum(-1)
        ax.plot(range(2, 21), (error.sum(0) / scale.sum(0)).detach(), "o-", color=color, markersize=3, label=name)
    ax.set(xlabel="element that is predicted", ylabel="error / size", ylim=(0, None))
    ax.legend(frameon=False)
    return fig


def construction():
    network, _ = gradient_descent(d_in=2, d_out=1, eta=0.8, n_context=10)
    products = network.products()[0]
    fig, both = axes(5.0, 2.2, 2)
    names = ["x1", "x2", "y"]
    for ax, matrix, title in zip(both, products, ("W_KQ: attend by inputs", "W_PV: write to the target"), strict=True):
        ax.imshow(matrix[0].detach(), cmap="RdBu", vmin=-1, vmax=1)
        ax.set(xticks=range(3), yticks=range(3), xticklabels=names, yticklabels=names)
        ax.set_title(title, fontsize=9)
        for (row, column), value in zip(
            torch.cartesian_prod(*[torch.arange(3)] * 2).tolist(), matrix[0].flatten(), strict=True
        ):
            ax.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color="k" if value < 0.5 else "w"
            )
    return fig


def lens():
    family = LinearRegression(n_context=10, d_in=5)
    config = InContextRegressorConfig(TransformerConfig(width=6, init_scale=0.002))
    trained = train(config.build, family, Training(steps=500, batch=512, learning_rate=5e-3), [0]).member(0)
    best = tune(GradientDescent(1, eta=1.0), family).learner
    built, _ = gradient_descent(d_in=5, d_out=1, eta=best.eta.item(), n_context=10)
    built = built.float()
    fresh = family.sample(5000, stream(0, "eval"))
    mixtures = torch.linspace(0, 1, 11).tolist()
    fig, ax = axes()
    losses = [
        (interpolate(trained, built, share)(fresh.context, fresh.xq) - fresh.yq).square().mean().item()
        for share in mixtures
    ]
    ax.plot(mixtures, losses, "o-", color=BLUE)
    ax.axhline(fresh.yq.square().mean(), color=GREY, linestyle=":", label="predicting zero")
    ax.set(xlabel="trained weights (0) to constructed weights (1)", ylabel="mean squared error", ylim=(0, None))
    ax.legend(frameon=False)
    return fig


def intervals(claims):
    """Intervals of claims, each scaled so that its bound is the grey band from -1 to 1."""
    fig, ax = axes(6.0, 0.6 + 0.5 * len(claims))
    ax.axvspan(-1, 1, color="#dddddd", label="inside the bound")
    for row, claim in enumerate(claims):
        low, high = claim["bound_low"], claim["bound_high"]
        middle, half = (low + high) / 2, (high - low) / 2
        ends = [(claim[name] - middle) / half for name in ("low", "value", "high")]
        color = {"holds": GREEN, "fails": ORANGE}.get(claim["verdict"], GREY)
        ax.plot([ends[0], ends[2]], [row, row], color=color, linewidth=3)
        ax.plot(ends[1], row, "o", color=color)
    labels = [f"{claim['run']} {claim['id']}\n{claim['verdict']}" for claim in claims]
    ax.set(yticks=range(len(claims)), yticklabels=labels, xlabel="bound from -1 to 1, interval at 99.9 %")
    ax.set_ylim(len(claims) - 0.5, -0.5)
    ax.legend(frameon=False, fontsize=8)
    return fig


def published(run, name):
    """A claim of a published run."""
    claims = open_run(HERE.parent / "results" / run).claims
    return next(claim for claim in claims if claim["id"] == name) | {"run": run}


def claim():
    return intervals([published("one-step", name) for name in ("loss-matches-gd", "input-scale", "other-inputs")])


def verdict():
    return intervals([published(*one) for one in VERDICTS])


def main():
    mpl.rcParams |= {"svg.hashsalt": "mesascope", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    for draw in (context, learner, predictor, construction, lens, claim, verdict):
        fig = draw()
        fig.savefig(HERE / f"{draw.__name__}.svg", metadata={"Date": None})
        plt.close(fig)


if __name__ == "__main__":
    main()

"""Numbers that pages state about published runs and about the quick preset are those of the runs."""

import json
import re
from pathlib import Path

import numpy as np

from mesascope.evidence.numbers import nominal
from mesascope.records import registered
from mesascope.runs import open_run

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def claim(study, name):
    claims = json.loads((ROOT / "docs" / "results" / study / "claims.json").read_text())
    return next(one for one in claims if one["id"] == name)


def stage(study, name):
    return open_run(ROOT / "docs" / "results" / study).results[name]


def with_interval(record):
    return [record[part] for part in ("value", "low", "high")]


def printed(*patterns):
    """Percentages that docs/identify.md prints after these words."""
    text = (ROOT / "docs" / "identify.md").read_text()
    return [float(re.search(pattern + r"(\d+) %", text)[1]) for pattern in patterns]


def over_ridge():
    """Error of the first mesa layer over that of ridge regression, after 11, 20 and 50 elements."""
    return nominal(stage("mesa-one-layer", "by-time").ratio("mesa", "limit"))[0, [10, 19, 49]]


def la_maml(name):
    """Mean over streams of rotated digits."""
    return [np.mean(stage("continual-mnist", "table")[name][:, 0, 5])]


def descent():
    """Mean over sets of tasks of ridge regression's loss over that of twelve gradient steps."""
    losses = stage("good-regression", "rivals")["loss"][:, 0], stage("good-regression", "path")["network"][:, -1]
    return [np.mean(nominal(losses[0]) / nominal(losses[1]))]


def halfway():
    """Worst ratio to one gradient step, and halfway of the same seed."""
    main = stage("one-step", "size-10-comparison")
    above = nominal(main.ratio("trained", "gd"))
    worst = np.abs(above - 1).argmax()
    return above[worst], nominal(main.ratio("middle", "trained"))[worst]


def best_step():
    """Closed-form step size and loss for N = d = 10."""
    optima = stage("one-step", "optima")
    (at,) = np.flatnonzero(nominal(optima["size"]) == 10)
    return [nominal(optima[name])[at] for name in ("optimum", "limit")]


def untrained():
    return [np.mean(nominal(stage("cross-domain", where)["untrained maml"])) for where in ("own", "on mnist")]


# Published numbers by the beginning of their row.
PUBLISHED = {
    "ridge regression on linear dynamics": lambda: 5 * nominal(stage("mesa-one-layer", "comparison")["mse", "limit"]),
    "first mesa layer / ridge regression, error at all": lambda: nominal(
        stage("mesa-one-layer", "comparison").ratio("mesa", "limit")
    )[:1],
    "first mesa layer / ridge regression, after": over_ridge,
    "linear layer / one gradient step, error": lambda: [claim("mesa-one-layer", "one-step")["value"]],
    "La-MAML on rotated": lambda: la_maml("retained"),
    "La-MAML, backward": lambda: la_maml("transfer"),
    "ridge regression in `language-recall`": lambda: [claim("language-recall", "ridge")["value"]],
    "mesa layers / ridge": lambda: [claim("language-recall", "mesa-solves")["value"]],
    "first network of delta": lambda: nominal(stage("language-recall", "recall")["answered", "delta"])[:1],
    "softmax layers": lambda: [np.mean(nominal(stage("language-recall", "recall")["answered", "window"]))],
    "best guess": lambda: [
        float(re.search(r"asked for has (\d+) %", claim("language-recall", "finds")["sentence"])[1])
    ],
    "mesa minus linear": lambda: with_interval(claim("language-recall", "mesa-recalls")),
    "`identify`: difference": lambda: printed("next family, averages, "),
    "`identify`: the last": lambda: printed("nearest, least squares, leaves ", "next family, neighbours, "),
    "ridge regression / twelve": descent,
    "linear layer / one gradient step, loss": lambda: halfway()[:1],
    "halfway": lambda: halfway()[1:],
    "best step size": best_step,
    "sparse-MAML minus MAML": lambda: with_interval(claim("sparse-maml", "above-maml")),
    "MAML before training": untrained,
}


def test_the_page_of_independent_checks_states_the_published_numbers():
    lines = (ROOT / "docs" / "independent.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    assert len(rows) == len(PUBLISHED)
    for name, published, independent, allowed, _ in rows:
        (read,) = [own for start, own in PUBLISHED.items() if name.startswith(start)]
        shown, numbers = NUMBER.findall(published), list(read())
        assert len(shown) == len(numbers), name
        for one, number in zip(shown, numbers, strict=True):
            digits = len(one.partition(".")[2])
            assert abs(float(one) - number) <= 0.500001 * 10.0**-digits, f"{name}: {one}, but the run has {number}"
        pairs = zip(*(map(float, NUMBER.findall(cell)) for cell in (published, independent)), strict=True)
        most = [float(one) for one in NUMBER.findall(allowed)]
        for place, (one, other) in enumerate(pairs):
            assert abs(one - other) <= most[min(place, len(most) - 1)], f"{name}: more than is allowed"


def test_the_readme_counts_networks_and_claims_of_the_demo():
    study = registered("study")["one-step"]
    quick = study.presets["quick"]
    trained = study.trainings if isinstance(study.trainings, int) else study.trainings(quick)
    readme = (ROOT / "README.md").read_text()
    networks, claims = re.findall(r"trains (\d+) small networks", readme), re.findall(r"prints (\d+) claims", readme)
    assert set(networks) == {str(trained * quick.seeds)}
    assert set(claims) == {str(len(study.claims))}

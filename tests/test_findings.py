"""Pages state the verdicts and intervals of published runs, and their tables state what was measured."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from cases import check_each

from mesascope.evidence.numbers import nominal
from mesascope.runs import open_run
from mesascope.studies.sparse.continual_mnist import METHODS, PRINTED, STREAMS

ROOT = Path(__file__).parent.parent
PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("findings", "identify", "meta", "devices", "others")]
CLAIMS = {
    (path.parent.name, record["id"]): record
    for path in sorted((ROOT / "docs" / "results").glob("*/claims.json"))
    for record in json.loads(path.read_text())
}
STUDIES = {study for study, _ in CLAIMS}
VERDICT = re.compile(r"((?:`[\w+-]+`(?:, | and )?)+),?(?: is| are)? (undecided|fails?|holds?)\b")
INTERVAL = re.compile(r"(-?\d*\.?\d+)(?: %| points?| nats)? \[(-?\d*\.?\d+), (-?\d*\.?\d+)\]")
# A ratio may be written as a ratio, as a percentage, or as its difference from 1; a difference may have either sign.
FORMS = [
    lambda x: x,
    lambda x: 100 * x,
    lambda x: 1 - x,
    lambda x: 100 - 100 * x,
    lambda x: 100 * x - 100,
    lambda x: -x,
]


def paragraphs():
    """Each paragraph with the studies that it names, or else those of the paragraph before."""
    named = set()
    for text in (part for page in PAGES for part in re.split(r"\n(?=- |\*\*|#|\| )", page)):
        here = STUDIES & set(re.findall(r"[\w-]+", text))
        if text.startswith("| ") and text.count(" | ") == 3:
            claim, _, now, _ = text.strip("| ").split(" | ")
            here = {claim.split(" ")[0]} & STUDIES
            text = " ".join(f"{name} {now}." for name in re.findall(r"`[\w+-]+`", claim))
        named = here or named
        yield text, named


PARAGRAPHS = [(text, studies) for text, studies in paragraphs() if studies]


def rounds_to(shown, exact):
    digits = len(shown.partition(".")[2])
    return exact is not None and abs(float(shown) - exact) <= 0.5000001 * 10.0**-digits


def is_of(record, value, low, high):
    """True if a value with its interval is that of a claim, to the digits shown."""
    known = (record["value"], record["low"], record["high"])
    if None in known:
        return False
    shown = [(form(known[0]), *sorted((form(known[1]), form(known[2])))) for form in FORMS]
    return any(all(map(rounds_to, (value, low, high), numbers)) for numbers in shown)


def test_verdicts_are_those_of_the_published_runs():
    def check(case):
        names, verdict, studies = case
        for name in re.findall(r"`([\w+-]+)`", names):
            found = {CLAIMS[study, name]["verdict"] for study in studies if (study, name) in CLAIMS}
            assert verdict.rstrip("s") in {one.rstrip("s") for one in found}, (name, verdict, found)

    cases = [(*found.groups(), studies) for text, studies in PARAGRAPHS for found in VERDICT.finditer(text)]
    assert len(cases) > 60
    check_each(check, cases)


def test_intervals_are_those_of_the_published_runs():
    def check(case):
        numbers, studies = case
        assert any(is_of(record, *numbers) for (study, _), record in CLAIMS.items() if study in studies)

    cases = [(found.groups(), studies) for text, studies in PARAGRAPHS for found in INTERVAL.finditer(text)]
    assert len(cases) > 40
    check_each(check, cases)


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


def measured(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def devices():
    for one in measured("devices")["cases"]:
        times = f"{one['cuda']:.3g} | {one['cpu']:.3g} | {one['cpu / cuda']:.2g} | {one['difference']:.0g}"
        yield "devices", f"| {one['case']} | {times} |"


def quick_presets():
    for study, stages in measured("devices-quick")["seconds"].items():
        trained = [times for stage, times in stages.items() if stage.startswith("train ")]
        rest = [times for stage, times in stages.items() if not stage.startswith("train ")]
        kinds = {f"{len(trained)} trainings": trained} | ({"measurements": rest} if study == "one-step" else {})
        for kind, times in kinds.items():
            cuda, cpu = (math.fsum(one[device] for one in times) for device in ("cuda", "cpu"))
            yield "devices", f"| `{study}` | {kind} | {cuda:.1f} | {cpu:.1f} |"


def language():
    found = measured("language")
    softmax = found["training"]["softmax"]["tokens_per_second"]
    for kind, rows in found["decoding"].items():
        speed = found["training"][kind]["tokens_per_second"]
        first, last = (f"{one['ms']:.1f} ms, {one['bytes'] / 1e6:.1f} MB" for one in (rows[0], rows[-1]))
        yield "language", f"| {kind} | {speed:,.0f} | {speed / softmax:.2f} | {first} | {last} |"


def errors_of_mesa():
    for one in measured("mesa")["relative errors in float32, T = 160, d = 32"]:
        ours = "chunk" if "chunk y" in one else "cg"
        decays = "yes" if one["ridge_kind"] == "decaying" else "no"
        errors = [f"{one[f'{way} y']:.0e}, {one[f'{way} gradients']:.0e}" for way in (ours, "solve")]
        yield "mesa-layer", f"| {one['ridge']:g} | {decays} | {one['condition']:.2g} | {' | '.join(errors)} |"


def bytes_of_text():
    seeds = measured("text")["seeds"]
    for kind in seeds[0]:
        bits = ", ".join(f"{seed[kind]['bits a byte']:.3f}" for seed in seeds)
        speed = sum(seed[kind]["tokens a second"] / seed["softmax"]["tokens a second"] for seed in seeds) / len(seeds)
        yield "mesa-layer", f"| {bits} | {speed:.2f} |"


def calibration():
    trials = open_run(ROOT / "docs" / "results" / "identify-calibration").results["trials"]
    way, noise, truth, named, out, false, family, seconds = (
        np.ravel(nominal(trials[name]))
        for name in ("way", "noise", "has_truth", "named", "left_out", "false", "right_family", "seconds")
    )

    def share(of, which):
        return f"{of[which].sum():.0f} of {which.sum()}" if which.any() else "-"

    labels = ("as it is", "arrays", "scikit-learn", "text, 3 decimals", "recorded calls")
    kinds = {name: (way == index) for index, name in enumerate(labels)}
    kinds["aliens that a candidate equals"] = (way == len(labels)) & (truth > 0)
    kinds["other aliens"] = (way == len(labels)) & (truth == 0)
    for name, which in kinds.items():
        known = which & (truth > 0)
        cells = [share(named, known & (noise == 0)), share(out, known), share(family, known), share(false > 0, which)]
        yield "identify", f"| {name} | {' | '.join(cells)} | {np.median(seconds[which]):.0f} |"


def identify():
    for name, one in measured("identify-learners").items():
        row = (name, f"{one['predictions']:,}", one["first_sentence"] or "-", one["seconds"])
        yield "identify", f"| {' | '.join(map(str, row))} |"


def explore():
    for name, one in measured("explore")["moves"].items():
        row = (name, one["curves (ms)"], one.get("1,000 tasks (ms)", "-"))
        yield "explore", f"| {' | '.join(map(str, row))} |"


def starts():
    found = measured("explore")["starts"]
    states = {
        "address printed": "the address is printed", "page draws": "the page draws one task",
        "first drag answered": "a first drag, which takes 0.3 s, is answered", "all panels": "all panels are there",
    }  # fmt: skip
    for name, state in states.items():
        times = [one[f"{name} (s)"] for one in found]
        yield "explore", f"| {state} | {np.median(times) + 1e-9:.1f} | {min(times)} to {max(times)} |"
    yield "explore", f"within 3.0 s in {sum(one['page draws (s)'] <= 3.0 for one in found)} starts of twenty"


def shipped_networks():
    for path in sorted((ROOT / "src" / "mesascope" / "explore" / "networks").glob("*/record.json")):
        one = json.loads(path.read_text())
        family, algorithm = one["family"], one["algorithm"]
        size = "d_in" if "d_in" in family else "d"
        name = f"centred {algorithm['centred']['name']}" if "centred" in algorithm else algorithm["name"]
        tasks = f"{family['name']}, {size} = {family[size]}"
        losses = f"{one['mse']:.4g} | {one['algorithm mse']:.4g}"
        yield "explore", f"| {path.parent.name}: {one['title']} | {tasks} | {losses} | {name} |"


def sweeps():
    kinds = {
        "study": "trainings of a small study, 16 s each, on two idle cores",
        "waiting": "waits of 15 s, while the cores were busy with other work",
    }
    for kind, words in kinds.items():
        one = measured("sweeps")[kind]
        # The file has tenths of seconds: 345.5 is a rounded 345.45 or more.
        took, ideal = (math.ceil(one[time] - 0.5) for time in ("seconds", "ideal"))
        yield "many-runs", f"| {words} | {took} s | {ideal} s | {100 * one['over_ideal']:.0f} |"


def continual_mnist():
    retained = open_run(ROOT / "docs" / "results" / "continual-mnist").results["table"]["retained"].mean(0)
    methods = ("La-MAML", "sparse-La-MAML", "MER", "GEM", "SGD", "replay", "Sync")
    yield "findings", f"| stream | {' | '.join(methods)} |"
    for place, stream in enumerate(STREAMS):
        cells = [f"{retained[place, METHODS.index(one)]:.1f}" for one in methods]
        known = [f" ({PRINTED[one]['retained'][place]:.2f})" if one in PRINTED else "" for one in methods]
        yield "findings", f"| {stream} | {' | '.join(map(''.join, zip(cells, known, strict=True)))} |"


def language_mesa():
    results = open_run(ROOT / "docs" / "results" / "language-mesa").results
    for kind in ("softmax", "linear", "delta", "mesa", "mesa-gates"):
        losses = (nominal(results[depth]["loss", kind]) for depth in ("two", "four"))
        cells = " | ".join(", ".join(f"{one:.3f}" for one in seeds) for seeds in losses)
        yield "findings", f"| {kind.replace('-', ', forget ')} | {cells} |"


TABLES = [
    devices, quick_presets, language, errors_of_mesa, bytes_of_text, calibration, identify, explore, starts,
    shipped_networks, sweeps, continual_mnist, language_mesa,
]  # fmt: skip


@pytest.mark.parametrize("rows", TABLES)
def test_tables_state_what_was_measured(rows):
    def check(case):
        name, row = case
        assert row in page(name)

    check_each(check, rows())

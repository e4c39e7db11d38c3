"""Every study, at sizes where it learns nothing, decides nothing but what is about algorithms alone."""

import dataclasses
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from cases import check_each
from matplotlib.axis import Axis, XAxis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.layout_engine import ConstrainedLayoutEngine

from mesascope import identification
from mesascope.evidence import Arrays, Estimates
from mesascope.evidence.judging import least_replicates
from mesascope.identification import catalogue, fitting, naming
from mesascope.learners.tuning import search
from mesascope.lenses import access
from mesascope.records import from_record, registered, to_record
from mesascope.reports import figures, ledger_markdown
from mesascope.runs import find_runs, open_run
from mesascope.studies import Lab, changed_settings, ledger_rows, new_run, resume_run, run_study
from mesascope.studies.identifying import calibration, language_models
from mesascope.studies.mesa.dynamics import Sequences
from mesascope.studies.mutating import GENERAL
from mesascope.training import Training

STUDIES = registered("study")
# A language model of random weights, which this process makes.
TEXT_MODEL = Path(tempfile.gettempdir(), f"text-model-{os.getpid()}")
# Studies of algorithms alone, which take long: with settings of their own; the first is reported as changed.
UNTRAINED = {
    "identify-calibration": {"trials": 1, "tasks": 8, "seeds": 2},
    "good-regression": {"tasks": 400, "seeds": 1},
}
SHRUNK = {
    **UNTRAINED,
    "pretrained": {"queries": 2, "tasks": 1, "model": str(TEXT_MODEL)},
    "llm-regression": {"tasks": 20, "seeds": 1, "width": 8, "layers": 1},
    **{name: {"tasks": 60, "watch_tasks": 20} for name in STUDIES if name.startswith(("sparse-maml", "cross-domain"))},
    "curvature": {"draws": 3},
    "language-mesa": {
        "context": 32, "windows": 8, "width": 16, "watch_windows": 4, "accumulate": 2, "autocast": "bfloat16",
    },
    "language-recall": {"tasks": 300, "width": 16},  # answers are counted: of few sequences two seeds may have as many
    "continual-online": {"steps": 30, "width": 8, "stays": (0.5,)},  # for the same reason: many first batches of tasks
    "continual-mnist": {
        "samples": 100, "many_samples": 20, "queries": 200, "tasks": 2, "many_tasks": 3, "width": 12, "widths": (4, 6),
        "passes": 1, "pass_tasks": 2, "mer_batches": 2, "side_seeds": 2,
    },
}  # fmt: skip
TINY = {
    "budget": 300,
    "tasks": 100,
    "sweep_tasks": 20,
    "tune_tasks": 20,
    "watch_tasks": 20,
    "draws": 10,
    "slow_tasks": 3,
}
# Sequences cost fifty times what tasks of one query do.
TINY_SEQUENCES = {"tasks": 20, "tune_tasks": 60, "watch_tasks": 8, "probe_tasks": 20, "averaged_tasks": 1}


def hardly_trained(settings, trained=2, **tiny):
    """The same settings with two seeds, few training steps and few tasks: the same networks, claims and figures."""
    changes, sizes = {}, TINY_SEQUENCES if isinstance(settings, Sequences) else TINY
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Training):
            changes[field.name] = dataclasses.replace(
                value,
                steps=trained,
                batch=min(value.batch, 16 if sizes is TINY else 4),
                warmup_steps=min(value.warmup_steps, trained),
            )
        elif dataclasses.is_dataclass(value):
            changes[field.name] = hardly_trained(value, trained)
        elif field.name in sizes:
            changes[field.name] = sizes[field.name]
        elif field.name == "seeds":
            changes[field.name] = min(value, 2)
    return dataclasses.replace(settings, **changes | tiny)


def finished(name, folder, seed=0, **tiny):
    study = STUDIES[name]
    if name == "pretrained" and not TEXT_MODEL.exists():
        pytest.importorskip("test_local_model").saved(TEXT_MODEL, "bloom")
    settings = hardly_trained(study.presets["quick"], **SHRUNK.get(name, {}) | tiny)
    run = new_run(study, "quick", settings, seed=seed, out=folder)
    return run, run_study(study, settings, run)


def few_candidates(*given, **named):
    """Every eighth of the catalogue, and those that a study asks for by name."""
    found = catalogue.candidates(*given, **named)
    return [one for place, one in enumerate(found) if place % 8 == 0 or one.name in NAMED]


NAMED = (
    "gradient-descent", "gradient-descent of 2 sizes", "mean", "one-step preconditioned-gradient-descent",
    "ridge least-squares",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def hardly_tuned(unchecked_module):
    """Tuned by three steps from one start, and identified without costly candidates.

    Step sizes have errors of 1 %, and no predictor is checked to look ahead. Figures are not laid out and have no
    ticks, and words stay text.
    """
    minimise = search.minimise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasAgg, "print_png", lambda *given, **named: None)
        patch.setattr(search, "minimise", lambda losses, start, units, iterations: minimise(losses, start, units, 3))
        patch.setattr(search, "_SPREAD", 0)
        patch.setattr(search, "standard_errors", lambda losses, point, units: 0.01 * units)
        patch.setattr(access, "check_causal", lambda predictor, sequences: None)
        patch.setattr(fitting, "MOST_STEPS", 3)
        patch.setattr(language_models, "TOKENS", 1)  # no answer is a number, so that no candidate is fitted to it
        patch.setattr(catalogue, "_estimators", list)
        patch.setattr(identification, "candidates", few_candidates)
        patch.setattr(naming, "catalogue", few_candidates)
        patch.setattr(calibration, "CONTROLS", 2)
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, canvas: None)
        patch.setattr(Axis, "_update_ticks", lambda axis: [])
        patch.setattr(Axis, "_get_ticklabel_bboxes", lambda *given: ([], []))
        for axis in (XAxis, YAxis):
            patch.setattr(axis, "_update_label_position", lambda *given: None)
        patch.setitem(figures.STYLE, "svg.fonttype", "none")
        yield
    shutil.rmtree(TEXT_MODEL, ignore_errors=True)


@pytest.fixture(scope="module", params=STUDIES)
def tiny(request, tmp_path_factory):
    return request.param, *finished(request.param, tmp_path_factory.mktemp("studies") / request.param)


def test_studies_state_claims_and_presets():
    for name, study in STUDIES.items():
        assert study.name == name
        assert [*study.presets][:2] == ["quick", "paper"]
        assert study.question.endswith("?")
        assert any(claim.about == "training" for claim in study.claims) or name in UNTRAINED
        for settings in study.presets.values():
            assert from_record(to_record(settings), type(settings)) == settings
            assert settings.seeds >= 2


def own_bugs(study):
    """Bugs that a study declares, without the general ones."""
    general = {mutation.bug for mutation in GENERAL}
    return [mutation.bug for mutation in study.mutations if mutation.bug not in general]


def test_studies_declare_five_bugs_of_their_own_and_each_target_exists():
    for study in STUDIES.values():
        assert len(own_bugs(study)) >= 5, f"{study.name} must declare more bugs of its own"
        for bug in study.mutations:
            with bug.planted():
                pass


def test_presets_have_the_replicates_that_their_claims_need_and_state_departures():
    for study in STUDIES.values():
        for preset, settings in study.presets.items():
            as_printed = preset == "thesis" or preset.startswith("mini-")
            assert study.departures(preset) or not as_printed, (study.name, preset)
            for claim in study.claims:
                assert not (as_printed and claim.departs(preset)), (study.name, preset, claim.id)
                enough = preset == "quick" or claim.over != "seeds" or settings.seeds >= least_replicates(claim)
                assert enough, (study.name, preset, claim.id)


# Words that are true of one value of a setting alone.
TRUE_OF_DEFAULTS = {
    "shots": "one example",
    "architecture": "convolution",
    "dataset": r"characters|digits|clothes",
    "domains": r"characters|digits|clothes",
    "x_scale": r"U\(-0\.5|the 0\.5 of",
    "blocks": "twelve",
    "few_closed": "tenth",
    "attention_scale": "hundred times",
}


def test_sentences_and_captions_are_true_whatever_the_settings():
    def check(name):
        study = STUDIES[name]
        shown = [study.question, study.method, *(figure.caption for figure in study.figures)]
        shown += [text for claim in study.claims for text in (claim.sentence, claim.measures)]
        for setting in {field.name for preset in study.presets.values() for field in dataclasses.fields(preset)}:
            words = TRUE_OF_DEFAULTS.get(setting)
            assert not words or not re.findall(words, " ".join(shown), re.IGNORECASE), setting

    check_each(check, STUDIES)


def test_progress_counts_the_trainings_of_a_study(tiny):
    name, run, _ = tiny
    count = STUDIES[name].trainings
    declared = count if isinstance(count, int) else count(run.settings)
    assert declared == sum(stage.startswith("train ") for stage in run.times)


def test_nothing_holds_of_networks_that_have_hardly_been_trained(tiny):
    name, _, records = tiny
    held = [r["id"] for r in records if r["verdict"] == "holds" and r["about"] == "training"]
    assert not held, f"claims of {name} that two training steps satisfy need a premise or another bound"


def test_every_claim_is_judged_with_a_reason_where_it_is_not_decided(tiny):
    name, run, records = tiny
    assert [record["id"] for record in records] == [claim.id for claim in STUDIES[name].claims]
    for record in records:
        assert record["verdict"] in ("holds", "fails", "undecided")
        assert record["reason"].startswith(("worst of ", "first outside of ")) or (
            bool(record["reason"]) == (record["verdict"] == "undecided")
        )
        assert "must exist, but is missing" not in record["reason"]
        assert "results must contain" not in record["reason"], "a reading that asks for what no stage holds"
        assert record["n"] >= 1, f"{record['id']}: {record['reason']}"
    assert open_run(run.path).claims == json.loads(json.dumps(records))


def test_every_figure_has_a_caption_and_is_drawn(tiny):
    name, run, _ = tiny
    assert list(run.captions) == [figure.name for figure in STUDIES[name].figures]
    for figure, caption in run.captions.items():
        assert caption.endswith(".")
        assert "<path" in run.figure_svg(figure)
    assert (run.path / "report.html").read_text().count("<figure>") == len(run.captions)


def test_another_seed_changes_every_array(tiny, tmp_path):
    """But closed forms and settings, which are the same whatever was drawn.

    What all seeds of a run share, such as an algorithm's errors on tasks that they have in common, changes with the
    first seed.
    """
    name, run, _ = tiny
    drawn = {(stage, key): array for stage in run.results for key, array in numbers(run.results[stage]).items()
             if stage not in ("uniform", "kinds") and key.split()[-1] not in CLOSED_FORMS and key != "closed bias"
             and (stage, key.split()[0]) != DRAWN_ALIKE
             and np.issubdtype(array.dtype, np.floating)}  # fmt: skip
    left = {place for place in drawn if not differs(*of_two_seeds(run.results[place[0]], place[1]))}
    if left:
        study, settings, _ = resume_run(run.path)
        settings = dataclasses.replace(hardly_trained(settings, trained=1, **SHRUNK.get(name, {})), seeds=1)
        other = new_run(study, "quick", settings, seed=1, out=tmp_path / name)
        study.measure(Lab(other, settings.seeds), settings)
        for stage, key in left:
            others = numbers(other.results[stage])[key]
            array = drawn[stage, key][tuple(slice(size) for size in others.shape)]
            assert differs(array, others), f"{stage}/{key} does not depend on the seed"


# Masks of a few rows, drawn alike to be shown, before their odds are learned.
DRAWN_ALIKE = ("mt-net", "closed")
# Arrays that no draw decides, beside the stages "uniform" and "kinds", and shares of entries of a bias.
CLOSED_FORMS = {"frequencies", "step", "seed", "size", "limit", "optimum", "quantile", "x"}


def differs(one, other):
    return (np.isfinite(one) & (one == other) & (one != 0)).mean() <= 0.5


def of_two_seeds(stage, key):
    """The parts of an array that are of its first two seeds; twice the same if it has no two."""
    if isinstance(stage, Arrays):
        array = stage[key].swapaxes(0, stage.axes[key].index("seed")) if "seed" in stage.axes[key] else stage[key][None]
        return array[0], array[min(1, len(array) - 1)]
    places = {name: [place for place, one in enumerate(stage.names) if one == name] for name in stage.names}
    return tuple(stage.mean[..., [own[min(seed, len(own) - 1)] for own in places.values()]] for seed in range(2))


def numbers(stage):
    assert isinstance(stage, Arrays | Estimates)
    return {"mean": stage.mean} if isinstance(stage, Estimates) else dict(stage)


def test_settings_and_their_changes_are_read_back(tiny):
    name, run, _ = tiny
    study, settings, again = resume_run(run.path)
    assert (study.name, again.path) == (name, run.path)
    assert settings == again.settings == hardly_trained(study.presets["quick"], **SHRUNK.get(name, {}))
    trainings = [field.name for field in dataclasses.fields(settings) if field.type == "Training"]
    first = f"{trainings[0]}.steps 2" if trainings else " ".join(map(str, next(iter(SHRUNK[name].items()))))
    assert any(change.startswith(f"{first} (") for change in changed_settings(study, again))


def test_a_run_goes_on_on_another_device_and_names_both(tmp_path, monkeypatch):
    """The other device is a second name of the processor here."""
    study = registered("study")["two-steps"]
    settings = hardly_trained(study.presets["quick"], trained=1, tasks=100)
    run = new_run(study, "quick", settings, out=tmp_path / "run")
    for asked in (None, "cpu"):
        assert "begun_on" not in resume_run(run.path, device=asked)[2].config
    monkeypatch.setattr("mesascope.studies.running.available_device", lambda name: name)
    *_, moved = resume_run(run.path, device="cpu:0")
    assert (moved.config["device"], moved.config["begun_on"][:5]) == ("cpu:0", "cpu (")
    run_study(study, settings, moved)
    *_, again = resume_run(run.path, device="cpu")  # a finished run stays what it was
    assert again.config["device"] == "cpu:0"


def test_the_ledger_tells_presets_and_settings_apart(tmp_path):
    """A run of changed settings stands beside that of the preset, and a damaged one costs its own rows."""
    finished("two-steps", tmp_path / "a", tasks=400)
    finished("two-steps", tmp_path / "c", tasks=300)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text("{")
    runs, unreadable = find_runs([tmp_path])
    assert len(unreadable) == 1
    rows, damaged = ledger_rows(runs)
    own = [row for row in rows if row["study"] == "two-steps"]
    assert not damaged
    assert {row["run"] for row in own} == {str(tmp_path / "a"), str(tmp_path / "c")}
    assert all(any("tasks 400 (100000)" in c or "tasks 300 (100000)" in c for c in row["changed"]) for row in own)
    assert all(row["verdict"] == "not yet run" for row in rows if row["study"] != "two-steps")
    page = ledger_markdown(rows)
    assert "training.steps 2 (1500)" in page.partition("quick, but ")[2].partition("\n")[0]
    for path in (tmp_path / "c" / "results").glob("*.npz"):
        path.write_bytes(b"")
    judged = [row for row in ledger_rows(find_runs([tmp_path / "c"])[0])[0] if row["study"] == "two-steps"]
    assert {row["verdict"] for row in judged} == {"undecided"}
    assert "is damaged" in judged[0]["reason"]


def test_the_ledger_is_that_of_the_committed_results(monkeypatch):
    root = Path(__file__).parent.parent
    monkeypatch.chdir(root)
    runs, unreadable = find_runs([Path("docs/results")])
    assert not unreadable
    for run in runs:
        assert (run.path / "finished.json").exists()
        assert open_run(run.path).settings.seeds >= 2
    rows, damaged = ledger_rows(runs)
    assert not damaged
    assert ledger_markdown(rows) == (root / "docs" / "ledger.md").read_text()

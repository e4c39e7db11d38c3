"""Models of text as learners: prompts, numbers, budgets, files and servers that misbehave."""

import asyncio
import copy
import functools
import json
import math
import pickle
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from cases import in_turn
from hypothesis import given, strategies as st
from text_server import TEXTS, planted, serving

from mesascope import identify, learners
from mesascope.adapters import (
    FORMATS,
    CachedModel,
    NumberTokenizer,
    UnansweredPrompt,
    from_language_model,
    from_text,
    names_matter,
    openai_model,
    parse_number,
)
from mesascope.adapters.calls import TruncatedAnswer
from mesascope.cli import main
from mesascope.errors import ArgumentError, MesascopeError
from mesascope.identification import candidates
from mesascope.streams import stream
from mesascope.tasks import Context, LinearRegression, RealTable

FAMILY = LinearRegression(n_context=8, d_in=2, noise=0.3)
EPISODE = FAMILY.sample(6, stream(0, "text"))
RIDGE = learners.LeastSquares(0.5)
FEW = [one for one in candidates(sklearn=False) if one.name in ("gradient-descent", "ridge least-squares", "mean")]


@pytest.fixture
def key(monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-test")


def one_task():
    part = EPISODE.part(0, 1)
    return part.context, part.xq


def test_the_prompt_is_that_of_the_paper():
    prompt = FORMATS["words-to-numbers"].prompt([[-2.06, 1.0]], [-81.93], [0.4871, 3.0])
    assert prompt == (
        'The task is to provide your best estimate for "Output". Please provide that and only that, without any '
        "additional text.\n\n\n\n\n"
        "Feature 0: -2.06\nFeature 1: 1.0\nOutput: -81.93\n\nFeature 0: 0.49\nFeature 1: 3.0\nOutput:"
    )


def test_features_may_be_letters():
    assert (
        FORMATS["letters"]
        .prompt([[1, 26]], [0.5], [3, 2])
        .endswith("Feature 0: a\nFeature 1: z\nOutput: 0.5\n\nFeature 0: c\nFeature 1: b\nOutput:")
    )
    with pytest.raises(ArgumentError, match="must be whole numbers from 1 to 26 to be letters"):
        FORMATS["letters"].prompt([[1.5]], [0.5], [3])


def test_digits_stand_apart():
    assert FORMATS["digits"].prompt([[-2.06]], [0.0], [12.5]) == "- 2 0 6 -> 0 ;\n1 2 5 0 ->"


@given(st.floats(-1e6, 1e6), st.integers(0, 6), st.sampled_from(sorted(FORMATS)))
def test_a_number_that_is_written_is_read_back(value, decimals, name):
    form = FORMATS[name]
    read = form.read(form.write(value, decimals), decimals)
    assert read == pytest.approx(round(value, decimals), abs=0.51 * 10.0**-decimals * (name == "digits") + 1e-12)


WRAPPINGS = [
    "{}", " {}\n", "Output: {}", "**Output:** {}", "**Output: {}**", "Output:\n{}", "Feature 0: 1.0\nOutput: {}", "{}.",
    "The answer is {}.", 'My best estimate for "Output" is about {}', "It is {}", "y = {}", "-> {}", "≈ {}", "**{}**",
    "`{}`", '"{}"', "“{}”", "{}\n\nFeature 0: 7", "Output: {}\n\nFeature 0: 7", "{} (approximately)", "```\n{}\n```",
    "```text\n{}\n```", r"\( {} \)", "${}$", r"\boxed{{{}}}", "{}\r\nas x grows",
    "<think>\nOutput: 5\n</think>\n\n{}", "7\n[/THINK]{}",
]  # fmt: skip
SPOILT = [
    "- {}\n- 5", "-${}", "${}", "{} %", "{} kg", "{}th", "x{}", "{}x + 3", "{} + 4", "{}/2", "{}-5", "{} to 5",
    "{} ± 0.1", "Step 1: {}", "Feature 0: {}", "not {}", "{}!", "{}...", "Output: 1.0\nOutput: {}", "It is {}\nor 4",
    "({}, 1)", "[1,{}]", "√{}", "10^{}", "{},5", "{} 5", "{}_000", "{}:30", "<p>{}</p>", "minus {}", ">{}",
    "Feature 0: 1\nOutput: {}\n\nFeature 0: 3", "{}\n/2", "Output: {}\n± 0.1", "{}\n%",
    "—{}", "Output: —{}", "<think>\nOutput: {}", "Output: {}\n</think>", "{}\nWait, it is 4",
    "Output: {}\nCorrection: 4",
]  # fmt: skip


@st.composite
def numbers(draw):
    """A number as people and programs write it, and its value."""
    sign = draw(st.sampled_from(["", "-", "+", "- ", "− ", *"‐‑‒–−－﹣"]))
    whole, part = draw(st.integers(0, 10**7)), draw(st.sampled_from(["", ".5", ".25", ".050"]))
    form, power = draw(st.sampled_from(["{}", "{:,}"])), draw(st.integers(-9, 9))
    raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    ending = draw(st.sampled_from([
        "", f"e{power}", f"E{power:+}", f"x10^{power}", f" × 10{raised}", f"*10**{power}", rf" \times 10^{{{power}}}"
    ]))  # fmt: skip
    value = float(f"{whole}{part}e{power if ending else 0}") * (1 if sign in ("", "+") else -1)
    text = form.format(whole) + part + ending
    wide = str.maketrans("0123456789.", "０１２３４５６７８９．")
    return sign + (text.translate(wide) if draw(st.booleans()) else text), value


@given(numbers(), st.sampled_from(WRAPPINGS), st.sampled_from(SPOILT))
def test_the_number_that_was_meant_is_read_and_never_another(number, wrapping, spoilt):
    text, value = number
    assert parse_number(wrapping.format(text)) == pytest.approx(value, rel=1e-15)
    assert math.isnan(parse_number(spoilt.format(text.lstrip("+"))))


NO_EXPONENT = st.characters(exclude_characters="eE")


@given(st.one_of(st.text(NO_EXPONENT), st.text("0123456789.,-+ \nOutput:%/()[]'`$", max_size=12)))
def test_a_number_that_is_read_stands_in_the_text_in_full(text):
    assert not any(math.isinf(form.read(text, 2)) for form in FORMATS.values())
    value = parse_number(text)
    if not math.isnan(value):
        runs = re.findall(r"(?<![\w.,])[\d.,]+(?!\w)", unicodedata.normalize("NFKC", text))
        whole = [run for run in runs if re.fullmatch(r"(\d+|\d{1,3}(,\d{3})+)?\.?\d*\.?", run) and run.strip(".,")]
        assert abs(value) in [float(re.sub(r"(\..*)\.$", r"\1", run).replace(",", "")) for run in whole]


@in_turn("text", ["", " ", "none", "x2", "3rd", "1 2", "3 to 5", "nan", "inf", "1e400", "½", "3²",
                                  "1e-400", "3,14", "0,123", "1.200,5", "12 apples", "1 5 0", "- 5 kg", "0x10",
                                  "(1,200)"])  # fmt: skip
def test_what_is_no_number_is_nan_and_not_zero(text):
    assert math.isnan(parse_number(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [("-0.5", -0.5), ("5.", 5), ("\N{MINUS SIGN}3", -3), ("1.5e3", 1500), ("Output: 2.50\n\nFeature 0: 7", 2.5),
     (".5", 0.5), ("1,234,567.8", 1234567.8), ("It is 4.", 4), ("**7**", 7), ("3\n4", 3), ("-> 5", 5),
     ("y = -2E-2", -0.02)],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 5 0", 1.5), ("- 2 0 6 ;\n1 ->", -2.06), ("– 5", -0.05), ("1 5 0\n2 0 0", 1.5), ("1.50", None), ("150", None),
     ("12 apples", None), ("1 5 0 , 2", None), ("1 5 kg", None), ("-> 1 5", None), ("— 5", None),
     ("1\n</think>\n5", 0.05)],
)  # fmt: skip
def test_digits_apart_are_read_on_the_first_line_alone_and_nothing_else_is(text, value):
    found = FORMATS["digits"].read(text, 2)
    assert found == value or (value is None and math.isnan(found))


def test_a_planted_algorithm_answers_through_text_to_rounding():
    learner = from_text(planted(RIDGE, 4), decimals=4)
    seen = learner.as_written(EPISODE)
    expected = RIDGE(seen.context, seen.xq)
    torch.testing.assert_close(learner(EPISODE.context, EPISODE.xq), expected, rtol=0, atol=6e-5)
    assert learner.table()[0]["parse rate"] == 1


def test_scaled_labels_come_back_to_their_range():
    learner = from_text(planted(learners.Mean()), scale=(0, 100), decimals=3)
    torch.testing.assert_close(
        learner(EPISODE.context, EPISODE.xq), learners.Mean()(EPISODE.context, EPISODE.xq), rtol=0, atol=1e-3
    )


def test_labels_that_are_all_the_same_are_scaled_without_nan():
    context = Context(EPISODE.context.x, torch.full_like(EPISODE.context.y, 3.0))
    learner = from_text(planted(learners.Mean()), scale=(0, 1))
    torch.testing.assert_close(learner(context, EPISODE.xq), torch.full((6, 1, 1), 3.0))


def test_pairs_are_ordered_as_asked():
    prompts = []

    def model(prompt):
        prompts.append(prompt)
        return "0"

    context = Context(torch.tensor([[[3.0], [1.0], [2.0]]]), torch.tensor([[[30.0], [10.0], [20.0]]]))
    for order in ("given", "distance", "random"):
        from_text(model, "compact", order=order)(context, torch.tensor([[[1.1]]]))
    assert prompts[0].splitlines()[:3] == ["3.0 -> 30.0", "1.0 -> 10.0", "2.0 -> 20.0"]
    assert prompts[1].splitlines()[:3] == ["3.0 -> 30.0", "2.0 -> 20.0", "1.0 -> 10.0"]
    assert sorted(prompts[2].splitlines()) == sorted(prompts[0].splitlines())


def test_failures_are_nan_and_counted():
    answers = iter(["1.5", "no idea", "2.5", "", "3", "4"])
    learner = from_text(lambda prompt: next(answers), concurrency=1)
    found = learner(EPISODE.context, EPISODE.xq).flatten()
    assert torch.isnan(found).tolist() == [False, True, False, True, False, False]
    assert learner.table()[0]["read"] == 4


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("fault", [None, 3.0, ValueError("once"), ArgumentError("once")])
def test_a_model_that_fails_at_one_prompt_leaves_nan_and_one_that_always_fails_ends_in_a_sentence(fault, batched):
    def model(prompt, failing):
        if prompt == failing or failing == "all":
            asked.append(prompt)
            if isinstance(fault, Exception):
                raise fault
            return fault
        return "1"

    def own(failing):
        one = functools.partial(model, failing=failing)
        return CachedModel(
            (lambda several: [one(each) for each in several]) if batched else one, "own", batched=batched
        )

    prompts, asked = [str(number) for number in range(100)], []
    for failing in ("0", "50"):
        calls = own(failing)
        assert calls.ask(prompts) == [None if prompt == failing else "1" for prompt in prompts]
        assert calls.unanswered == {"failed": 1}
    asked.clear()
    with pytest.raises(ArgumentError, match="once" if fault and fault != 3.0 else "must be a text"):
        own("all").ask(prompts)
    assert len(asked) < 20


def test_each_nan_has_its_reason():
    cut = [TruncatedAnswer("3.1"), TruncatedAnswer(" 3.1\n\nFeature"), TruncatedAnswer("Let us see\n3")]
    answers = iter([*cut, " ", "two", "3 or 4", "5", "1e300"])  # the last is beyond float32
    learner = from_text(lambda prompt: next(answers), most_calls=8, concurrency=1)
    found = learner(*FAMILY.sample(9, stream(0, "reasons"))[:2]).flatten()
    assert found.tolist() == pytest.approx([math.nan, 3.1, *[math.nan] * 4, 5, math.nan, math.nan], nan_ok=True)
    row = learner.table()[0]
    reasons = {"cut": 2, "empty": 1, "no number": 1, "unclear number": 1, "beyond the budget": 1, "failed": 0}
    assert {reason: row[reason] for reason in reasons} == reasons
    assert row["asked"] == row["read"] + sum(reasons.values())


class Bound:
    """An asynchronous client that works in the loop alone in which it was first used."""

    def __init__(self):
        self.loop = None

    async def __call__(self, prompt):
        self.loop = self.loop or asyncio.get_running_loop()
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return [planted(RIDGE)(one) for one in prompt] if isinstance(prompt, list) else planted(RIDGE)(prompt)


def test_async_and_batched_models_answer_alike_also_inside_a_running_loop():
    expected = from_text(planted(RIDGE))(EPISODE.context, EPISODE.xq)
    client = Bound()
    learners = [from_text(lambda prompts: [planted(RIDGE)(one) for one in prompts], batched=True)]
    learners += [from_text(client, concurrency=2), from_text(client), from_text(client, batched=True)]

    async def cell():
        return [learner(EPISODE.context, EPISODE.xq) for learner in learners]

    for found in (asyncio.run(cell()), asyncio.run(cell())):
        assert all(torch.equal(one, expected) for one in found)


def test_the_loop_of_asynchronous_models_ends_with_the_program_without_a_word():
    program = (
        "from mesascope.adapters import CachedModel\n"
        "async def model(prompt): return prompt\n"
        "print(CachedModel(model, 'm').ask(['a', 'b']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("['a', 'b']\n", "", 0)


def test_answers_are_kept_on_file_and_not_asked_again(tmp_path):
    asked = []

    def model(prompt):
        asked.append(prompt)
        return f"{len(asked)}"

    def answers():
        learner = from_text(model, name="counting", cache=tmp_path / "calls.jsonl", concurrency=1)
        return [learner(EPISODE.context, EPISODE.xq) for _ in range(2)], learner

    first, _ = answers()
    assert not torch.equal(*first)  # the second answers are others
    file = tmp_path / "calls.jsonl"
    for torn in ("{", '{"key": "torn'):
        file.write_text(file.read_text() + torn)
        second, learner = answers()
    assert len(asked) == 12
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    assert learner.table()[0]["from file"] == 12
    file.write_text("{}\n")
    with pytest.raises(ArgumentError, match="line 1 of"):
        answers()


def test_everything_that_an_answer_depends_on_is_in_its_key(tmp_path, key, monkeypatch):
    with serving(lambda prompt: "1") as (url, seen), serving(lambda prompt: "2") as (other, _):
        file = tmp_path / "calls.jsonl"
        settings = [{}, {"temperature": 1.0}, {"max_tokens": 64}, {"base_url": None}, {"seed": 1}, {"stop": ["\n"]}]
        monkeypatch.setenv("OPENAI_BASE_URL", other)
        for changed in settings:
            learner = from_text(openai_model("m", **{"base_url": url} | changed), cache=file, name="same")
            learner(*one_task())
            assert learner.table()[0]["calls"] == 1, changed
        again = from_text(openai_model("m", base_url=url), cache=file, name="same")
        assert again(*one_task()).item() == 1.0
        assert again.table()[0]["calls"] == 0
        assert len(seen) == len(settings) - 1


@pytest.mark.parametrize("fault", ["cut", "cut empty", "empty"])
def test_an_answer_that_is_cut_or_empty_is_asked_again(fault, tmp_path, key):
    with serving(lambda prompt: "3.25", fault) as (url, _):
        found = [
            from_text(openai_model("m", base_url=url), cache=tmp_path / "calls.jsonl")(*one_task()) for _ in range(3)
        ]
    assert torch.stack(found).flatten().tolist() == pytest.approx([math.nan, 3.25, 3.25], nan_ok=True)


def test_a_cache_that_cannot_be_kept_is_refused_before_anything_is_asked(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("my notes")
    for path, message in (
        (tmp_path / "none" / "calls.jsonl", "cache must be a file that can be written"),
        (tmp_path, "cache must be a file that can be written"),
        (file, "each line of a cache must hold a key and an answer"),
    ):
        with pytest.raises(ArgumentError, match=message):
            from_text(planted(RIDGE), name="ridge", cache=path)
    assert file.read_text() == "my notes"
    with pytest.raises(ArgumentError, match="name must name the model and its settings if there is a cache"):
        from_text(lambda prompt: "1", cache=tmp_path / "calls.jsonl")


def same_number(prompt):
    return "1.5"


def test_learners_of_text_can_be_copied_and_pickled(tmp_path, key):
    words = NumberTokenizer()
    with serving(same_number) as (url, _):
        served = openai_model("m", base_url=url)
        formats = [format for format in FORMATS if format != "letters"]
        learners = [from_text(same_number, format, name="same", cache=tmp_path / "calls.jsonl") for format in formats]
        learners += [from_text(served), from_language_model(torch.nn.Embedding(len(words), len(words)), words)]
        for learner in learners:
            expected = learner(*one_task())
            for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
                torch.testing.assert_close(other(*one_task()), expected, equal_nan=True)
        assert b"secret" not in pickle.dumps(learners)


@pytest.mark.parametrize("budget", [{"most_calls": 4}, {"most_tokens": 4 * 150}])
def test_what_is_beyond_a_budget_is_nan(budget):
    learner = from_text(planted(RIDGE), **budget)
    found = learner(EPISODE.context, EPISODE.xq)
    row = learner.table()[0]
    assert 0 < row["calls"] <= 5
    assert row["beyond the budget"] == 6 - row["calls"]
    assert int(torch.isnan(found).sum()) == 6 - row["calls"]


def test_an_estimate_asks_nothing():
    learner = from_text(lambda prompt: pytest.fail("asked"))
    row = learner.estimate(FAMILY, 1000, price=2.0)[0]
    assert 1000 * 50 < row["tokens"] < 1000 * 200
    assert row["price"] == pytest.approx(row["tokens"] * 2e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "words-to-number"}, "did you mean 'words-to-numbers'"),
        ({"decimals": -1}, "decimals must be at least 0"),
        ({"order": "nearest"}, "order must be one of"),
        ({"scale": (1, 0)}, "scale must be a range"),
        ({"most_calls": -1}, "most_calls must be at least 0"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, unchecked):
    with pytest.raises(ArgumentError, match=message):
        from_text(planted(RIDGE), **arguments)


def test_wrong_models_and_tasks_are_refused():
    with pytest.raises(ArgumentError, match="an answer must be a text"):
        from_text(lambda prompt: 3.0)(EPISODE.context, EPISODE.xq)
    with pytest.raises(ArgumentError, match="the answer of a batched model must be 6 texts"):
        from_text(lambda prompts: ["1"], batched=True)(EPISODE.context, EPISODE.xq)
    with pytest.raises(ArgumentError, match="features must name each of 2 inputs"):
        from_text(planted(RIDGE), features=["age"])(EPISODE.context, EPISODE.xq)
    for form in FORMATS:
        with pytest.raises(ArgumentError, match="each number of context and xq must be finite"):
            from_text(lambda prompt: pytest.fail("asked"), form)(EPISODE.context, EPISODE.xq * math.inf)
    two = LinearRegression(n_context=3, d_in=2, d_out=2).sample(1, stream(0, "two"))
    with pytest.raises(ArgumentError, match=r"context.y must have one target"):
        from_text(planted(RIDGE))(two.context, two.xq)


# From here on through HTTP.


def test_identify_names_what_is_planted_behind_a_server(key, tmp_path):
    with serving(planted(RIDGE, 3)) as (url, seen):
        learner = from_text(openai_model("ridge", base_url=url), decimals=3, cache=tmp_path / "calls.jsonl")
        found = identify(learner, FAMILY, FEW, 250)
    assert found.names == ("ridge least-squares",)
    assert found.parameters("ridge least-squares")["ridge"] == pytest.approx(0.5, rel=0.05)
    assert seen[0]["model"] == "ridge"
    assert len(seen) <= 252
    kept = (tmp_path / "calls.jsonl").read_text()
    assert "secret" not in kept + json.dumps(found.to_dict())


@pytest.mark.parametrize("fault", [429, 500, 503, "closes"])
def test_a_server_that_fails_once_is_asked_again(fault, key):
    with serving(planted(RIDGE), fault) as (url, seen):
        learner = from_text(openai_model("ridge", base_url=url, retries=2), concurrency=1)
        assert torch.isfinite(learner(*one_task())).all()
    assert len(seen) == 2


def test_the_command_line_asks_a_server(key, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tasks = ["--family", "linear-regression(n_context=8, d_in=2, noise=0.3)", "--candidates"]
    words = [
        "identify",
        "--openai",
        "ridge(reasoning_effort='low', seed=3)",
        *tasks,
        "ridge least-squares, mean",
        "--budget",
        "250",
        "--out",
        "found",
    ]
    with serving(planted(RIDGE)) as (url, seen):
        main([*words, "--base-url", url, "--estimate", "2.5"])
        assert "price" in capsys.readouterr().out
        assert not seen
        for _ in range(2):  # the second time from the file
            main([*words, "--base-url", url])
            printed = capsys.readouterr().out
            assert "ridge least-squares" in printed
            assert "unclear number" in printed
            shutil.rmtree("found")
        assert len(seen) <= 250
    assert {"reasoning_effort": "low", "seed": 3, "stop": ["\n\n"]}.items() <= seen[0].items()
    assert "secret" not in Path("runs/answers.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--openai", "ridge"], "--budget must be given with --openai"),
        (["--openai", "ridge", "--sklearn", "Ridge()"], "is given --sklearn and --openai: pass one"),
        (["--sklearn", "Ridge()", "--base-url", "http://localhost"], "--base-url goes with --openai"),
        (["--sklearn", "Ridge()", "--estimate", "2"], "--estimate goes with --openai"),
        (["--openai", "ridge", "--budget", "250", "--format", "digit"], "format must be"),
        (["--local", "nowhere"], "--budget must be given with --local"),
        (
            ["--local", "/nowhere", "--budget", "250"],
            "--local must be a folder or a GGUF file that exists, but is '/nowhere'",
        ),
        (["--local", "/tmp(beams=3)", "--budget", "250"], "--local must be a model with its settings, but is not"),
    ],
)
def test_a_wrong_call_of_a_server_ends_in_a_sentence(words, said, key, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["identify", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


FILTERED = (400, {"message": "filtered", "param": "prompt", "code": "content_filter"})
TOO_LONG = (400, {"message": "maximum context length is 9 tokens", "code": "context_length_exceeded"})
FLAGGED = (403, {"message": "Your chosen model requires moderation and your input was flagged.", "code": 403})
NO_ROOM = (400, {"message": "Could not finish the message because max_tokens or model output limit was reached."})
REASONS = {
    "failed": ["hangs", "closes", 500, 429, 424, "page", "streams"],
    "refused": [400, 451, FILTERED, FLAGGED, (403, "Sorry, you have been blocked"), TOO_LONG, "filtered", "blocked"],
    "cut": ["cut", "cut empty", "aborted", "thinks", NO_ROOM], "empty": ["empty"], "no number": ["prose"],
}  # fmt: skip


@pytest.mark.parametrize(("reason", "fault"), [(reason, one) for reason, faults in REASONS.items() for one in faults])
def test_a_server_that_does_not_answer_one_prompt_leaves_nan_and_the_reason_is_counted(reason, fault, key):
    with serving(planted(RIDGE), fault) as (url, _):
        learner = from_text(
            openai_model("ridge", base_url=url, retries=0, timeout=0.3 if fault == "hangs" else 30), concurrency=1
        )
        found = learner(EPISODE.context, EPISODE.xq).flatten()
    assert torch.isnan(found).tolist() == [True] + [False] * 5
    row = learner.table()[0]
    assert (row["asked"], row["read"]) == (6, 5)
    assert row[reason] == 1
    for sentence in learner.calls.failures:
        assert re.search("must (answer|take).*, but ", sentence)


NO_QUOTA = (429, {"message": "You exceeded your current quota", "type": "insufficient_quota"})
TOO_LARGE = (400, {"message": "max_tokens is too large: 32", "param": "max_tokens", "code": "invalid_value"})


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [(401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "base_url"), (402, "add credit"), (NO_QUOTA, "add credit"),
     ((400, "API key not valid."), "OPENAI_API_KEY"), ((400, "Invalid model name passed in model=ridge"), "base_url"),
     ((403, "Your team has used all available credits"), "add credit"),
     ((400, "invalid temperature: only 1 is allowed"), "temperature must be a value that .* takes, but is 0.0"),
     (TOO_LARGE, "max_tokens must be a value that .* takes, but is 32"),
     ((422, "`temperature` must be strictly positive"), "temperature must be a value that .* takes, but is 0.0")],
)  # fmt: skip
def test_a_server_that_refuses_every_prompt_is_asked_once(fault, remedy, key):
    with serving(planted(RIDGE), *[fault] * 99) as (url, seen):
        learner = from_text(openai_model("ridge", base_url=url))
        for ask in (lambda: learner(EPISODE.context, EPISODE.xq), lambda: identify(learner, FAMILY, FEW, 250)):
            seen.clear()
            with pytest.raises(ArgumentError, match=remedy) as refused:
                ask()
            assert len(seen) == 1
            assert "secret" not in str(refused.value)


def unsupported(*names, form):
    """A fault of requests with fields that a model does not support, as ``form`` makes an error of a name."""
    return lambda body: next(((400, form(name)) for name in names if name in body), None)


@pytest.mark.parametrize("form", [
    lambda name: {"message": f"Unsupported parameter: '{name}' is not supported with this model." + (
        " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""), "param": name,
        "code": "unsupported_parameter"},
    lambda name: {"message": "use max_completion_tokens" if name == "max_tokens" else f"{name} is not supported"},
    lambda name: {"detail": [{"type": "extra_forbidden", "loc": ["body", name]}]},
])  # fmt: skip
def test_a_field_that_a_model_does_not_support_is_left_out_for_the_session_and_named_once(form, key, caplog):
    fault = unsupported("temperature", "max_tokens", "stop", form=form)
    with serving(planted(RIDGE), *[fault] * 99) as (url, seen):
        learner = from_text(openai_model("ridge", base_url=url, stop=["\n"]))
        for _ in range(2):
            assert torch.isfinite(learner(EPISODE.context, EPISODE.xq)).all()
    assert len(seen) == 12 + 3
    assert set(seen[-1]) == {"model", "messages", "max_completion_tokens"}
    assert sorted(re.search("not support (.*) =", record.message)[1] for record in caplog.records) == [
        "max_tokens", "stop", "temperature",
    ]  # fmt: skip


def test_a_server_that_refuses_all_prompts_ends_in_a_sentence(key):
    for fault, remedy in (
        (400, "log of the server"),
        (TOO_LONG, "longer window"),
        (FILTERED, "another family of tasks"),
    ):
        with serving(planted(RIDGE), *[fault] * 99) as (url, seen):
            learner = from_text(openai_model("ridge", base_url=url), concurrency=1)
            with pytest.raises(ArgumentError, match=remedy):
                learner(*FAMILY.sample(100, stream(0, "many"))[:2])
        assert len(seen) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_url": "localhost:8000/v1"}, "base_url must begin with http"),
        ({"timeout": 0}, "timeout must be greater than 0"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"messages": []}, "messages must be left out"),
        ({"stop": {"a"}}, "stop must be a value of JSON"),
        ({"top_p": math.nan}, "top_p must be a value of JSON"),
        ({"temperature": math.nan}, "temperature must be finite"),
        ({"temperature": -3}, "temperature must be at least 0"),
        ({"temperature": "hot"}, "temperature must be a number, but is 'hot'"),
        ({"timeout": "3"}, "timeout must be a number, but is '3'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"base_url": 8000}, "base_url must be of type str or NoneType, but is 8000"),
    ],
)
def test_a_request_that_no_server_can_answer_is_refused_before_it_is_sent(arguments, message, key, unchecked):
    with pytest.raises(MesascopeError, match=message):
        openai_model("m", **arguments)


def test_a_model_is_shown_by_name_and_address_without_secrets(key):
    model = openai_model("ridge", base_url="https://me:secret@localhost:8000/v1?key=secret")
    assert repr(model) == "openai_model(ridge at https://localhost:8000/v1)"
    assert repr(openai_model("ridge")) == "openai_model(ridge at OpenAI)"


def test_the_text_is_read_of_an_answer_in_parts(key, monkeypatch):
    thoughts = {"type": "thinking", "thinking": [{"type": "text", "text": "5"}]}
    monkeypatch.setitem(TEXTS, "parts", ([thoughts, {"type": "text", "text": "3.25"}], "stop"))
    for form in ("parts", "thought"):
        with serving(planted(RIDGE), form) as (url, _):
            assert from_text(openai_model("m", base_url=url))(*one_task()).item() == 3.25


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_nobody_there_is_an_error_however_few_the_prompts_unless_answers_are_on_file(count, key, tmp_path):
    nobody = openai_model("ridge", base_url="http://127.0.0.1:9/v1", retries=0)
    some = Context(*(part[:count] for part in EPISODE.context)), EPISODE.xq[:count]
    with pytest.raises(ArgumentError, match=r"ridge at .* must answer, but does not .* check that it runs"):
        from_text(nobody)(*some)
    file, prompts = tmp_path / "answers.jsonl", [str(number) for number in range(count)]
    CachedModel(str, "own", cache=file).ask(prompts)
    own = CachedModel(functools.partial(_fails, UnansweredPrompt("not now")), "own", cache=file)
    assert own.ask([*prompts, "more"]) == [*prompts, None]


def _fails(error, prompt):
    raise error


def test_a_key_is_needed_where_no_server_is_named(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ArgumentError, match="OPENAI_API_KEY must be set"):
        openai_model("gpt")


def test_identify_goes_on_with_what_was_answered():
    answer = planted(RIDGE, 4)
    count = 0

    def unsure(prompt):
        nonlocal count
        count += 1
        if count % 11 == 0:
            raise UnansweredPrompt("not now")
        return answer(prompt)

    found = identify(from_text(unsure, decimals=4, concurrency=1), FAMILY, FEW, 1000)
    assert found.names == ("ridge least-squares",)
    assert "tasks were answered with numbers" in found.unmeasured["own"]


def test_calls_can_be_used_alone():
    calls = CachedModel(str.upper, "upper")
    assert calls.ask(["a", "b"]) == ["A", "B"]


def by_numbers(prompt):
    """The last label: names are not read."""
    return prompt.split("Output:")[-2].split()[0]


def by_names(prompt):
    """Worse by ten for every name that stands where its column has never had that mean."""
    first = prompt.split("Output:")[0]
    penalty = 0 if "age: " in first and 15 < float(first.split("age: ")[1].split()[0]) < 85 else 10
    return str(float(by_numbers(prompt)) + 1000 * penalty)


def test_names_matter_to_a_model_that_goes_by_them_and_not_to_one_that_does_not():
    table = RealTable(n_context=5)
    same = names_matter(by_numbers, table, tasks=20)
    assert [row["more than without"].value for row in same] == [0.0, 0.0, 0.0]
    assert [row["parse rate"] for row in same] == [1.0, 1.0, 1.0]
    own, none, exchanged = names_matter(by_names, table, tasks=20)
    assert own["more than without"].value < -5000
    assert none["more than without"].value == 0.0
    assert exchanged["more than without"].value > own["more than without"].value + 5000


def test_a_model_that_gives_no_numbers_is_refused():
    with pytest.raises(ArgumentError, match=r"^model must answer with a number at least once, but is"):
        names_matter(lambda prompt: "I do not know", tasks=3)


def test_two_processes_lose_no_answer_of_a_cache(tmp_path):
    """Each opens the file again and again while the other appends to it."""
    code = (
        "import sys; from mesascope.adapters.calls import CachedModel as Calls\n"
        "for index in range(40):\n"
        "    calls = Calls(lambda prompt: prompt * 500, 'model', cache=sys.argv[1])\n"
        "    calls.ask([f'{sys.argv[2]} {index}'])\n"
    )
    file = tmp_path / "answers.jsonl"
    both = [subprocess.Popen([sys.executable, "-c", code, str(file), name]) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    prompts = {json.loads(line)["prompt"] for line in file.read_text().splitlines()}
    assert len(prompts) == 80

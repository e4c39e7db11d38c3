"""Language models of numbers: causal, refused in a sentence, and learners by their probabilities."""

import contextlib
import dataclasses
import re

import pytest
import torch
from hypothesis import given, strategies as st

from mesascope.adapters import FORMATS, NumberTokenizer, from_language_model
from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.nets import AttentionConfig, CausalTransformerConfig, LanguageModelConfig
from mesascope.ops import without_reading_values
from mesascope.records import from_record, to_record
from mesascope.streams import stream
from mesascope.tasks import Context, LinearRegression

WORDS = NumberTokenizer(largest=9.9, decimals=1)
TRANSFORMER = CausalTransformerConfig(AttentionConfig(8, 2), 2, "softmax", mlp=2, layer_norm=True)


def built():
    return LanguageModelConfig(TRANSFORMER, len(WORDS), 40).build(stream(0, "init"))


def test_logits_depend_on_the_tokens_up_to_each_alone():
    model, tokens = built(), torch.randint(len(WORDS), (3, 12), generator=stream(0, "tokens"))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % len(WORDS)
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


MODELS = {
    "places": LanguageModelConfig(TRANSFORMER, 20, 12),
    "hybrid": LanguageModelConfig(
        CausalTransformerConfig(
            (AttentionConfig(8, 2, rotary=True), AttentionConfig(8, 2, dpfp=2, key_shift=True, forget=True)), 2,
            ("softmax", "mesa"), mlp=2, layer_norm=True,
        ), 20, 12, places="none", tied=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("split", [0, 1, 7, 11])
def test_decoding_gives_the_logits_of_the_whole(name, split):
    model = MODELS[name].build(stream(0, "init")).double().eval()
    tokens = torch.randint(20, (3, 12), generator=stream(0, "tokens"))
    whole = model(tokens)
    told, state = model.advance(tokens[:, :split], model.init_state(3))
    torch.testing.assert_close(told, whole[:, :split])
    for t in range(split, 12):
        logits, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(logits, whole[:, t])
    torch.testing.assert_close(model(tokens, last=2), whole[:, -2:])


@pytest.mark.parametrize("name", MODELS)
def test_padding_before_a_text_changes_nothing(name):
    model = MODELS[name].build(stream(0, "init")).double().eval()
    tokens = torch.randint(20, (3, 12), generator=stream(0, "tokens"))
    lengths = (12, 5, 1)
    mask = torch.stack([torch.arange(12) >= 12 - length for length in lengths])
    padded, state = model.advance(tokens, model.init_state(3), mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, -length:], model(tokens[row : row + 1, -length:])[0])
    torch.testing.assert_close(model(tokens, mask=mask)[mask], padded[mask])
    if name == "places":
        with pytest.raises(ArgumentError, match="tokens must be at most 12 long, but is 13: shorten the text"):
            model.step(tokens[:, 0], state)
    else:
        model.step(tokens[:, 0], state)


def test_tied_weights_are_one_and_dropout_is_of_training_alone():
    config = dataclasses.replace(MODELS["hybrid"], dropout=0.5)
    model, tokens = config.build(stream(0, "init")), torch.arange(12)[None]
    assert model.logits is None
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"places": "sines"}, "places must be one of 'learned', 'none', but is 'sines'"),
        ({"dropout": 1.0}, "dropout must be at most 0.99"),
        ({"context": 0}, "context must be at least 1"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_configs_that_cannot_be_are_refused(change, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        dataclasses.replace(MODELS["places"], **change)


def test_heads_of_layers_are_one_for_all_or_one_each():
    own = (AttentionConfig(8, 2), AttentionConfig(8, 4, dpfp=1))
    transformer = CausalTransformerConfig(own, 2, ("softmax", "linear"))
    assert transformer.each_heads == own
    assert from_record(to_record(transformer), CausalTransformerConfig) == transformer
    for heads, message in (
        (own[:1], "heads must be one value or 2, one per layer"),
        ((own[0], AttentionConfig(4, 2)), r"heads must have one width, but is \[8, 4\]"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            CausalTransformerConfig(heads, 2)


def test_places_differ():
    tokens = torch.zeros(1, 5, dtype=torch.long)
    logits = built()(tokens)[0]
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(1, 41, dtype=torch.long), "tokens must be at most 40 long, but is 41: shorten the text."),
        (torch.full((1, 3), 202), "tokens must be from 0 to 201, but is [202, 202]: use the model's own tokenizer."),
        (torch.full((1, 3), -1), "tokens must be from 0 to 201, but is [-1, -1]: use the model's own tokenizer."),
    ],
)
def test_tokens_that_it_cannot_read_are_refused(tokens, message):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        built()(tokens)


@pytest.mark.usefixtures("unchecked")
def test_tokens_are_checked_before_a_device_reads_them_and_not_in_training(monkeypatch):
    """A device ends the process where a number is none of the vocabulary, and a check in training costs a transfer."""
    model, tokens, read = built().eval(), torch.full((1, 3), 202), []
    monkeypatch.setattr(torch.nn.Embedding, "forward", lambda self, tokens: read.append(tokens))
    with pytest.raises(ArgumentError, match="tokens must be from 0 to 201, but is"):
        model(tokens)
    assert not read
    monkeypatch.setattr("mesascope.nets.language_model.require_tokens", lambda *given: read.append(given))
    for training, around in ((True, contextlib.nullcontext), (False, without_reading_values)):
        read.clear()
        with around(), contextlib.suppress(AttributeError, TypeError):  # no embedded tokens
            model.train(training)(tokens)
        assert len(read) == 1


def test_targets_that_it_does_not_know_are_refused_in_training_too():
    heads = CausalTransformerConfig(AttentionConfig(8), attention="mesa")
    model = LanguageModelConfig(heads, 60, 8).build(stream(0, "init")).train()
    tokens = torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ArgumentError, match="targets must be from 0 to 59"):
        model(tokens, targets=tokens + 60)


@pytest.mark.usefixtures("unchecked")
def test_tokens_are_whole_numbers():
    with pytest.raises(ArgumentTypeError, match=r"^tokens must be of dtype torch\.int64, but are torch\.float32"):
        built()(torch.ones(1, 3))


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6))
def test_a_prompt_is_its_tokens_and_back(numbers):
    *pairs, query = [number / 10 for number in numbers]
    prompt = FORMATS["compact"].prompt([[one] for one in pairs], pairs, [query], decimals=1)
    tokens = WORDS.encode(prompt)
    assert WORDS.decode(tokens) == prompt.replace("-0.0", "0.0")
    assert tokens[:-1:4] == WORDS.of_numbers(torch.tensor([*pairs, query])).tolist()


@pytest.mark.parametrize("text", ["10.0 -> 1.0", "a -> 1.0", "1e99 ->", "1.0 => 2.0", "inf ->", "nan ->", "1.55 ->",
                                  "1.0-2.0 ->", "1.2.3 ->", "1_0 ->", "٣ ->", "9" * 400])  # fmt: skip
def test_words_that_it_lacks_are_refused(text):
    with pytest.raises(ArgumentError, match=r"^text must consist of numbers from -9\.9 to 9\.9 with at most 1 "):
        WORDS.encode(text)


def test_tokens_that_it_lacks_and_nan_are_refused_and_tensors_are_read():
    for token in (-1, len(WORDS)):
        with pytest.raises(ArgumentError, match=f"^tokens must be from 0 to {len(WORDS) - 1}, but is {token}"):
            WORDS.decode([3, token])
    with pytest.raises(ArgumentError, match="each of numbers must be a number, but is nan"):
        WORDS.of_numbers(torch.tensor([1.0, torch.nan]))
    assert WORDS.decode(torch.tensor([114, 200])) == "1.5 ->"


def peaked(tokens):
    """A model that predicts, after any prompt, 1.0 with probability .5, 2.0 with .3 and -4.0 with .2."""
    logits = torch.full((*tokens.shape, len(WORDS)), -torch.inf)
    logits[..., WORDS.of_numbers(torch.tensor([1.0, 2.0, -4.0]))] = torch.tensor([0.5, 0.3, 0.2]).log()
    return logits


def test_an_answer_is_the_likeliest_number_the_mean_or_one_that_is_drawn():
    context, xq = Context(torch.ones(1, 2, 1), torch.ones(1, 2, 1)), torch.ones(1, 1, 1)
    assert from_language_model(peaked, WORDS, "mode")(context, xq).item() == 1.0
    assert from_language_model(peaked, WORDS, "mean")(context, xq).item() == pytest.approx(0.3, abs=1e-6)
    many = Context(torch.ones(4000, 2, 1), torch.ones(4000, 2, 1))
    drawn = from_language_model(peaked, WORDS, "sample")(many, torch.ones(4000, 1, 1))
    assert set(drawn.flatten().tolist()) == {1.0, 2.0, -4.0}
    assert drawn.mean().item() == pytest.approx(0.3, abs=5 * 2.2 / 4000**0.5)


def test_a_prompt_beyond_its_words_is_not_answered_and_others_are():
    x = torch.tensor([[[1.0], [2.0]], [[1.0], [12.0]]])
    learner = from_language_model(peaked, WORDS)
    answer = learner(Context(x, torch.ones(2, 2, 1)), torch.ones(2, 1, 1))
    assert answer[0].item() == 1.0
    assert answer[1].isnan().all()
    assert learner.table()[0]["parse rate"] == 0.5


def test_a_network_answers_tasks():
    episode = LinearRegression(n_context=5, d_in=1).sample(3, stream(0, "tasks"))
    answer = from_language_model(built(), WORDS, "mean")(episode.context, episode.xq)
    assert answer.shape == episode.yq.shape
    assert answer.isfinite().all()

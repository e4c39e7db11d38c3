"""Models of transformers in this process: what they answer is what their logits say."""

import re

import pytest
import torch

from mesascope.adapters import LocalModel, from_text
from mesascope.errors import ArgumentError
from mesascope.tasks import Context

transformers = pytest.importorskip("transformers")
CHARACTERS = "0123456789.-> ,\n"
PROMPTS = ["1.0 -> 2.0\n1.5 ->", "1.0 ->", "-3.2 -> 0.1\n2.0 -> 1.0\n0.0 ->"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of random weights that reads characters."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("model") / "tiny"
    words = {character: place for place, character in enumerate([*CHARACTERS, "<end>"])}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    own.decoder = tokenizers.decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=64, n_embd=16, n_layer=2, n_head=2, eos_token_id=len(words) - 1,
        bos_token_id=len(words) - 1, initializer_range=0.5,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def followed(model, text, count):
    """The likeliest characters after a text, each found from the whole text before it."""
    tokens = model.tokenizer.encode(text)
    for _ in range(count):
        with torch.no_grad():
            tokens.append(model.model(torch.tensor([tokens])).logits[0, -1].argmax().item())
    added = tokens[len(model.tokenizer.encode(text)) :]
    end = len(CHARACTERS)
    return model.tokenizer.decode(added[: added.index(end)] if end in added else added)


def test_answers_are_the_likeliest_texts_whatever_else_is_asked_with_them(folder):
    model = LocalModel(folder, max_tokens=6)
    answers = model(PROMPTS)
    assert answers == [followed(model, prompt, 6) for prompt in PROMPTS]
    assert answers == [model([prompt])[0] for prompt in PROMPTS]
    assert len(set(answers)) > 1


def test_draws_follow_the_probabilities(folder):
    model = LocalModel(folder, temperature=1.0, max_tokens=1)
    drawn = model([PROMPTS[0]] * 3000)
    shares = torch.tensor(model.log_probabilities(PROMPTS[0], list(CHARACTERS))).exp()
    for character, share in zip(CHARACTERS, shares.tolist(), strict=True):
        error = (share * (1 - share) / 3000) ** 0.5
        assert abs(drawn.count(character) / 3000 - share) < 5 * error + 1e-3, character
    assert drawn != LocalModel(folder, temperature=1.0, max_tokens=1, seed=1)([PROMPTS[0]] * 3000)


def test_the_probability_of_an_answer_is_that_of_its_tokens(folder):
    model = LocalModel(folder)
    one, both = model.log_probabilities(PROMPTS[0], ["1", "1."])
    after = model.log_probabilities(PROMPTS[0] + "1", ["."])[0]
    assert both == pytest.approx(one + after, abs=1e-5)
    total = torch.tensor(model.log_probabilities(PROMPTS[0], list(CHARACTERS))).exp().sum().item()
    assert 0.5 < total < 1 - 1e-6  # the rest is the end's


def test_a_learner_answers_nan_where_the_text_is_no_number(folder):
    learner = from_text(LocalModel(folder, max_tokens=4), "compact", decimals=1, batched=True)
    answer = learner(Context(torch.ones(2, 3, 1), torch.ones(2, 3, 1)), torch.zeros(2, 1, 1))
    assert answer.shape == (2, 1, 1)
    assert learner.table()[0]["asked"] == 2


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda folder: LocalModel(folder / "none"), "name must be a model of transformers, but is"),
        (lambda folder: LocalModel(folder, temperature=-1.0), "temperature must be"),
        (lambda folder: LocalModel(folder)(["1" * 60]), "prompt must be of at most 64 tokens with its answer, but is"),
        (lambda folder: LocalModel(folder)([""]), "prompt must have at least one token, but is ''"),
        (lambda folder: LocalModel(folder).log_probabilities("1", [""]), "answers must begin where a token"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_sentence(folder, ask, message):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}") as caught:
        ask(folder)
    assert "\n" not in str(caught.value)

"""Models of transformers in this process: what they answer is what their logits say."""

import copy
import pickle
import re
import shutil

import pytest
import torch

from mesascope.adapters import CachedModel, LocalModel, from_text
from mesascope.adapters.calls import TruncatedAnswer
from mesascope.cli.identify import Identify
from mesascope.errors import ArgumentError
from mesascope.tasks import Context

transformers = pytest.importorskip("transformers")
CHARACTERS = "0123456789.-> ,\n"
END = len(CHARACTERS)
PROMPTS = ["1.0 -> 2.0\n1.5 ->", "1.0 ->", "-3.2 -> 0.1\n2.0 -> 1.0\n0.0 ->"]


SIZES = {"vocab_size": len(CHARACTERS) + 1, "initializer_range": 0.5, "num_hidden_layers": 2, "hidden_size": 16}
SIZES |= {"eos_token_id": END, "bos_token_id": END, "pad_token_id": END}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(**SIZES, n_positions=64, num_attention_heads=2),
    "bloom": lambda: transformers.BloomConfig(**SIZES, n_head=2),
    "mistral": lambda: transformers.MistralConfig(
        **SIZES, num_attention_heads=2, num_key_value_heads=1, intermediate_size=16, sliding_window=12
    ),
    "mamba": lambda: transformers.MambaConfig(**SIZES, state_size=4),
    "mamba2": lambda: transformers.Mamba2Config(
        **SIZES, state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=8
    ),
    "rwkv": lambda: transformers.RwkvConfig(**SIZES, attention_hidden_size=16, context_length=64),
}


def saved(folder, kind="gpt2", template=None, **generation):
    """A model of random weights that reads characters."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {character: place for place, character in enumerate([*CHARACTERS, "<end>"])}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    own.decoder = tokenizers.decoders.Fuse()
    if template:
        own.post_processor = tokenizers.processors.TemplateProcessing(template, special_tokens=[("<end>", END)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]())
    for weight in model.parameters():  # also those that models begin at 0 or 1, so that answers differ
        weight.data += 0.3 * torch.randn_like(weight)
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model") / "tiny")


def followed(model, text, count, before=(), ends=(END,)):
    """The likeliest characters after a text, each found from the whole text before it."""
    tokens = [*before, *map(CHARACTERS.index, text)]
    start = len(tokens)
    for _ in range(count):
        with torch.no_grad():
            tokens.append(model.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax().item())
        if tokens[-1] in ends:
            return model.tokenizer.decode(tokens[start:-1])
        text = model.tokenizer.decode(tokens[start:])
        if re.search(r"\d.*\n", text):
            return text[:-1]
    return text


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("of_one_context", [[], [f"0.1 -> 2.0\n1.7 -> 3.1\n{x} ->" for x in ("1", "2.5", "1", "-3")]])
def test_models_with_and_without_a_cache_of_keys_and_values_continue_prompts_alike(kind, of_one_context, tmp_path):
    model = LocalModel(saved(tmp_path, kind), max_tokens=8)
    prompts = [*PROMPTS, "2.0 ->", "1.1", *of_one_context]
    answers = model(prompts)
    assert answers == [followed(model, prompt, 8) for prompt in prompts]
    assert len(set(answers)) > 2


def test_what_several_prompts_begin_with_is_read_once_and_an_answer_ends_with_its_number(folder):
    model, read = LocalModel(folder, max_tokens=8), []
    model.model.register_forward_pre_hook(lambda net, _, given: read.append(given["input_ids"]), with_kwargs=True)
    context, queries = "1.0 -> 2.0\n0.5 -> 3.1\n2.2 -> 0.4\n", [f"{place / 10}" for place in range(10, 30)]
    model([f"{context}{query} ->" for query in queries])
    assert sum(one.numel() for one in read) < len(context) + len(queries) * (8 + len("0.1 ->"))
    assert model._text([*map(CHARACTERS.index, "> \n1.\n2")]) == "> \n1."
    assert isinstance(model._text([*map(CHARACTERS.index, "->\n1.5")]), TruncatedAnswer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_computes_in_the_dtype_that_is_asked_for(dtype, folder):
    assert LocalModel(folder, dtype=dtype).model.dtype == dtype


@pytest.mark.parametrize(("template", "before"), [("<end> $A <end>", [END]), ("$A <end>", []), ("<end> $A", [END])])
def test_a_prompt_ends_in_its_own_last_token_whatever_the_tokenizer_adds_after_it(template, before, tmp_path):
    model = LocalModel(saved(tmp_path, template=template), max_tokens=6)
    assert model(PROMPTS) == [followed(model, prompt, 6, before) for prompt in PROMPTS]
    one, both = model.log_probabilities(PROMPTS[0], ["1", "1."])
    assert both == pytest.approx(one + model.log_probabilities(PROMPTS[0] + "1", ["."])[0], abs=1e-5)


def test_an_answer_ends_at_any_token_that_ends_texts_and_follows_the_logits_alone(tmp_path):
    free = LocalModel(saved(tmp_path / "free"), max_tokens=8)
    first = free.tokenizer.encode(free([PROMPTS[0]])[0])[2]
    folder = saved(tmp_path / "listed", eos_token_id=[END, first], repetition_penalty=9.0, num_beams=3)
    listed = LocalModel(folder, max_tokens=8)
    assert listed(PROMPTS) == [followed(listed, prompt, 8, ends=(END, first)) for prompt in PROMPTS]
    assert len(listed(PROMPTS)[0]) <= 2


def test_an_answer_at_the_limit_of_tokens_is_nan_and_a_prompt_that_is_too_long_is_nan_alone(folder):
    model = LocalModel(folder, max_tokens=4)
    calls = CachedModel(model, "tiny", batched=True)
    answers = calls.ask(["1" * 61, *PROMPTS])
    cut = [isinstance(answer, TruncatedAnswer) for answer in model(PROMPTS)]
    assert answers[0] is None
    assert calls.unanswered["refused"] == 1
    for answer, was_cut in zip(answers[1:], cut, strict=True):
        assert answer is None or not was_cut or "\n" not in answer
    assert calls.unanswered["cut"] == sum(answer is None for answer in answers[1:]) > 0


def test_all_that_an_answer_depends_on_is_in_its_key(folder, tmp_path):
    others = saved(tmp_path / "bloom", "bloom"), saved(tmp_path / "words", template="<end> $A")
    others += (saved(tmp_path / "ends", eos_token_id=[END, 3]),)  # the weights of the last two are those of the first
    changes = [{}, {"temperature": 1.0}, {"max_tokens": 5}, {"seed": 1}, *({"name": other} for other in others)]
    found = [LocalModel(**{"name": folder} | change).settings for change in changes]
    assert all(one != two for place, one in enumerate(found) for two in found[:place])
    assert LocalModel(folder).settings == LocalModel(shutil.copytree(folder, tmp_path / "copy")).settings == found[0]


def test_a_learner_of_a_model_is_copied_and_pickled_with_its_draws(folder):
    learner = from_text(LocalModel(folder, temperature=1.0, max_tokens=6), "compact", batched=True)
    tasks = Context(torch.ones(8, 3, 1), torch.ones(8, 3, 1)), torch.zeros(8, 1, 1)
    others = [copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))]
    expected = learner(*tasks)
    for other in others:
        torch.testing.assert_close(other(*tasks), expected, equal_nan=True)


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


def test_the_command_asks_a_model_of_a_folder_with_its_settings(folder, tmp_path):
    local = f"{folder}(max_tokens=4, dtype='float64')"
    command = Identify(local=local, format="compact", budget=3, answers=tmp_path / "answers.jsonl")
    name, learner, _ = command._learner()
    learner(Context(torch.ones(5, 3, 1), torch.ones(5, 3, 1)), torch.zeros(5, 1, 1))
    assert name == str(folder)
    assert (learner.calls.model.max_tokens, learner.calls.model.model.dtype) == (4, torch.float64)
    assert learner.table()[0]["beyond the budget"] == 2


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda folder: LocalModel(folder / "none"), "name must be a model of transformers, but is"),
        (lambda folder: LocalModel(folder, temperature=-1.0), "temperature must be"),
        (lambda folder: LocalModel(folder)(["1" * 60]), "prompt must have at most 64 tokens with its answer, but has"),
        (lambda folder: LocalModel(folder)([""]), "prompt must have at least one token, but is ''"),
        (lambda folder: LocalModel(folder).log_probabilities("1", [""]), "answers must begin with a token"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_sentence(folder, ask, message):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}") as caught:
        ask(folder)
    assert "\n" not in str(caught.value)

"""Text that a model goes on with: the whole model's own tokens, however the prompt is read."""

import pytest
import torch

from mesascope.errors import ArgumentError, NumericalError
from mesascope.language import generate, language_model_config, load_language_model, prepare
from mesascope.language.sampling import next_tokens
from mesascope.language.tokenizing import END, end_of_document, load_tokenizer
from mesascope.streams import stream


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text("|".join(f"näive text {number}" for number in range(40)))
    return load_tokenizer(
        prepare([folder / "text.txt"], folder / "out", "bpe:300", delimiter="|", validation=0.3).folder
        / "tokenizer.json"
    )


def built(layers="softmax, mesa", **options):
    size = {"width": 16, "n_heads": 2, "positions": "rotary" if "softmax" in layers else "none"}
    return language_model_config(layers, 300, 60, **size | options).build(stream(0, "init")).double().eval()


@pytest.mark.parametrize("layers", ["softmax, mesa", "linear*2", "delta, softmax"])
@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_the_likeliest_text_is_that_of_the_whole_model(tokenizer, layers, chunk, monkeypatch):
    monkeypatch.setattr("mesascope.language.sampling._CHUNK", chunk)
    model, prompt = built(layers), "näive text and more"
    read = [end_of_document(tokenizer), *tokenizer.encode(prompt).ids]
    start = len(read)
    with torch.no_grad():
        for _ in range(12):
            read.append(int(model(torch.tensor([read]))[0, -1].argmax()))
            if read[-1] == read[0]:
                break
    told = "".join(generate(model, tokenizer, prompt, tokens=12, temperature=0))
    assert tokenizer.decode(read[start:]).startswith(told)
    assert len(told) >= len(tokenizer.decode(read[start:]).rstrip("\ufffd"))


def test_draws_follow_the_seed_and_the_probabilities(tokenizer):
    model = built()
    first, again, other = ("".join(generate(model, tokenizer, tokens=20, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20_000, -1)
    for top_p, shares in ((1.0, [0.5, 0.3, 0.15, 0.05]), (0.75, [0.625, 0.375, 0, 0]), (0.01, [1, 0, 0, 0])):
        counts = next_tokens(logits, 1.0, top_p, stream(0, "draws")).bincount(minlength=4) / 20_000
        torch.testing.assert_close(counts, torch.tensor(shares, dtype=torch.float32), atol=0.02, rtol=0)
    cold = next_tokens(logits, 0.1, 1.0, stream(0, "draws"))
    assert (cold == 0).float().mean() > 0.99


def test_the_coldest_draw_is_the_likeliest_token_and_what_is_not_finite_is_refused():
    logits = torch.tensor([[0.1, 900.0, -900.0]])
    assert next_tokens(logits, 1e-320, 0.5, stream(0, "draws")).tolist() == [1]
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericalError, match="logits must be finite"):
            next_tokens(logits * torch.nan, temperature, 1.0, stream(0, "draws"))


def test_a_space_before_a_word_stands_where_a_prompt_is_before_it():
    library = pytest.importorskip("tokenizers")
    words = {name: number for number, name in enumerate([END, "▁the", "▁cat", "▁sat"])}
    tokenizer = library.Tokenizer(library.models.WordLevel(words, unk_token=END))
    tokenizer.pre_tokenizer, tokenizer.decoder = library.pre_tokenizers.Metaspace(), library.decoders.Metaspace()
    tokenizer.add_special_tokens([END])
    model = language_model_config("linear", 4, 20, width=16).build(stream(0, "init")).eval()
    model.norm.bias.data += 100 * model.logits.weight.data[3]
    said = "".join(generate(model, tokenizer, "the cat", tokens=2, temperature=0))
    assert said == " sat sat"


def test_a_text_ends_where_the_document_does(tokenizer):
    model = built()
    end = end_of_document(tokenizer)
    model.norm.bias.data += 100 * model.logits.weight.data[end]
    assert list(generate(model, tokenizer, tokens=50)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"top_p": 0.0}, "top_p must be greater than 0"),
        ({"prompt": "text \udcff"}, "prompt must be text"),
        ({"prompt": "text " * 99}, "prompt must take at most the 60 positions that the model has learned, but is"),
        (
            {"prompt": "text " * 5, "tokens": 60},
            r"tokens must be at most (\d+), as the model has learned 60 positions, .*, but is 60: pass \1 or fewer",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(tokenizer, options, message):
    with pytest.raises(ArgumentError, match=message):
        generate(built(positions="learned"), tokenizer, **options)


def test_a_text_ends_with_the_positions_that_a_model_has_learned(tokenizer, capsys):
    """This is the default; other models draw 200 tokens."""
    for positions in ("learned", "rotary"):
        assert list(generate(built(positions=positions), tokenizer))
        said = "tokens: 60, as the model has learned 60 positions, and the prompt takes 1\n"
        assert capsys.readouterr().err == (said if positions == "learned" else "")


@pytest.mark.parametrize("seed", range(8))
def test_no_token_is_lost(tokenizer, monkeypatch, seed):
    """Untrained models draw bytes that are no characters, also at the end."""
    drawn, end = [], end_of_document(tokenizer)
    monkeypatch.setattr(
        "mesascope.language.sampling.next_tokens", lambda *given: drawn.append(next_tokens(*given)) or drawn[-1]
    )
    text = "".join(generate(built(positions="learned"), tokenizer, "ab", tokens=57, seed=seed))
    ids = [int(one) for one in drawn]
    assert text == tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"folder must hold a language model and tokenizer\.json"):
        load_language_model(tmp_path)

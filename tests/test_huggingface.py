"""Language models as transformers' own: generation with states equals generation without, folders, padding, Trainer."""

import warnings

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings, strategies as st

from mesascope.errors import ArgumentError
from mesascope.language import layered
from mesascope.nets import LanguageModel
from mesascope.streams import stream

transformers = pytest.importorskip("transformers")
huggingface = pytest.importorskip("mesascope.language.huggingface")

LAYERS = ["softmax", "linear, mesa", "softmax, delta, mesa"]


def built(layers="softmax, delta, mesa", width=16, seed=0, **options):
    """One that is sure of little but not of nothing, so that beams differ and samples too."""
    own = {} if layers == "softmax" else {"convolution": 2, "forget": True}
    config = layered(layers, 50, 64, width=width, n_heads=2, **own, **options)
    network = config.build(stream(seed, "init")).double().eval()
    with torch.no_grad():
        network.logits.weight.mul_(4)
    return huggingface.MesascopeForCausalLM.of(network, eos_token_id=0, pad_token_id=0)


def prompts(count=2, length=9):
    return torch.randint(1, 50, (count, length), generator=stream(0, "tokens"))


WAYS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_p": 0.9, "temperature": 1.5},
    "beams": {"num_beams": 4, "do_sample": False},
    "sampled-beams": {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
}


def drawn(model, tokens, **options):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(tokens, max_new_tokens=15, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layers", LAYERS)
def test_generation_with_states_is_that_without(layers, way):
    model = built(layers)
    found = drawn(model, prompts(), **WAYS[way])
    assert torch.equal(found, drawn(model, prompts(), use_cache=False, **WAYS[way]))
    assert len(set(found[:, 9:].flatten().tolist())) > 5


def test_beams_need_their_states_in_their_own_order(monkeypatch):
    """Or the test above would hold of a cache that is left as it is."""
    model = built()
    found = drawn(model, prompts(), **WAYS["beams"])
    monkeypatch.setattr(huggingface.StateCache, "reorder_cache", lambda self, beam_idx: None)
    assert not torch.equal(drawn(model, prompts(), **WAYS["beams"]), found)


@pytest.mark.parametrize("assistant", ["model", "prompt"])
def test_an_assistant_changes_nothing(assistant):
    model, tokens = built(), prompts(1)
    other = {"assistant_model": built("linear", seed=1)} if assistant == "model" else {"prompt_lookup_num_tokens": 2}
    assert torch.equal(drawn(model, tokens, do_sample=False, **other), drawn(model, tokens, do_sample=False))


@pytest.mark.parametrize("way", ["greedy", "beams"])
@pytest.mark.parametrize("layers", LAYERS)
def test_padding_before_prompts_changes_nothing(layers, way):
    model, tokens, lengths = built(layers), prompts(3, 13), (9, 13, 5)
    mask = torch.stack([torch.arange(13) >= 13 - length for length in lengths])
    found = drawn(model, tokens.where(mask, 0), attention_mask=mask.long(), **WAYS[way])
    for row, length, own in zip(tokens, lengths, found, strict=True):
        alone = drawn(model, row[None, 13 - length :], **WAYS[way])[0, length:]
        assert own[13 : 13 + len(alone)].equal(alone)


def test_padding_before_texts_counts_for_nothing_in_the_loss():
    model, tokens = built(), prompts()
    padded, mask = torch.cat([tokens[:, :3], tokens], -1), (torch.arange(12) >= 3).expand(2, -1)
    found = model(padded, mask, labels=padded.where(mask, -100)).loss
    torch.testing.assert_close(found, model(tokens, labels=tokens).loss)


def test_padding_after_a_text_changes_nothing_and_counts_for_nothing():
    model, tokens = built(), prompts()
    padded = torch.cat([tokens, tokens[:, :3]], -1)
    mask = (torch.arange(12) < 9).long().expand(2, -1)
    labels = padded.where(mask.bool(), -100)
    found, plain = model(padded, mask, labels=labels), model(tokens, labels=tokens)
    torch.testing.assert_close(found.logits[:, :9], plain.logits)
    torch.testing.assert_close(found.loss, plain.loss)


def test_gaps_between_tokens_are_refused():
    with pytest.raises(ArgumentError, match=r"attention_mask must be 1 for tokens that follow one another"):
        built()(prompts(1, 4), torch.tensor([[1, 0, 1, 1]]))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=4), st.sampled_from(LAYERS))
def test_a_cropped_cache_has_read_what_is_left(steps, layers):
    model, tokens, cache, kept = built(layers), prompts(2, 40), huggingface.StateCache(), 0
    mask = torch.arange(40) >= torch.tensor([[0], [2]])  # padding before the second
    for count, removed in steps:
        seen = mask[:, : kept + count]
        logits = model(tokens[:, kept : kept + count], seen, cache).logits
        expected = model(tokens[:, : kept + count], seen).logits[:, -count:]
        torch.testing.assert_close(logits[seen[:, -count:]], expected[seen[:, -count:]])
        cache.crop(-removed)
        kept = max(kept + count - removed, 0)
        assert cache.get_seq_length() == kept


def test_a_cache_of_another_kind_is_refused():
    model, other = built(), transformers.DynamicCache()
    with pytest.raises(ArgumentError, match="past_key_values must be a StateCache, but is 'DynamicCache'"):
        model(prompts(), past_key_values=other)
    other.update(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4), 0)
    with pytest.raises(ArgumentError, match="past_key_values must be a StateCache, but is 'DynamicCache'"):
        model.prepare_inputs_for_generation(prompts(), past_key_values=other)


def test_a_refused_token_leaves_a_cache_as_it_was():
    model, cache, tokens = built(), huggingface.StateCache(), prompts()
    model(tokens[:, :4], past_key_values=cache)
    with pytest.raises(ArgumentError, match="tokens must be from 0 to 49"):
        model(tokens[:, 4:] + 50, past_key_values=cache)
    found = model(tokens[:, 4:], past_key_values=cache).logits
    torch.testing.assert_close(found, model(tokens).logits[:, 4:])


def test_answers_may_be_asked_for_by_number_or_place():
    model, tokens = built(), prompts()
    whole = model(tokens).logits
    torch.testing.assert_close(model(tokens, logits_to_keep=2).logits, whole[:, -2:])
    torch.testing.assert_close(model(tokens, logits_to_keep=torch.tensor([0, 3])).logits, whole[:, [0, 3]])
    with pytest.raises(ArgumentError, match="logits_to_keep must be 0 where labels are given"):
        model(tokens, labels=tokens, logits_to_keep=2)


@pytest.mark.parametrize("cached", [False, True])
def test_hidden_states_are_the_tokens_before_and_after_each_layer(cached):
    model, tokens = built(), prompts()
    found = model(tokens, use_cache=cached, logits_to_keep=2, output_hidden_states=True)
    _, held = model.model.run_with_cache(tokens, names=["embedded", "layers.0", "layers.1", "layers.2"])
    assert len(found.hidden_states) == 4
    assert found.logits.shape[1] == 2
    for own, expected in zip(found.hidden_states, held.values(), strict=True):
        torch.testing.assert_close(own, expected)
    assert model(tokens).hidden_states is None
    with pytest.raises(ArgumentError, match="output_attentions must be False"):
        model(tokens, output_attentions=True)


def test_after_a_crop_hidden_states_and_losses_are_of_the_new_tokens_alone():
    model, tokens, cache = built(), prompts(2, 12), huggingface.StateCache()
    mask = torch.ones(2, 12, dtype=torch.long)
    for part in (tokens[:, :3], tokens[:, 3:9]):
        model(part, past_key_values=cache)
    cache.crop(-2)
    rest = tokens[:, 7:]
    found = model(rest, mask, cache, labels=rest, output_hidden_states=True)
    whole = model(tokens, output_hidden_states=True)
    for own, expected in zip(found.hidden_states, whole.hidden_states, strict=True):
        torch.testing.assert_close(own, expected[:, 7:])
    torch.testing.assert_close(found.loss, model.loss_function(whole.logits[:, 7:], rest, 50))


def test_numbers_of_tokens_may_be_of_32_bits():
    model, tokens = built(), prompts()
    torch.testing.assert_close(model(tokens.int()).logits, model(tokens).logits)


def test_outputs_may_be_asked_for_as_a_tuple():
    model, tokens = built(), prompts()
    loss, logits = model(tokens, labels=tokens, return_dict=False)
    torch.testing.assert_close(loss, model(tokens, labels=tokens).loss)
    torch.testing.assert_close(logits, model(tokens).logits)


def test_inputs_of_other_shapes_are_refused():
    model, tokens = built(), prompts()
    with pytest.raises(ArgumentError, match="attention_mask must be of 9 tokens, but is 7"):
        model(tokens, torch.ones(2, 7))
    with pytest.raises(ArgumentError, match=r"input_ids must have shape \(batch, t\), but is \(9,\)"):
        model(tokens[0], use_cache=True)


def test_a_folder_without_all_weights_is_refused(tmp_path):
    model = built().float()
    model.save_pretrained(tmp_path)
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if "ridge" in name)
    del weights[name]
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArgumentError, match=f"must hold all weights of the network, {name} among them"):
        huggingface.MesascopeForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
def test_folders_give_back_the_same_model(tied, tmp_path):
    model = huggingface.MesascopeForCausalLM(
        huggingface.MesascopeConfig(layered("softmax, mesa", 50, 64, width=16, tied=tied), eos_token_id=7)
    ).eval()
    model.save_pretrained(tmp_path)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(found.model, LanguageModel)
    assert found.config.eos_token_id == 7
    assert found.model.config == model.model.config
    assert torch.equal(found(prompts()).logits, model(prompts()).logits)


def test_trainer_trains_it(tmp_path):
    pytest.importorskip("accelerate")
    model, again, tokens = built().float(), built(seed=1).float(), prompts(8, 12)
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    before = model(tokens, labels=tokens).loss.item()
    plan = transformers.TrainingArguments(
        str(tmp_path), max_steps=20, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="steps", save_steps=10, logging_strategy="no",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.Trainer(model, plan, train_dataset=rows).train()
        half = str(tmp_path / "checkpoint-10")
        transformers.Trainer(again, plan, train_dataset=rows).train(resume_from_checkpoint=half)
    torch.testing.assert_close(again.state_dict(), model.state_dict())
    assert model.eval()(tokens, labels=tokens).loss.item() < 0.7 * before

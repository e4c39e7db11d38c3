"""Language models as transformers' own: generation with states equals generation without, folders, padding, Trainer."""

import copy
import pickle
import warnings

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings, strategies as st

from mesascope.errors import ArgumentError
from mesascope.language import language_model_config
from mesascope.nets import LanguageModel
from mesascope.streams import stream
from mesascope.training.processes import undecayed

transformers = pytest.importorskip("transformers")
huggingface = pytest.importorskip("mesascope.language.huggingface")

LAYERS = ["softmax", "linear, mesa", "softmax, delta, mesa"]


def built(layers="softmax, delta, mesa", width=16, seed=0, **options):
    """One that is sure of little but not of nothing, so that beams differ and samples too."""
    own = {} if layers == "softmax" else {"convolution": 2, "forget": True}
    config = language_model_config(layers, 50, 64, width=width, n_heads=2, **own, **options)
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
    with pytest.raises(ArgumentError, match=r"attention_mask must be 1 for consecutive tokens"):
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


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_is_taken_by_both_names_and_one_of_another_kind_is_refused(name):
    """Versions of transformers differ in the name, and `generate` passes its own."""
    model, other, tokens, states = built(), transformers.DynamicCache(), prompts(), huggingface.StateCache()
    model(tokens[:, :4], **{name: states})
    torch.testing.assert_close(model(tokens[:, 4:], **{name: states}).logits, model(tokens).logits[:, 4:])
    assert isinstance(getattr(model(tokens, use_cache=True), huggingface._CACHE), huggingface.StateCache)
    begun = huggingface.StateCache()
    model(tokens[:, :4], **{name: begun})
    drawn_on = drawn(model, tokens, do_sample=False, **{huggingface._CACHE: begun})
    assert torch.equal(drawn_on, drawn(model, tokens, do_sample=False))
    refused = "cache must be a StateCache, but is 'DynamicCache'"
    with pytest.raises(ArgumentError, match=refused):
        model(tokens, **{name: other})
    assert isinstance(
        model.prepare_inputs_for_generation(tokens, **{name: other})[huggingface._CACHE], huggingface.StateCache
    )
    other.update(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4), 0)
    with pytest.raises(ArgumentError, match=refused):
        model.prepare_inputs_for_generation(tokens, **{name: other})
    with pytest.raises(ArgumentError, match="past_key_values must be left out where cache is given"):
        model(tokens, cache=states, past_key_values=states)


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
    with pytest.raises(ArgumentError, match="attention_mask must have 9 tokens, but is 7"):
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
    with pytest.raises(ArgumentError, match=f"must hold all weights of the network, but lacks {name}"):
        huggingface.MesascopeForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
def test_folders_give_back_the_same_model(tied, tmp_path):
    model = huggingface.MesascopeForCausalLM(
        huggingface.MesascopeConfig(language_model_config("softmax, mesa", 50, 64, width=16, tied=tied), eos_token_id=7)
    ).eval()
    model.save_pretrained(tmp_path)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(found.model, LanguageModel)
    assert found.config.eos_token_id == 7
    assert found.model.config == model.model.config
    assert torch.equal(found(prompts()).logits, model(prompts()).logits)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("packed", [False, True])
def test_trainer_trains_it(packed, tmp_path):
    """With noise in the embeddings (NEFTune), and rows one after the other or packed in one."""
    pytest.importorskip("accelerate")
    model, again, tokens = built().float(), built(seed=1).float(), prompts(8, 12)
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    more: dict = {"data_collator": transformers.DataCollatorWithFlattening()} if packed else {}
    before = model(tokens, labels=tokens).loss.item()
    plan = transformers.TrainingArguments(
        str(tmp_path), max_steps=20, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="steps", save_steps=10, logging_strategy="no", neftune_noise_alpha=0.1,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.Trainer(model, plan, train_dataset=rows, **more).train()
        half = str(tmp_path / "checkpoint-10")
        transformers.Trainer(again, plan, train_dataset=rows, **more).train(resume_from_checkpoint=half)
    torch.testing.assert_close(again.state_dict(), model.state_dict())
    assert model.eval()(tokens, labels=tokens).loss.item() < 0.7 * before


# Keywords are honoured, or refused in a sentence


def packed_as(kind, lengths, tokens):
    """Keywords by which callers describe several documents in one row."""
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return {
        "position_ids": {"position_ids": torch.cat([torch.arange(length) for length in lengths])[None]},
        "seq_idx": {"seq_idx": torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]},
        "cu_seq_lens": {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 9, "max_length_k": 9},
    }[kind]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from(LAYERS), st.booleans(),
    st.sampled_from(["position_ids", "seq_idx", "cu_seq_lens"]),
)  # fmt: skip
def test_packed_documents_do_not_see_each_other(lengths, layers, learned, kind):
    """Logits, hidden states and loss are those of each document alone."""
    model = built(layers, positions="learned" if learned else "none")
    tokens = prompts(1, sum(lengths))
    found = model(tokens, labels=tokens, output_hidden_states=True, **packed_as(kind, lengths, tokens))
    alone = [model(part, output_hidden_states=True) for part in tokens.split(lengths, 1)]
    torch.testing.assert_close(found.logits, torch.cat([one.logits for one in alone], 1))
    torch.testing.assert_close(found.hidden_states[-1], torch.cat([one.hidden_states[-1] for one in alone], 1))
    pairs = [(one.logits[0, :-1], part[0, 1:]) for one, part in zip(alone, tokens.split(lengths, 1), strict=True)]
    logits, told = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    if len(told):
        torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(logits.float(), told))


@pytest.mark.parametrize("given", ["plain", "padded", "packed"])
@pytest.mark.parametrize("tied", [False, True])
def test_losses_in_training_are_computed_by_blocks_without_logits_of_all_tokens(given, tied, monkeypatch):
    network = (
        language_model_config("softmax, mesa", 50, 64, width=16, n_heads=2, tied=tied).build(stream(0, "init")).double()
    )
    model, tokens = huggingface.MesascopeForCausalLM.of(network).train(), prompts(2, 12)
    labels = tokens.where(torch.rand(tokens.shape, generator=stream(1, "labels")) < 0.8, -100)
    mask = torch.arange(12) < torch.tensor([[12], [9]])
    keywords = {
        "plain": {"num_items_in_batch": torch.tensor(7)},
        "padded": {"attention_mask": mask, "output_hidden_states": True},
        "packed": {"position_ids": torch.cat([torch.arange(5), torch.arange(7)]).expand(2, -1)},
    }[given]

    def step():
        found = model(tokens, labels=labels, **keywords)
        return found, torch.autograd.grad(found.loss, list(model.parameters()))

    whole, expected = step()
    monkeypatch.setattr("mesascope.nets.language_model._LOGITS", 50 * 4)
    found, gradients = step()
    assert whole.logits.shape == (2, 12, 50)
    assert found.logits is None
    torch.testing.assert_close(found.loss.float(), whole.loss.float())
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.hidden_states, whole.hidden_states)
    assert model.eval()(tokens, labels=labels, **keywords).logits.shape == (2, 12, 50)


def test_packed_rows_may_end_in_padding_and_hold_more_tokens_than_places():
    model, (first, second, third) = built(), prompts(3, 40)
    rows = torch.stack([torch.cat([first, second]), torch.cat([third, torch.zeros_like(third)])])
    positions = torch.arange(40).repeat(2, 2)
    found = model(rows, torch.tensor([[1] * 80, [1] * 40 + [0] * 40]), position_ids=positions, logits_to_keep=45).logits
    expected = model(torch.stack([first, second, third])).logits
    torch.testing.assert_close(found[0], torch.cat([expected[0, -5:], expected[1]]))
    torch.testing.assert_close(found[1, :5], expected[2, -5:])


REFUSED = {
    "positions": ({"position_ids": torch.arange(9)[None] + 5}, "position_ids must count the tokens of each document"),
    "positions 3D": ({"position_ids": torch.zeros(3, 1, 9)}, r"position_ids must have shape \(1, 9\)"),
    "disagreement": (
        {"position_ids": torch.arange(9)[None], "seq_idx": torch.tensor([[0] * 4 + [1] * 5])},
        "seq_idx must begin documents where position_ids does",
    ),
    "lengths": ({"cu_seq_lens_q": torch.tensor([0, 4])}, "cu_seq_lens_q must rise from 0 to 9"),
    "keys": (
        {"cu_seq_lens_q": torch.tensor([0, 4, 9]), "cu_seq_lens_k": torch.tensor([0, 5, 9])},
        "cu_seq_lens_k must begin documents where cu_seq_lens_q does",
    ),
    "4D mask": ({"attention_mask": torch.ones(1, 1, 9, 9)}, r"attention_mask must have shape \(batch, t\)"),
    "masks by layer": ({"attention_mask": {"full_attention": None}}, r"attention_mask must have shape \(batch, t\)"),
    "mask of numbers": (
        {"attention_mask": torch.tensor([[1] * 4 + [2] * 5])}, "attention_mask must hold only 0 and 1, but is 2"
    ),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 9, 16)}, "inputs_embeds must be left out"),
    "types": ({"token_type_ids": torch.zeros(1, 9)}, "token_type_ids must be left out"),
    "heads": ({"head_mask": torch.ones(2)}, "head_mask must be left out"),
    "cache": (
        {"use_cache": True, "seq_idx": torch.tensor([[0] * 4 + [1] * 5])},
        "use_cache must be left out where a row holds several documents",
    ),
    "labels": ({"labels": torch.full((1, 9), 50)}, "labels must be from 0 to 49, but is"),
    "labels of floats": ({"labels": torch.ones(1, 9)}, r"labels must be whole numbers of shape \(1, 9\)"),
    "labels of others": ({"labels": torch.ones(1, 5).long()}, r"labels must be whole numbers of shape \(1, 9\)"),
    "no tokens": ({"input_ids": None}, r"input_ids must have shape \(batch, t\), but is None"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("unchecked")
def test_keywords_that_cannot_be_honoured_are_refused(name):
    given, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        built()(**{"input_ids": prompts(1)} | given)


def test_a_cache_is_of_as_many_rows_as_it_has_read_and_labels_may_be_of_32_bits():
    model, tokens = built(), prompts()
    found = model(tokens, labels=tokens.int(), use_cache=True)
    torch.testing.assert_close(found.loss, model(tokens, labels=tokens).loss)
    with pytest.raises(ArgumentError, match="input_ids must have 2 rows, like the cache, but is 1"):
        model(tokens[:1], past_key_values=found.past_key_values)


def test_settings_of_the_config_are_honoured_and_keywords_of_none_change_nothing():
    model, tokens = built(), prompts()
    empty = dict.fromkeys(["inputs_embeds", "token_type_ids", "position_ids", "head_mask", "seq_idx", "cu_seq_lens_q"])
    torch.testing.assert_close(model(tokens, **empty).logits, model(tokens).logits)
    model.config.output_hidden_states = True
    assert len(model(tokens).hidden_states) == 4
    model.config.output_attentions = True
    with pytest.raises(ArgumentError, match="output_attentions must be False"):
        model(tokens)


def test_positions_go_on_after_a_cache():
    model, tokens, cache = built(), prompts(2, 12), huggingface.StateCache()
    mask = (torch.arange(12) >= torch.tensor([[0], [3]])).long()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    found = [
        model(part, seen, cache, position_ids=own).logits
        for part, seen, own in (
            (tokens[:, :7], mask[:, :7], positions[:, :7]), (tokens[:, 7:], mask, positions[:, 7:])
        )
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(found, 1)[mask > 0], model(tokens, mask).logits[mask > 0])
    with pytest.raises(ArgumentError, match="position_ids must count the tokens of each document from 0"):
        model(tokens[:, :2], past_key_values=cache, position_ids=positions[:, 7:9])
    with pytest.raises(ArgumentError, match="use_cache must be left out"):
        model(tokens[:, :2], past_key_values=cache, position_ids=positions[:1, :2])


@pytest.mark.parametrize("end", [[3, 7], 7])
def test_generation_ends_at_any_token_that_ends_a_text(end):
    model, tokens = built(), prompts(1)
    told = drawn(model, tokens, do_sample=False, eos_token_id=[])[0, 9:].tolist()
    last = told[4]
    ends = [last, 49] if isinstance(end, list) else last
    again = huggingface.MesascopeForCausalLM.of(model.model, eos_token_id=ends, pad_token_id=0)
    assert drawn(again, tokens, do_sample=False)[0, 9:].tolist() == told[: told.index(last) + 1]


def test_embeddings_are_modules_that_hooks_see_and_callers_replace():
    for tied in (False, True):
        config = language_model_config("softmax, mesa", 50, 64, width=16, tied=tied)
        model, tokens = huggingface.MesascopeForCausalLM(huggingface.MesascopeConfig(config)).eval(), prompts()
        embedding, before = model.get_input_embeddings(), model(tokens).logits
        with embedding.register_forward_hook(lambda module, given, made: made * 0):
            assert not torch.allclose(model(tokens).logits, before)
        other = torch.nn.Embedding(50, 16)
        model.set_input_embeddings(other)
        assert model.get_input_embeddings() is other
        assert not torch.allclose(model(tokens).logits, before)
        assert model.resize_token_embeddings(50) is other
        model.tie_weights()
        head = model.get_output_embeddings()
        assert head is None if tied else head.weight.shape == (50, 16)
        new = torch.nn.Linear(16, 50, bias=False)
        if tied:
            with pytest.raises(ArgumentError, match="new_embeddings must be left out where logits are products"):
                model.set_output_embeddings(new)
        else:
            model.set_output_embeddings(new)
            assert model.get_output_embeddings() is new
        with pytest.raises(ArgumentError, match=r"the module must have weights of shape \(50, 16\)"):
            model.set_input_embeddings(torch.nn.Embedding(51, 16))
        with pytest.raises(ArgumentError, match="new_num_tokens must be only 50"):
            model.resize_token_embeddings(60)
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        with pytest.raises(ValueError, match=r"does not support .* checkpointing"):
            enable()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_models_and_caches_can_be_copied_and_pickled(copied):
    model, cache, tokens = built(), huggingface.StateCache(), prompts(2, 12)
    with torch.no_grad():
        model(tokens[:, :6], past_key_values=cache)
    again, other = copied((model, cache))
    torch.testing.assert_close(again(tokens[:, 6:], past_key_values=other).logits, model(tokens).logits[:, 6:])
    assert undecayed(again.model) == undecayed(model.model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, "auto"])
def test_a_folder_is_loaded_in_the_dtype_asked_for(tmp_path, dtype):
    model = built()
    model.save_pretrained(tmp_path)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    wanted = torch.float64 if dtype == "auto" else dtype
    assert {one.dtype for one in found.parameters()} == {found.dtype} == {wanted}
    if wanted == torch.float64:
        assert torch.equal(found(prompts()).logits, model(prompts()).logits)

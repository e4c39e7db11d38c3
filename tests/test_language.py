"""Language models by the names of their layers: their text, their losses, and that they learn from what they read."""

import dataclasses
import math
import re
import shutil
from unittest import mock

import pytest
import torch
from torch.nn import functional

from mesascope.errors import ArgumentError, NumericalError, RunDirectoryError
from mesascope.evidence import Estimates
from mesascope.language import (
    LanguageTraining,
    TextWindows,
    evaluate,
    head_scores,
    in_context_score,
    language_model_config,
    named_layers,
    new_language_run,
    next_token_loss,
    prepare,
    resume_language_run,
    token_losses,
    train_language_model,
)
from mesascope.language.learning import Scales, moved
from mesascope.language.losses import losses_of
from mesascope.language.tokenizing import load_tokenizer
from mesascope.nets import LanguageModel
from mesascope.streams import stream
from mesascope.studies.language import language_mesa
from mesascope.studies.language.language_mesa import LanguageMesa
from mesascope.training import Ensemble, ModuleState, Training, train

TINY = {"vocabulary": 30, "context": 40, "width": 16, "n_heads": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text("|".join("abc " * 20 + str(number) for number in range(40)))
    return prepare([folder / "text.txt"], folder / "tokens", delimiter="|", validation=0.3)


def test_layers_are_named_in_a_line():
    assert named_layers("mesa") == ("mesa",)
    assert named_layers("softmax,linear*2, delta") == ("softmax", "linear", "linear", "delta")
    assert named_layers(["softmax", "mesa"]) == ("softmax", "mesa")
    for line, message in (
        ("softmax,mess", "layers must be one of .* but is 'mess': did you mean 'mesa'"),
        ("", "layers must be one of .* but is ''"),
        ("softmax*0", "layers must occur at least once, but is 'softmax\\*0'"),
        ("mesa, softmax*00", "layers must occur at least once, but is 'softmax\\*00'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            named_layers(line)


def test_only_layers_that_are_not_softmax_have_features_convolutions_and_gates():
    config = language_model_config(
        "softmax,mesa,linear", **TINY, dpfp=2, convolution=3, forget=True, positions="rotary"
    )
    softmax, *others = config.transformer.each_heads
    assert (softmax.dpfp, softmax.convolution, softmax.forget, softmax.rotary) == (0, 0, False, True)
    assert {(one.dpfp, one.convolution, one.forget, one.rotary) for one in others} == {(2, 3, True, False)}
    assert config.places == "none"
    assert language_model_config("mesa", **TINY, key_shift=True).transformer.each_heads[0].key_shift


def test_models_of_other_layers_have_the_same_number_of_parameters():
    counts = {
        name: sum(weight.numel() for weight in language_model_config(f"softmax, {name}", **TINY).build().parameters())
        for name in ("softmax", "linear", "mesa")
    }
    assert counts["linear"] == counts["softmax"] + TINY["width"]  # scales of what heads read
    assert counts["mesa"] == counts["linear"] + TINY["n_heads"]  # a ridge a head


def test_losses_are_cross_entropies_of_the_tokens_that_follow(monkeypatch):
    model = language_model_config("softmax, mesa", **TINY).build(stream(0, "init"))
    windows = torch.randint(30, (5, 12), generator=stream(0, "tokens"))
    monkeypatch.setattr("mesascope.language.losses._AT_ONCE", 2)
    losses = token_losses(model, windows)
    for row, told in zip(windows, losses, strict=True):
        by_hand = [-model(row[None, :t])[0, -1].log_softmax(-1)[row[t]] for t in range(1, 12)]
        torch.testing.assert_close(told, torch.stack(by_hand), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(next_token_loss(model, windows), losses.mean())
    both = Ensemble([model, language_model_config("softmax, mesa", **TINY).build(stream(1, "init"))])
    torch.testing.assert_close(next_token_loss(both, windows.expand(2, -1, -1))[0], losses.mean())


def test_windows_that_do_not_fit_into_memory_name_how_many_ran_at_once():
    model = language_model_config("softmax", 16, 32, width=8, n_heads=2).build(stream(0, "init"))
    model.forward = mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(ArgumentError, match="windows must fit into memory 8 at a time, but do not with 9 tokens"):
        token_losses(model, torch.zeros(4, 9, dtype=torch.long))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_losses_by_blocks_of_tokens_are_those_of_all(tied, dtype, monkeypatch):
    """Losses, gradients and second derivatives; of a block's logits alone is there memory at a time."""
    model = language_model_config("softmax, linear", **TINY, tied=tied).build(stream(0, "init"))
    model = model.double() if dtype is None else model
    windows = torch.randint(30, (5, 12), generator=stream(0, "tokens"))
    sizes: list[int] = []

    def differentiated():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
            losses = losses_of(model, windows)
        first = torch.autograd.grad(losses.square().sum(), [*model.parameters()], create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), model.embedding.weight)
        return losses, *first, *second

    monkeypatch.setattr(LanguageModel, "_read", seen(LanguageModel._read, sizes))
    whole = differentiated()
    assert max(sizes) == 55
    sizes.clear()
    monkeypatch.setattr("mesascope.nets.language_model._LOGITS", 30 * 7)
    for own, expected in zip(differentiated(), whole, strict=True):
        close = {} if dtype is None else {"rtol": 0.05, "atol": 0.05 * float(expected.detach().abs().max())}
        torch.testing.assert_close(own, expected, **close)
    assert max(sizes) == 7


def seen(read, sizes):
    """The function, with the number of tokens of each call kept."""

    def call(model, tokens):
        sizes.append(tokens[..., 0].numel())
        return read(model, tokens)

    return call


def test_shards_are_hashed_by_the_first_process_alone(corpus, monkeypatch):
    hashed: list[str] = []
    monkeypatch.setattr(type(corpus), "verify", lambda own, split: hashed.append(split))
    monkeypatch.setattr("mesascope.language.windows.is_rank_zero", lambda: False)
    TextWindows(str(corpus.folder), 21)
    assert hashed == []
    monkeypatch.undo()
    monkeypatch.setattr(type(corpus), "verify", lambda own, split: hashed.append(split))
    TextWindows(str(corpus.folder), 21)
    assert hashed == ["train"]


def test_the_score_is_the_loss_late_less_that_early():
    losses = torch.zeros(4, 1024)
    losses[:, 499], losses[:, 49] = torch.tensor([1.0, 2.0, 3.0, 4.0]), 5.0
    score = in_context_score(losses)
    assert (score.value, score.n) == (-2.5, 4)
    with pytest.raises(ArgumentError, match=r"losses must have shape \(n, t\) with t of at least 20, but is \(4, 3\)"):
        in_context_score(losses[:, :3])


def test_windows_are_of_the_text_and_repeat_with_their_generator(corpus):
    text = TextWindows(str(corpus.folder), 21)
    drawn = text.sample(50, stream(0, "windows"))
    whole = torch.from_numpy(corpus.windows("train", torch.tensor([0]).numpy(), corpus.tokens("train")))[0]
    assert all(bool((whole.unfold(0, 21, 1) == row).all(1).any()) for row in drawn)
    assert torch.equal(drawn, text.sample(50, stream(0, "windows")))
    assert len(torch.unique(drawn, dim=0)) > 10
    laid = TextWindows(str(corpus.folder), 21, "validation").spread(10**6)
    assert torch.equal(laid[1], torch.from_numpy(corpus["validation"][0][21:42].astype("int64")))
    assert len(laid) == corpus.tokens("validation") // 21
    some = TextWindows(str(corpus.folder), 21, "validation").spread(4)
    assert torch.equal(some, laid[[index * len(laid) // 4 for index in range(4)]])
    with pytest.raises(ArgumentError, match="length must be at most"):
        TextWindows(str(corpus.folder), 10**6)


def test_windows_of_validation_are_its_text(corpus):
    read = TextWindows(str(corpus.folder), 21, "validation").spread(10**6).flatten()
    assert read.tolist() == corpus["validation"][0][: len(read)].tolist()


def test_a_model_learns_a_text_and_copies_what_it_has_read(unchecked):
    """Tokens at random, and then again: only what was read tells what comes."""

    class Repeated:
        def sample(self, batch, generator):
            half = torch.randint(10, (batch, 10), generator=generator)
            return torch.cat([half, half], 1)

    plan = Training(340, 32, learning_rate=1e-2, optimizer="adamw", schedule="cosine", clip=1.0)
    config = language_model_config("softmax, mesa", 10, 20, width=32, n_heads=2, dpfp=2)
    trained = train(config.build, Repeated(), plan, [0], loss=next_token_loss)[0]
    losses = token_losses(trained, Repeated().sample(64, stream(0, "test"))).mean(0)
    assert losses[:9].mean() == pytest.approx(math.log(10), abs=0.15)
    assert losses[11:].mean() < 0.3
    assert functional.relu(losses[11:] - 1.0).max() == 0
    scores, before = head_scores(trained, 10), head_scores(config.build(stream(1, "init")), 10)
    assert max(own.max() for own in scores.induction) > 3 * max(own.max() for own in before.induction)


# Training


def settings_for(corpus, **changes):
    plan = Training(
        12, 4, learning_rate=1e-2, optimizer="adamw", clip=1.0, evaluate_every=4, checkpoint_every=4,
    )  # fmt: skip
    return LanguageTraining(
        str(corpus.folder), "softmax, mesa", 16, 2, 2, 24, dpfp=3, dropout=0.1, training=plan, validation_windows=6,
        **changes,
    )  # fmt: skip


def weights_of(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_a_killed_training_goes_on_to_the_same_bytes(corpus, tmp_path, monkeypatch):
    whole = new_language_run(settings_for(corpus), tmp_path / "whole", seed=3)
    expected = train_language_model(whole)
    killed, update = new_language_run(settings_for(corpus), tmp_path / "killed", seed=3), ModuleState.update

    def kill(state, batch):
        if state.step == 6:
            raise MemoryError
        return update(state, batch)

    with monkeypatch.context() as patch:
        patch.setattr(ModuleState, "update", kill)
        with pytest.raises(MemoryError):
            train_language_model(killed)
    again = train_language_model(resume_language_run(tmp_path / "killed"))
    assert torch.equal(weights_of(again), weights_of(expected))
    assert killed.metrics("model") == whole.metrics("model")
    read = TextWindows(str(corpus.folder), settings_for(corpus).context + 1, checksum=corpus.checksum)
    assert killed.family("model") == read
    assert torch.equal(weights_of(killed.network("model", 3)), weights_of(expected))
    kept = LanguageModel.from_pretrained(tmp_path / "killed" / "model")
    assert torch.equal(weights_of(kept), weights_of(expected))
    assert (tmp_path / "killed" / "model" / "tokenizer.json").is_file()


def test_a_training_whose_metrics_are_lost_does_not_go_on(corpus, tmp_path):
    run = new_language_run(settings_for(corpus), tmp_path / "run")
    train_language_model(run)
    metrics = run.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    for left, step in (("".join(lines[:1]), 4), ("".join(lines)[:-30], 12), ("", 0)):
        metrics.write_text(left)
        with pytest.raises(RunDirectoryError, match=f"must hold the metrics of model .* but lacks step {step} "):
            train_language_model(resume_language_run(run.path))


def test_a_batch_may_be_computed_in_parts_and_in_half_precision(corpus, tmp_path):
    one = train_language_model(new_language_run(settings_for(corpus), tmp_path / "one"))
    for name, changes, apart in (("parts", {"accumulate": 2}, 1e-3), ("half", {"autocast": "bfloat16"}, 0.1)):
        plain = {"dropout": 0.0} if name == "parts" else {}
        settings = dataclasses.replace(settings_for(corpus, **changes), **plain)
        other = train_language_model(new_language_run(settings, tmp_path / name))
        reference = one
        if plain:
            whole = dataclasses.replace(settings_for(corpus), **plain)
            reference = train_language_model(new_language_run(whole, tmp_path / f"{name} whole"))
        assert (weights_of(other) - weights_of(reference)).norm() < apart * weights_of(reference).norm()


def test_training_lowers_the_validation_loss_and_tells_the_tokens_a_second(corpus, tmp_path, capsys):
    settings = settings_for(corpus)
    longer = dataclasses.replace(settings, training=dataclasses.replace(settings.training, steps=60, evaluate_every=60))
    run = new_language_run(longer, tmp_path / "run")
    train_language_model(run)
    first, last = run.metrics("model")
    assert first["loss"] == pytest.approx(math.log(257), abs=1.0)
    assert last["loss"] < 0.7 * first["loss"]
    names = ("loss", "in_context_score")
    assert set(first) == {"training", "step", "seed", *names, *(f"{name}_stderr" for name in names)}
    model, held = train_language_model(run), TextWindows(str(corpus.folder), 25, "validation").spread(6)
    score = in_context_score(token_losses(model, held))
    assert (last["in_context_score"], last["in_context_score_stderr"]) == pytest.approx((score.value, score.stderr))
    said = capsys.readouterr().err
    assert f"step 0/60: validation loss {first['loss']:.3f} ± " in said
    assert re.search(
        r"step 60/60: training loss \d\.\d+, validation loss \S+ ± \S+, in-context score \S+ ± \S+\n", said
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": "nowhere"}, "corpus must be a folder with index.json"),
        ({"context": 10**5}, "context must be below the .* tokens of train, but is 100000: lower it"),
        ({"layers": "softmax, mess"}, "layers must be one of"),
        ({"width": 65}, "width must be a multiple of 2 as n_heads is 2, but is 65: pass 64, say, or another n_heads"),
        ({"width": 6, "positions": "rotary"}, "width must be a multiple of 4 as n_heads is 2 for rotary positions"),
        ({"dpfp": 16}, "dpfp must be less than 16 for heads of width 8, but is 16: lower it"),
        ({"accumulate": 3}, "accumulate must divide the batch of 4 windows, but is 3"),
        ({"autocast": "float8"}, "autocast must be one of"),
        ({"layers": "linear", "positions": "rotary"}, "positions must be learned or none where no layer is softmax"),
        ({"layers": "softmax", "forget": True}, "forget must be left out where all layers are softmax, but is True"),
        ({"layers": "softmax*2", "convolution": 4}, "convolution must be left out where all layers are softmax"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_trained_is_refused_before_it_begins(corpus, tmp_path, changes, message):
    with pytest.raises(ArgumentError, match=message):
        new_language_run(dataclasses.replace(settings_for(corpus), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("begun", [False, True])
def test_another_corpus_in_its_place_is_refused(corpus, tmp_path, begun):
    shutil.copytree(corpus.folder, tmp_path / "tokens")
    run = new_language_run(dataclasses.replace(settings_for(corpus), corpus=str(tmp_path / "tokens")), tmp_path / "run")
    if begun:
        train_language_model(run)
    shutil.rmtree(tmp_path / "tokens")
    (tmp_path / "text.txt").write_text("|".join("xyz " * 20 + str(number) for number in range(40)))
    prepare([tmp_path / "text.txt"], tmp_path / "tokens", delimiter="|", validation=0.3)
    with pytest.raises(ArgumentError, match=r"folder must hold the text of checksum .*: prepare that text again"):
        train_language_model(resume_language_run(tmp_path / "run"))


@pytest.mark.parametrize(
    ("layer", "factor", "said"),
    [
        (1, 1e6, "diverged at step 7 .*; after step 6, tokens after layer 1 grew most: .* at step 4"),
        (0, 1e30, "tokens after layer 0 are the first that are not finite"),
    ],
)
def test_a_training_that_diverges_names_the_layer_that_grew(corpus, tmp_path, layer, factor, said):
    settings, update = settings_for(corpus), ModuleState.update

    def wild(state, batch):
        if state.step == 6:
            with torch.no_grad():
                state.result().transformer.layers[layer].mlp.down_proj.weight.mul_(factor)
                state.result().norm.weight.fill_(torch.nan)
        return update(state, batch)

    run = new_language_run(settings, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModuleState, "update", wild)
        with pytest.raises(NumericalError, match=said) as diverged:
            train_language_model(run)
    assert ": lower the learning rate" in str(diverged.value)
    assert sorted(path.name for path in (run.path / "checkpoints" / "model").iterdir()) == ["4"]
    train_language_model(resume_language_run(tmp_path / "run"))


@pytest.mark.parametrize(
    ("every", "said"), [(4, "the validation loss must stay finite"), (12, "tokens must stay finite")]
)
def test_a_model_that_is_not_finite_any_more_is_not_kept(corpus, tmp_path, every, said):
    settings, update = settings_for(corpus), ModuleState.update
    plan = dataclasses.replace(settings.training, evaluate_every=every)

    def wild(state, batch):
        told = update(state, batch)
        if state.step == 8:
            with torch.no_grad():
                state.result().transformer.layers[1].mlp.down_proj.weight.fill_(torch.inf)
        return told

    run = new_language_run(dataclasses.replace(settings, training=plan), tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModuleState, "update", wild)
        with pytest.raises(NumericalError, match=f"{said}.* after step 8, tokens after layer 1 are the first"):
            train_language_model(run)
    assert sorted(path.name for path in (run.path / "checkpoints" / "model").iterdir()) == ["4"]


def test_an_evaluation_is_of_the_model_in_use_and_refuses_another_tokenizer_and_what_is_not_finite(corpus, tmp_path):
    tokenizer = load_tokenizer(corpus.folder / "tokenizer.json")
    model = (
        language_model_config("softmax, mesa", 257, 24, width=16, n_heads=2, dropout=0.5)
        .build(stream(0, "init"))
        .train()
    )
    found = evaluate(model, tokenizer, corpus.folder, windows=7)
    assert model.training
    losses = token_losses(model.eval(), TextWindows(str(corpus.folder), 25, "validation").spread(7))
    assert (found.loss.n, found.loss.value) == (7, pytest.approx(losses.double().mean().item(), abs=1e-9))
    assert found.perplexity == pytest.approx(math.exp(found.loss.value))
    assert found.by_token[2].value == pytest.approx(losses[:, 1:3].double().mean().item())
    other = prepare([corpus.folder.parent / "text.txt"], tmp_path, "bpe:270", delimiter="|", validation=0.3)
    with pytest.raises(ArgumentError, match="corpus must have the tokenizer of the model"):
        evaluate(model, tokenizer, other.folder)
    torch.nn.init.constant_(model.norm.weight, torch.nan)
    with pytest.raises(NumericalError, match="losses must be finite"):
        evaluate(model, tokenizer, corpus.folder)


def test_logged_numbers_are_of_validation_windows(corpus, tmp_path):
    settings = settings_for(corpus)
    plan = dataclasses.replace(settings.training, steps=1)
    run = new_language_run(dataclasses.replace(settings, training=plan), tmp_path / "run")
    model = train_language_model(run)
    losses = token_losses(model, TextWindows(str(corpus.folder), 25, "validation").spread(6))
    logged = run.metrics("model")[-1]
    assert logged["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert logged["in_context_score"] == pytest.approx(in_context_score(losses).value, rel=1e-4)


def test_the_study_trains_on_training_text_and_judges_on_validation_text(corpus):
    settings = LanguageMesa(corpus=str(corpus.folder), context=32, width=8, windows=5, watch_windows=3)
    lab = mock.MagicMock(device="cpu")
    lab.stream.side_effect = lambda name, index=0: stream(index, name)
    language_mesa.measure(lab, settings)
    judged = lab.stage.call_args_list[0].args[3]
    assert torch.equal(judged, TextWindows(str(corpus.folder), 65, "validation").spread(5))
    assert {call.args[2].split for call in lab.train.call_args_list} == {"train"}
    first = lab.train.call_args_list[0]
    model = first.args[1].build(stream(0, "init"))
    losses = token_losses(model, TextWindows(str(corpus.folder), 33, "validation").spread(3))
    assert first.kwargs["watch"](model) == {"loss": pytest.approx(losses.mean().item())}


@pytest.mark.slow
def test_networks_of_the_paper_preset_train_at_their_width_in_parts_and_in_half_precision(corpus, members):
    paper = language_mesa.STUDY.presets["paper"]
    plan = dataclasses.replace(paper.training, steps=3, batch=4, warmup_steps=0)
    config = dataclasses.replace(paper, context=32).network("softmax, mesa*3", 257, mlp=4, forget=True)
    windows = TextWindows(str(corpus.folder), 33)
    trained = train(
        config.build, windows, plan, [0, 1], loss=next_token_loss, accumulate=2, autocast=torch.bfloat16,
    )  # fmt: skip
    initial, own = config.build(stream(0, "init")), trained.member(0)
    assert sum(weight.numel() for weight in own.parameters()) > 28e6
    for (name, weight), before in zip(own.named_parameters(), initial.parameters(), strict=True):
        assert weight.isfinite().all(), name
        assert not torch.equal(weight, before), name
    assert trained.diverged == (0, 0)


def test_the_score_of_the_study_is_the_loss_late_less_that_early():
    losses = {("early", "mesa"): [torch.full((4,), 3.0).numpy()], ("late", "mesa"): [torch.full((4,), 1.0).numpy()]}
    assert language_mesa.score("two", "mesa")({"two": Estimates.of(losses)}).tolist() == [-2.0]


def test_of_scales_the_first_layer_that_grew_is_named():
    before, sentence = Scales(3, (1.0, 1.0, 2.0, 3.0)), "tokens after layer {} grew most"
    assert moved(before, Scales(9, (1.0, 50.0, 100.0, 151.0))).startswith(sentence.format(0))
    assert moved(before, Scales(9, (1.0, 1.1, 2.0, 90.0))).startswith(sentence.format(2))
    assert (
        moved(before, Scales(9, (1.0, math.nan, math.nan, 1.0)))
        == "tokens after layer 0 are the first that are not finite"
    )
    assert moved(before, Scales(9, (1.0, 1.1, 2.0, 3.0))) == "no layer has doubled its tokens since step 3"
    assert moved(None, Scales(9, (1.0, 4.0, 2.0, 3.0))).startswith("tokens after layer 0 are the largest")

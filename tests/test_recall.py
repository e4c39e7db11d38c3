"""The yardstick's tasks: what is asked can be answered from what was read, and from nothing else."""

import json
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mesascope.errors import ArgumentError
from mesascope.language import language_model_config, recall_accuracy, recall_by_sequence, recall_loss
from mesascope.records import from_record, to_record
from mesascope.streams import stream
from mesascope.tasks import AssociativeRecall, Automata, Copying
from mesascope.training import Ensemble

sizes = st.integers(1, 6)


def drawn(family, batch=4, seed=0):
    tasks = family.sample(batch, stream(seed, "tasks"))
    assert tasks.shape == (batch, 2, family.length)
    assert 0 <= int(tasks[:, 0].min()) <= int(tasks[:, 0].max()) < family.vocabulary
    assert torch.equal(tasks, family.sample(batch, stream(seed, "tasks")))
    return tasks.unbind(1)


@settings(deadline=None, max_examples=30)
@given(sizes, st.integers(6, 10), st.integers(0, 99))
def test_values_asked_for_are_those_that_stood_beside_their_keys(pairs, tokens, seed):
    for text, asked in zip(*drawn(AssociativeRecall(pairs, tokens), seed=seed), strict=True):
        known = dict(text[: 2 * pairs].view(-1, 2).tolist())
        assert len(known) == pairs
        again = text[2 * pairs :].view(-1, 2).tolist()
        assert dict(again) == known
        assert asked.view(-1, 2).tolist() == [[0, 0]] * pairs + [[0, 1]] * pairs


@settings(deadline=None, max_examples=30)
@given(sizes, st.integers(2, 5), st.integers(0, 99))
def test_copies_are_of_the_text_before(length, tokens, seed):
    for text, asked in zip(*drawn(Copying(length, tokens), seed=seed), strict=True):
        assert text[:length].equal(text[length + 1 :])
        assert text[length] == tokens
        assert asked.tolist() == [0] * (length + 1) + [1] * length


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(2, 5), sizes, st.integers(0, 99))
def test_words_are_those_of_one_automaton(states, tokens, words, word, seed):
    """A prefix is followed by no more than the two symbols of the state that it leads to."""
    family = Automata(states, tokens, words, word)
    for text, asked in zip(*drawn(family, seed=seed), strict=True):
        rows, marks = text.view(words, word + 1).tolist(), asked.view(words, word + 1)
        assert {row[-1] for row in rows} == {tokens}
        assert not marks[:, -1].any()
        follows: dict = {}
        for row in rows:
            for end in range(word):
                follows.setdefault(tuple(row[:end]), set()).add(row[end])
        assert all(len(symbols) <= 2 and tokens not in symbols for symbols in follows.values())
        assert len({symbol for symbols in follows.values() for symbol in symbols}) <= 2 * states
        assert asked.sum() == sum(
            1 for place in range(family.length) if place >= family.length // 2 and text[place] < tokens
        )


def test_automata_differ_from_sequence_to_sequence():
    text, _ = drawn(Automata(words=2, word=30), batch=50)
    assert len({frozenset(row[:30].tolist()) for row in text}) > 20


def test_losses_and_answers_are_of_what_is_asked_alone():
    family = Copying(4, 6)
    models = [
        language_model_config("softmax", family.vocabulary, 20, width=8, n_heads=2).build(stream(n, "init"))
        for n in (0, 1)
    ]
    tasks = family.sample(5, stream(0, "tasks"))
    logits = models[0](tasks[:, 0, :-1])
    by_hand = [-logits[row, t - 1].log_softmax(-1)[tasks[row, 0, t]] for row in range(5) for t in range(5, 9)]
    torch.testing.assert_close(recall_loss(models[0], tasks), torch.stack(by_hand).mean())
    torch.testing.assert_close(
        recall_loss(Ensemble(models), tasks.expand(2, -1, -1, -1))[1], recall_loss(models[1], tasks)
    )
    right = [logits[row, t - 1].argmax() == tasks[row, 0, t] for row in range(5) for t in range(5, 9)]
    assert recall_accuracy(models[0], tasks) == pytest.approx(sum(map(int, right)) / 20)
    losses, shares = recall_by_sequence(models[0], tasks)
    torch.testing.assert_close(losses, torch.stack(by_hand).view(5, 4).mean(1))
    torch.testing.assert_close(shares, torch.tensor(right).view(5, 4).float().mean(1))


def test_who_knows_the_automaton_loses_log_2():
    text, asked = drawn(Automata(states=1, words=4, word=40), batch=200)
    counts = torch.stack([torch.bincount(row[mark > 0], minlength=9) for row, mark in zip(text, asked, strict=True)])
    shares = counts / counts.sum(-1, keepdim=True)
    assert int((counts > 0).sum(-1).max()) == 2
    entropy = -(shares * shares.clamp_min(1e-9).log()).sum(-1).mean()
    assert float(entropy) == pytest.approx(math.log(2), abs=0.02)


def test_impossible_sizes_are_refused():
    with pytest.raises(ArgumentError, match="pairs must be at most the number of keys, 4, but is 5"):
        AssociativeRecall(pairs=5, tokens=4)
    with pytest.raises(ArgumentError, match="tokens must be at least 2"):
        Automata(tokens=1)
    with pytest.raises(ArgumentError, match="tasks must have shape"):
        recall_loss(torch.nn.Identity(), torch.zeros(3, 4, dtype=torch.long))


@pytest.mark.parametrize("family", [AssociativeRecall(3, 5), Copying(4, 6), Automata(states=2)])
def test_tasks_of_tokens_are_read_back_from_their_records(family):
    assert from_record(json.loads(json.dumps(to_record(family)))) == family

"""Sentences of calls that a newcomer makes."""

import pytest
import torch
from torch import nn

from mesascope import LinearRegression, Training, compare
from mesascope.cli import main
from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.evidence import Claim, above, judge, ours
from mesascope.evidence.estimates import Estimates
from mesascope.evidence.readings import stage
from mesascope.learners import LeastSquares
from mesascope.meta import ANIL, BOIL, MAML, MetaLearner
from mesascope.nets import AttentionConfig, CausalTransformerConfig, SequencePredictor, SequencePredictorConfig
from mesascope.tasks import accuracy
from mesascope.training import train


def test_cross_entropy_is_refused_for_regression():
    family = LinearRegression(n_context=6, d_in=3, d_out=2)
    with pytest.raises(ArgumentError, match="loss must not be cross_entropy for targets other than classes"):
        compare(MetaLearner(nn.Linear(3, 2), MAML(0.1, steps=2)), {"ls": LeastSquares()}, family, tasks=4)
    learner = MetaLearner(nn.Linear(3, 2), MAML(0.1, steps=2, loss=nn.functional.mse_loss))
    assert "ls" in compare(learner, {"ls": LeastSquares()}, family, tasks=4).rows


@pytest.mark.parametrize("method", [ANIL, BOIL])
def test_methods_that_choose_their_parameters_take_no_others(method):
    with pytest.raises(ArgumentError, match=f"adapt must be left out, as {method.__name__} adapts"):
        method(0.1, steps=1, adapt="all")


def test_a_module_in_place_of_a_function_is_told(tmp_path):
    plan = Training(steps=1, batch=2)
    with pytest.raises(ArgumentTypeError, match="make must be a function that builds a module"):
        train(nn.Linear(1, 1), LinearRegression(n_context=3, d_in=1), plan, [0])


def test_paths_that_do_not_exist_are_told(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("LEARNER = None\n")
    family = ["--family", "linear-regression(n_context=4, d_in=1)"]
    for words, said in (
        (["identify", "--local", "nofolder", *family, "--budget", "10"], "--local must be a folder or a GGUF file"),
        (["identify", "mine.py", *family], "LEARNER must name an object of its file"),
        (["language", "sample", "nope"], "folder must exist"),
    ):
        assert main(words) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_loaded_network_keeps_the_marks_of_its_parameters(tmp_path):
    config = CausalTransformerConfig(AttentionConfig(8, 2, forget=True, beta=True), 1, "mesa")
    network = SequencePredictorConfig(config, 3).build()
    network.save_pretrained(tmp_path / "net")
    loaded = SequencePredictor.from_pretrained(tmp_path / "net")

    def marked(net):
        return [name for name, one in net.named_parameters() if getattr(one, "_no_weight_decay", False)]

    assert marked(loaded) == marked(network) != []


def test_scores_that_are_nan_have_no_accuracy():
    scores = torch.tensor([[[0.2, 0.8]], [[torch.nan, 0.4]]])
    assert accuracy(scores, torch.tensor([[1], [1]])).tolist() == [1.0, pytest.approx(torch.nan, nan_ok=True)]


def test_a_ratio_whose_divisor_may_be_zero_is_undecided():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 1000, generator=generator).numpy()
    found = Estimates.of({("mse", "a"): [10 + noise[0]] * 5, ("mse", "b"): [0.1 + noise[1]] * 5})
    assert all(number.std_dev != number.std_dev for number in found.ratio("a", "b"))
    assert all(number.std_dev == number.std_dev for number in found.ratio("b", "a"))
    claim = Claim("c", "s", stage("now").ratio("a", "b"), above(1.0), ours("t"))
    (record,) = judge([claim], {"now": found})
    assert record["verdict"] == "undecided"
    assert "divisor is within five standard errors of 0" in record["reason"]

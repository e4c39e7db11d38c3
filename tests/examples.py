"""Examples of everything registered, which the contract tests walk; an entry without one fails them."""

import functools
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import mesascope
from mesascope import constructions, learners, lenses, meta, nets, tasks
from mesascope.identification import candidates, identify
from mesascope.language import TextWindows
from mesascope.language.shards import INDEX, SPLITS, TOKENIZER, Index, ShardWriter, Split
from mesascope.records import facts, registered
from mesascope.streams import stream

# Learners meet contexts of ten pairs of three inputs and one target; predictors sequences of 12 elements of three
# entries of order 1. Nets, layouts and attention are given by their configs. Constructions are built for the sizes
# (d_in, d_out, n_context, steps, w0), those of predictors for (d, steps, w0); those that start from zero weights take
# no notice of w0. Lenses look at one learner and episodes of `_TASKS`.
_TASKS = tasks.LinearRegression(n_context=10, d_in=3)


@functools.cache
def _corpus() -> tempfile.TemporaryDirectory[str]:
    """A folder of tokens for this process, made without a tokenizer."""
    folder = tempfile.TemporaryDirectory()
    path, splits = Path(folder.name), {}
    for split in SPLITS:
        writer = ShardWriter(path, split, "uint16", 64)
        writer.write(np.arange(128) * 37 % 50)
        writer.close()
        splits[split] = Split(128, 1, writer.shards)
    (path / TOKENIZER).write_text("{}")
    index = Index(1, hashlib.sha256(b"{}").hexdigest(), 50, 0, "uint16", splits, 1, 0, mesascope.__version__)
    (path / INDEX).write_bytes(msgspec.json.encode(index))
    return folder


EXAMPLES: dict[str, dict[str, list[Callable[..., Any]]]] = {
    "family": {
        "linear-regression": [tasks.LinearRegression],
        "few-shot-images": [lambda: tasks.FewShotImages(ways=2, queries=2)],
        "rotated-digits": [lambda: tasks.RotatedDigits(samples=5, queries=3)],
        "permuted-digits": [lambda: tasks.PermutedDigits(samples=5, queries=3)],
        "real-table": [lambda: tasks.RealTable(n_context=4)],
        "regression-problem": [
            tasks.RegressionProblem,
            *(
                lambda name=name: tasks.RegressionProblem(name, 3, authors=True)
                for name in ("regression_ni33", "transformer1")
            ),
            *(lambda name=name: tasks.RegressionProblem(name, 3) for name in ("friedman3", "character_regression1")),
        ],
        "sine-waves": [tasks.SineWaves, lambda: tasks.SineWaves(tied=True)],
        "associative-recall": [tasks.AssociativeRecall],
        "copying": [tasks.Copying],
        "automata": [tasks.Automata],
        "text-windows": [lambda: TextWindows(_corpus().name, 8)],
        "few-shot-sequence": [lambda: tasks.FewShotSequence(d=3, pairs=2, tasks=2)],
        "linear-dynamics": [tasks.LinearDynamics],
        "nonlinear-dynamics": [lambda: tasks.NonlinearDynamics(d=3, length=5)],
        "observed-dynamics": [lambda: tasks.ObservedDynamics(d=2, hidden=4, length=5)],
    },
    "learner": {
        "gradient-descent": [lambda: learners.GradientDescent(steps=3, eta=0.3)],
        "gradient-descent-plus-plus": [lambda: learners.GradientDescentPlusPlus(steps=3, eta=0.3, gamma=0.01)],
        "preconditioned-gradient-descent": [
            lambda: learners.PreconditionedGradientDescent(torch.diag(torch.tensor([0.3, 0.4, 0.5])))
        ],
        "newton": [lambda: learners.Newton(steps=5)],
        "least-squares": [learners.LeastSquares, lambda: learners.LeastSquares(ridge=0.1)],
        "lasso": [lambda: learners.Lasso(alpha=0.05)],
        "kernel-smoother": [learners.KernelSmoother],
        "kernel-ridge": [
            learners.KernelRidge,
            lambda: learners.KernelRidge("laplace", ridge=0.1),
            lambda: learners.KernelRidge("cubic", ridge=0.1),
        ],
        "kernel-gradient-descent": [lambda: learners.KernelGradientDescent(torch.tanh, steps=3, eta=0.3)],
        "nearest-neighbours": [
            learners.NearestNeighbours,
            lambda: learners.NearestNeighbours(2, "manhattan", "distance"),
        ],
        "bayes-pool": [lambda: learners.BayesPool(torch.eye(3).unsqueeze(1), noise=0.5)],
        "centred": [lambda: learners.Centred(learners.GradientDescent(steps=3, eta=0.3))],
        "with-intercept": [lambda: learners.WithIntercept(learners.LeastSquares(ridge=0.1))],
        "summed": [lambda: learners.Summed(learners.GradientDescent(steps=3, eta=0.3), pairs=5)],
        "standardised": [lambda: learners.Standardised(learners.LeastSquares(ridge=0.1))],
        "clipped": [lambda: learners.Clipped(learners.LeastSquares(ridge=0.1))],
        "on-features": [lambda: learners.OnFeatures(learners.LeastSquares(ridge=0.1), learners.squares)],
        "label-copying": [lambda: learners.LabelCopying(learners.LeastSquares(ridge=0.1))],
        "momentum": [lambda: learners.Momentum(4, 0.3, 0.5), lambda: learners.Momentum(4, 0.3, 0.5, nesterov=True)],
        "normalised-descent": [lambda: learners.NormalisedDescent(steps=3, eta=0.3)],
        "muon": [lambda: learners.Muon(steps=3, eta=0.3)],
        "delta-rule": [lambda: learners.DeltaRule(eta=0.3, forget=0.9)],
        "titans": [lambda: learners.Titans(eta=0.3, momentum=0.5, forget=0.9)],
        "conjugate-gradients": [lambda: learners.ConjugateGradients(steps=2)],
        "principal-components": [lambda: learners.PrincipalComponents(count=2)],
        "elastic-net": [lambda: learners.ElasticNet(alpha=0.05, share=0.5)],
        "constant": [lambda: learners.Constant(0.5)],
        "last-label": [learners.LastLabel],
        "averaging": [learners.Averaging],
        "mean": [learners.Mean],
        "zero": [learners.Zero],
    },
    "predictor": {
        "online-gradient-descent": [lambda: learners.OnlineGradientDescent(steps=3, eta=0.03)],
        "pair-sums": [lambda: learners.PairSums((0.01, 0.0, 0.05, -0.02), (0.0, 0.01, 0.0, 0.0))],
        "recursive-least-squares": [
            lambda: learners.RecursiveLeastSquares(ridge=0.1),
            lambda: learners.RecursiveLeastSquares(ridge=0.1, forget=0.9),
        ],
        "neumann-least-squares": [lambda: learners.NeumannLeastSquares(terms=20, bound=100.0)],
        "chebyshev-least-squares": [lambda: learners.ChebyshevLeastSquares.inverse(terms=10, bound=100.0)],
    },
    "construction": {
        "gradient-descent": [
            lambda d_in, d_out, n, steps, w0: constructions.gradient_descent(d_in, d_out, 0.4, n, steps, w0)
        ],
        "gradient-descent-plus-plus": [
            lambda d_in, d_out, n, steps, w0: constructions.gradient_descent_plus_plus(
                d_in, d_out, [0.4 / (k + 1) for k in range(steps)], 0.02 / n, n, steps, w0
            )
        ],
        "kernel-gradient-descent": [
            lambda d_in, d_out, n, steps, w0: constructions.kernel_gradient_descent(
                nets.TokenMLP(d_in, 3 * d_in, 1.0, stream(0, "init")), d_out, 0.1, n, steps
            )
        ],
        "copy-tokens": [
            lambda d_in, d_out, n, steps, w0: constructions.copy_tokens(d_in, d_out, 0.4, n, steps),
            lambda d_in, d_out, n, steps, w0: constructions.copy_tokens(d_in, d_out, 0.4, n, steps, "softmax"),
        ],
        # equals its algorithm only in the limit of a small scale
        "softmax-gradient-descent": [
            lambda d_in, d_out, n, steps, w0: constructions.softmax_gradient_descent(
                d_in, d_out, 0.4, steps, scale=1e-4
            )
        ],
        "mesa-gradient-descent": [lambda d, steps, w0: constructions.mesa_gradient_descent(d, 0.03, w0)],
        "online-gradient-descent": [
            lambda d, steps, w0: constructions.online_gradient_descent(
                d, [0.03 / (k + 1) for k in range(steps)], steps, w0
            )
        ],
        # of orthogonal dynamics, where |s_t|^2 is near d
        "neumann-preconditioning": [
            lambda d, steps, w0: constructions.neumann_preconditioning(d, steps, bound=60.0 * d)
        ],
        "mesa-least-squares": [lambda d, steps, w0: constructions.mesa_least_squares(d, 0.5)],
    },
    "net": {
        "in-context-regressor": [
            lambda: nets.InContextRegressorConfig(nets.TransformerConfig(4, n_layers=2, shared=True, token_clip=3.0)),
            lambda: nets.InContextRegressorConfig(
                nets.TransformerConfig(13, 2, attention=("softmax", "linear"), mlp=2, layer_norm=(False, True)),
                nets.Alternating(),
            ),
            lambda: nets.InContextRegressorConfig(
                nets.TransformerConfig(6, n_heads=2), embedding=nets.EmbeddingConfig(4, 6, 2, 0.5)
            ),
        ],
        "sequence-predictor": [
            lambda: nets.SequencePredictorConfig(
                nets.CausalTransformerConfig(nets.AttentionConfig(8, 2, positions=4), 2, ("softmax", "mesa"), mlp=2),
                d=3,
            ),
            lambda: nets.SequencePredictorConfig(
                nets.CausalTransformerConfig(nets.AttentionConfig(9, key_size=3)),
                d=3,
                channels=("blank", "now", "before"),
            ),
        ],
        "prompted": [
            lambda: nets.PromptedConfig(
                nets.SequencePredictorConfig(
                    nets.CausalTransformerConfig(nets.AttentionConfig(8, 2, positions=4)), d=3
                ),
                2,
                True,
            ),
        ],
        "block-multiples": [lambda: nets.BlockMultiplesConfig(3, ("blank", "now", "before"), 2, 2, token_clip=4.0)],
        "language-model": [
            lambda: nets.LanguageModelConfig(
                nets.CausalTransformerConfig(
                    nets.AttentionConfig(8, 2), 2, ("softmax", "linear"), mlp=2, layer_norm=True
                ),
                12,
                9,
            ),
            lambda: nets.LanguageModelConfig(
                nets.CausalTransformerConfig(
                    (nets.AttentionConfig(8, rotary=True), nets.AttentionConfig(8, dpfp=2)),
                    2,
                    ("softmax", "mesa"),
                ),
                12,
                9,
                places="none",
                tied=True,
            ),
        ],
        "embedded-descent": [lambda: nets.EmbeddedDescentConfig(nets.EmbeddingConfig(4, 8), steps=2, eta=(0.1, 0.2))],
        "classifier": [
            lambda: nets.ClassifierConfig("mlp", width=8, size=6, classes=3),
            lambda: nets.ClassifierConfig("convnet4", width=4, size=9, classes=3),
            lambda: nets.ClassifierConfig("resnet12", width=2, in_channels=3, size=6, classes=2),
        ],
        "meta-learner": [
            lambda: meta.MetaLearnerConfig(
                nets.ClassifierConfig("mlp", width=8, in_channels=3, size=1, classes=1), loss="mean-squares"
            )
        ],
    },
    "method": {
        "online-sgd": [lambda: meta.OnlineSGD(0.3)],
        "experience-replay": [lambda: meta.ExperienceReplay(0.3)],
        "gem": [lambda: meta.GEM(0.3)],
        "mer": [lambda: meta.MER(0.1, within=0.3, memory=20, replay=2, batches=1)],
        "la-maml": [lambda: meta.LaMAML(rate=0.3, glances=2)],
        "sync": [lambda: meta.Sync(outer_rate=0.3, glances=2)],
        "online-descent": [lambda: meta.OnlineDescent(nets.ClassifierConfig("mlp", 16, size=8, classes=4))],
        "bayesian-descent": [
            lambda: meta.BayesianDescent(nets.ClassifierConfig("mlp", 16, size=8, classes=4), samples=2, steps=2)
        ],
        "continual-maml": [
            lambda: meta.ContinualMAML(
                meta.MetaLearnerConfig(nets.ClassifierConfig("mlp", 16, size=8, classes=4), inner_lr=0.5), threshold=0.5
            )
        ],
        "sparse-la-maml": [lambda: meta.SparseLaMAML(rate=0.3, glances=2)],
    },
    "layout": {
        "concatenated": [nets.Concatenated],
        "with-query": [nets.WithQuery],
        "alternating": [nets.Alternating, lambda: nets.Alternating("one-hot", size=22, start=True)],
    },
    "attention": {
        "softmax": [lambda: nets.AttentionConfig(8, 2, window=4)],
        "linear": [lambda: nets.AttentionConfig(8, 2, forget=True)],
        "delta": [lambda: nets.AttentionConfig(8, 2, convolution=3)],
        "mesa": [lambda: nets.AttentionConfig(8, 2, ridge=0.5, output_norm=True)],
    },
    "lens": {
        "per_task_errors": [lenses.per_task_errors],
        "agreement": [lambda learner, episodes: lenses.agreement(learner, learner, episodes)],
        "alignment": [lambda learner, episodes: lenses.alignment(learner, learner, episodes)],
        "compare": [
            lambda learner, episodes: lenses.compare(learner, {"same": learner}, _TASKS, tasks=len(episodes.xq))
        ],
        "measure_learners": [lambda learner, episodes: lenses.measure_learners({"a": [learner]}, ["a"], episodes)],
        "sweep": [
            lambda learner, episodes: lenses.sweep(
                {"a": learner}, _TASKS, {"noise": [0.0, 1.0]}, tasks=len(episodes.xq)
            )
        ],
        "weights": [lambda learner, episodes: lenses.weights(learner)],
        "rescaled_products": [lambda learner, episodes: lenses.rescaled_products(learner)],
        "step_sizes": [lambda learner, episodes: lenses.step_sizes(learner, 10)],
        "interpolate": [lambda learner, episodes: lenses.interpolate(learner, learner)],
        "token_sensitivity": [lenses.token_sensitivity],
        "rollout": [lambda learner, episodes: lenses.rollout(learner, 3)],
        "trajectory_errors": [lenses.trajectory_errors],
        "measure_predictors": [
            lambda learner, sequences: lenses.measure_predictors({"a": [learner]}, ["a"], sequences)
        ],
        "errors_by_time": [lambda learner, sequences: lenses.errors_by_time({"a": [learner]}, sequences)],
        "probe": [lambda learner, sequences: lenses.probe({"a": [learner]}, sequences, "implicit")],
        "element_sensitivity": [lenses.element_sensitivity],
        "attention_maps": [lenses.attention_maps],
        "identify": [lambda learner, episodes: identify(learner, _TASKS, candidates(sklearn=False)[:2], budget=300)],
        "reverse_engineer": [lambda learner, sequences: lenses.reverse_engineer(learner, keep=6)],
    },
}


def examples(kind: str, **said: Any) -> list[tuple[str, Callable[..., Any]]]:
    """Name and builder of every example of a kind; raises AssertionError where an entry has none.

    Only mesascope's own entries need one. ``said`` picks those that were registered with these facts.

    >>> [name for name, _ in examples("net", of="predictor")]
    ['sequence-predictor', 'sequence-predictor', 'prompted']
    """
    own = EXAMPLES[kind]
    for name, target in registered(kind).items():
        if target.__module__.startswith("mesascope.") and name not in own:
            raise AssertionError(f"{kind} {name!r} must have an example in tests/examples.py.")
    picked = [name for name in own if said.items() <= facts(kind, name).items()]
    return [(name, builder) for name in picked for builder in own[name]]

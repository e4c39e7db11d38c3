"""Examples of everything registered, which the contract tests walk; an entry without one fails them."""

from __future__ import annotations

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
from mesascope.constructions import (
    copy_tokens,
    gradient_descent,
    gradient_descent_plus_plus,
    kernel_gradient_descent,
    mesa_gradient_descent,
    mesa_least_squares,
    neumann_preconditioning,
    online_gradient_descent,
    softmax_gradient_descent,
)
from mesascope.identification import candidates, identify
from mesascope.language import TextWindows
from mesascope.language.shards import INDEX, SPLITS, TOKENIZER, Index, ShardWriter, Split
from mesascope.learners import (
    Averaging,
    BayesPool,
    Centred,
    ChebyshevLeastSquares,
    Clipped,
    ConjugateGradients,
    Constant,
    DeltaRule,
    ElasticNet,
    GradientDescent,
    GradientDescentPlusPlus,
    KernelGradientDescent,
    KernelRidge,
    KernelSmoother,
    LabelCopying,
    Lasso,
    LastLabel,
    LeastSquares,
    Mean,
    Momentum,
    Muon,
    NearestNeighbours,
    NeumannLeastSquares,
    Newton,
    NormalisedDescent,
    OnFeatures,
    OnlineGradientDescent,
    PairSums,
    PreconditionedGradientDescent,
    PrincipalComponents,
    RecursiveLeastSquares,
    Standardised,
    Summed,
    Titans,
    WithIntercept,
    Zero,
    squares,
)
from mesascope.lenses import (
    agreement,
    alignment,
    attention_maps,
    compare,
    element_sensitivity,
    errors_by_time,
    interpolate,
    measure_predictors,
    measure_together,
    per_task_errors,
    probe,
    rescaled_products,
    reverse_engineer,
    rollout,
    step_sizes,
    sweep,
    token_sensitivity,
    trajectory_errors,
    weights,
)
from mesascope.meta import (
    GEM,
    MER,
    ContinualMAML,
    ExperienceReplay,
    LaMAML,
    MetaLearnerConfig,
    OnlineDescent,
    OnlineSGD,
    SparseLaMAML,
    Sync,
)
from mesascope.nets import (
    Alternating,
    AttentionConfig,
    CausalTransformerConfig,
    ClassifierConfig,
    Concatenated,
    EmbeddedDescentConfig,
    EmbeddingConfig,
    InContextRegressorConfig,
    LanguageModelConfig,
    PromptedConfig,
    SequencePredictorConfig,
    TokenMLP,
    TransformerConfig,
    WithQuery,
)
from mesascope.records import facts, registered
from mesascope.streams import stream
from mesascope.tasks import (
    AssociativeRecall,
    Automata,
    Copying,
    FewShotImages,
    FewShotSequence,
    LinearDynamics,
    LinearRegression,
    NonlinearDynamics,
    ObservedDynamics,
    PermutedDigits,
    RealTable,
    RegressionProblem,
    RotatedDigits,
    SineWaves,
)

__all__ = ["EXAMPLES", "examples"]

# Learners meet contexts of ten pairs of three inputs and one target; predictors sequences of 12 elements of three
# entries of order 1. Nets, layouts and attention are given by their configs. Constructions are built for the sizes
# (d_in, d_out, n_context, steps, w0), those of predictors for (d, steps, w0); those that start from zero weights take
# no notice of w0. Lenses look at one learner and episodes of `_TASKS`.
_TASKS = LinearRegression(n_context=10, d_in=3)


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
        "linear-regression": [LinearRegression],
        "few-shot-images": [lambda: FewShotImages(ways=2, queries=2)],
        "rotated-digits": [lambda: RotatedDigits(samples=5, queries=3)],
        "permuted-digits": [lambda: PermutedDigits(samples=5, queries=3)],
        "real-table": [lambda: RealTable(n_context=4)],
        "regression-problem": [
            RegressionProblem,
            *(
                lambda name=name: RegressionProblem(name, 3, authors=True)
                for name in ("regression_ni33", "transformer1")
            ),
            *(lambda name=name: RegressionProblem(name, 3) for name in ("friedman3", "character_regression1")),
        ],
        "sine-waves": [SineWaves, lambda: SineWaves(tied=True)],
        "associative-recall": [AssociativeRecall],
        "copying": [Copying],
        "automata": [Automata],
        "text-windows": [lambda: TextWindows(_corpus().name, 8)],
        "few-shot-sequence": [lambda: FewShotSequence(d=3, pairs=2, tasks=2)],
        "linear-dynamics": [LinearDynamics],
        "nonlinear-dynamics": [lambda: NonlinearDynamics(d=3, length=5)],
        "observed-dynamics": [lambda: ObservedDynamics(d=2, hidden=4, length=5)],
    },
    "learner": {
        "gradient-descent": [lambda: GradientDescent(steps=3, eta=0.3)],
        "gradient-descent-plus-plus": [lambda: GradientDescentPlusPlus(steps=3, eta=0.3, gamma=0.01)],
        "preconditioned-gradient-descent": [
            lambda: PreconditionedGradientDescent(torch.diag(torch.tensor([0.3, 0.4, 0.5])))
        ],
        "newton": [lambda: Newton(steps=5)],
        "least-squares": [LeastSquares, lambda: LeastSquares(ridge=0.1)],
        "lasso": [lambda: Lasso(alpha=0.05)],
        "kernel-smoother": [KernelSmoother],
        "kernel-ridge": [
            KernelRidge,
            lambda: KernelRidge("laplace", ridge=0.1),
            lambda: KernelRidge("cubic", ridge=0.1),
        ],
        "kernel-gradient-descent": [lambda: KernelGradientDescent(torch.tanh, steps=3, eta=0.3)],
        "nearest-neighbours": [NearestNeighbours, lambda: NearestNeighbours(2, "manhattan", "distance")],
        "bayes-pool": [lambda: BayesPool(torch.eye(3).unsqueeze(1), noise=0.5)],
        "centred": [lambda: Centred(GradientDescent(steps=3, eta=0.3))],
        "with-intercept": [lambda: WithIntercept(LeastSquares(ridge=0.1))],
        "summed": [lambda: Summed(GradientDescent(steps=3, eta=0.3), pairs=5)],
        "standardised": [lambda: Standardised(LeastSquares(ridge=0.1))],
        "clipped": [lambda: Clipped(LeastSquares(ridge=0.1))],
        "on-features": [lambda: OnFeatures(LeastSquares(ridge=0.1), squares)],
        "label-copying": [lambda: LabelCopying(LeastSquares(ridge=0.1))],
        "momentum": [lambda: Momentum(4, 0.3, 0.5), lambda: Momentum(4, 0.3, 0.5, nesterov=True)],
        "normalised-descent": [lambda: NormalisedDescent(steps=3, eta=0.3)],
        "muon": [lambda: Muon(steps=3, eta=0.3)],
        "delta-rule": [lambda: DeltaRule(eta=0.3, forget=0.9)],
        "titans": [lambda: Titans(eta=0.3, momentum=0.5, forget=0.9)],
        "conjugate-gradients": [lambda: ConjugateGradients(steps=2)],
        "principal-components": [lambda: PrincipalComponents(count=2)],
        "elastic-net": [lambda: ElasticNet(alpha=0.05, share=0.5)],
        "constant": [lambda: Constant(0.5)],
        "last-label": [LastLabel],
        "averaging": [Averaging],
        "mean": [Mean],
        "zero": [Zero],
    },
    "predictor": {
        "online-gradient-descent": [lambda: OnlineGradientDescent(steps=3, eta=0.03)],
        "pair-sums": [lambda: PairSums((0.01, 0.0, 0.05, -0.02), (0.0, 0.01, 0.0, 0.0))],
        "recursive-least-squares": [
            lambda: RecursiveLeastSquares(ridge=0.1),
            lambda: RecursiveLeastSquares(ridge=0.1, forget=0.9),
        ],
        "neumann-least-squares": [lambda: NeumannLeastSquares(terms=20, bound=100.0)],
        "chebyshev-least-squares": [lambda: ChebyshevLeastSquares.inverse(terms=10, bound=100.0)],
    },
    "construction": {
        "gradient-descent": [lambda d_in, d_out, n, steps, w0: gradient_descent(d_in, d_out, 0.4, n, steps, w0)],
        "gradient-descent-plus-plus": [
            lambda d_in, d_out, n, steps, w0: gradient_descent_plus_plus(
                d_in, d_out, [0.4 / (k + 1) for k in range(steps)], 0.02 / n, n, steps, w0
            )
        ],
        "kernel-gradient-descent": [
            lambda d_in, d_out, n, steps, w0: kernel_gradient_descent(
                TokenMLP(d_in, 3 * d_in, 1.0, stream(0, "init")), d_out, 0.1, n, steps
            )
        ],
        "copy-tokens": [
            lambda d_in, d_out, n, steps, w0: copy_tokens(d_in, d_out, 0.4, n, steps),
            lambda d_in, d_out, n, steps, w0: copy_tokens(d_in, d_out, 0.4, n, steps, "softmax"),
        ],
        # equals its algorithm only in the limit of a small scale
        "softmax-gradient-descent": [
            lambda d_in, d_out, n, steps, w0: softmax_gradient_descent(d_in, d_out, 0.4, steps, scale=1e-4)
        ],
        "mesa-gradient-descent": [lambda d, steps, w0: mesa_gradient_descent(d, 0.03, w0)],
        "online-gradient-descent": [
            lambda d, steps, w0: online_gradient_descent(d, [0.03 / (k + 1) for k in range(steps)], steps, w0)
        ],
        # of orthogonal dynamics, where |s_t|^2 is near d
        "neumann-preconditioning": [lambda d, steps, w0: neumann_preconditioning(d, steps, bound=60.0 * d)],
        "mesa-least-squares": [lambda d, steps, w0: mesa_least_squares(d, 0.5)],
    },
    "net": {
        "in-context-regressor": [
            lambda: InContextRegressorConfig(TransformerConfig(4, n_layers=2, shared=True, token_clip=3.0)),
            lambda: InContextRegressorConfig(
                TransformerConfig(13, 2, attention=("softmax", "linear"), mlp=2, layer_norm=(False, True)),
                Alternating(),
            ),
            lambda: InContextRegressorConfig(TransformerConfig(6, n_heads=2), embedding=EmbeddingConfig(4, 6, 2, 0.5)),
        ],
        "sequence-predictor": [
            lambda: SequencePredictorConfig(
                CausalTransformerConfig(AttentionConfig(8, 2, positions=4), 2, ("softmax", "mesa"), mlp=2), d=3
            ),
            lambda: SequencePredictorConfig(
                CausalTransformerConfig(AttentionConfig(9, key_size=3)), d=3, channels=("blank", "now", "before")
            ),
        ],
        "prompted": [
            lambda: PromptedConfig(
                SequencePredictorConfig(CausalTransformerConfig(AttentionConfig(8, 2, positions=4)), d=3), 2, True
            ),
        ],
        "language-model": [
            lambda: LanguageModelConfig(
                CausalTransformerConfig(AttentionConfig(8, 2), 2, ("softmax", "linear"), mlp=2, layer_norm=True), 12, 9
            ),
            lambda: LanguageModelConfig(
                CausalTransformerConfig(
                    (AttentionConfig(8, rotary=True), AttentionConfig(8, dpfp=2)),
                    2,
                    ("softmax", "mesa"),
                ),
                12,
                9,
                places="none",
                tied=True,
            ),
        ],
        "embedded-descent": [lambda: EmbeddedDescentConfig(EmbeddingConfig(4, 8), steps=2, eta=(0.1, 0.2))],
        "classifier": [
            lambda: ClassifierConfig("mlp", width=8, size=6, classes=3),
            lambda: ClassifierConfig("convnet4", width=4, size=9, classes=3),
            lambda: ClassifierConfig("resnet12", width=2, in_channels=3, size=6, classes=2),
        ],
        "meta-learner": [
            lambda: MetaLearnerConfig(
                ClassifierConfig("mlp", width=8, in_channels=3, size=1, classes=1), loss="mean-squares"
            )
        ],
    },
    "method": {
        "online-sgd": [lambda: OnlineSGD(0.3)],
        "experience-replay": [lambda: ExperienceReplay(0.3)],
        "gem": [lambda: GEM(0.3)],
        "mer": [lambda: MER(0.1, within=0.3, memory=20, replay=2, batches=1)],
        "la-maml": [lambda: LaMAML(rate=0.3, glances=2)],
        "sync": [lambda: Sync(outer_rate=0.3, glances=2)],
        "online-descent": [lambda: OnlineDescent(ClassifierConfig("mlp", 16, size=8, classes=4))],
        "continual-maml": [
            lambda: ContinualMAML(
                MetaLearnerConfig(ClassifierConfig("mlp", 16, size=8, classes=4), inner_lr=0.5), threshold=0.5
            )
        ],
        "sparse-la-maml": [lambda: SparseLaMAML(rate=0.3, glances=2)],
    },
    "layout": {
        "concatenated": [Concatenated],
        "with-query": [WithQuery],
        "alternating": [Alternating, lambda: Alternating("one-hot", size=22, start=True)],
    },
    "attention": {
        "softmax": [lambda: AttentionConfig(8, 2, window=4)],
        "linear": [lambda: AttentionConfig(8, 2, forget=True)],
        "delta": [lambda: AttentionConfig(8, 2, convolution=3)],
        "mesa": [lambda: AttentionConfig(8, 2, ridge=0.5, output_norm=True)],
    },
    "lens": {
        "per_task_errors": [per_task_errors],
        "agreement": [lambda learner, episodes: agreement(learner, learner, episodes)],
        "alignment": [lambda learner, episodes: alignment(learner, learner, episodes)],
        "compare": [lambda learner, episodes: compare(learner, {"same": learner}, _TASKS, tasks=len(episodes.xq))],
        "measure_together": [lambda learner, episodes: measure_together({"a": [learner]}, ["a"], episodes)],
        "sweep": [
            lambda learner, episodes: sweep({"a": learner}, _TASKS, {"noise": [0.0, 1.0]}, tasks=len(episodes.xq))
        ],
        "weights": [lambda learner, episodes: weights(learner)],
        "rescaled_products": [lambda learner, episodes: rescaled_products(learner)],
        "step_sizes": [lambda learner, episodes: step_sizes(learner, 10)],
        "interpolate": [lambda learner, episodes: interpolate(learner, learner)],
        "token_sensitivity": [token_sensitivity],
        "rollout": [lambda learner, episodes: rollout(learner, 3)],
        "trajectory_errors": [trajectory_errors],
        "measure_predictors": [lambda learner, sequences: measure_predictors({"a": [learner]}, ["a"], sequences)],
        "errors_by_time": [lambda learner, sequences: errors_by_time({"a": [learner]}, sequences)],
        "probe": [lambda learner, sequences: probe({"a": [learner]}, sequences, "implicit")],
        "element_sensitivity": [element_sensitivity],
        "attention_maps": [attention_maps],
        "identify": [lambda learner, episodes: identify(learner, _TASKS, candidates(sklearn=False)[:2], budget=300)],
        "reverse_engineer": [lambda learner, sequences: reverse_engineer(learner, keep=6)],
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
            raise AssertionError(f"{kind} {name!r} must have an example in mesascope.testing.examples.")
    picked = [name for name in own if said.items() <= facts(kind, name).items()]
    return [(name, builder) for name in picked for builder in own[name]]

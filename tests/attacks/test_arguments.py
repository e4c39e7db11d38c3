"""Wrong arguments to every public callable: each ends in one sentence that names the argument.

A grid puts each wrong value of a kind in the place of ``@``; the name that the sentence must hold stands before ``=@``,
or after the bar. A single attack is a line with what its sentence says. Right results stand at the end. Fields whose
types declare their range are in `test_ranges.py`.
"""

import itertools
import math
import re
import warnings

import numpy as np
import pytest
import torch
from cases import in_turn
from sentences import one_sentence

import mesascope
from mesascope import constructions, learners, lenses, meta, nets, ops, tasks, testing, training
from mesascope.adapters import AsLearner, AsPredictor, from_sklearn
from mesascope.errors import MesascopeError
from mesascope.streams import stream

NAMES = {
    name: getattr(package, name)
    for package in (tasks, learners, nets, constructions, training, meta, lenses, testing, ops)
    for name in dir(package)
    if not name.startswith("_")
}
PAIRS = tasks.LinearRegression(n_context=5, d_in=2)
DYNAMICS = tasks.LinearDynamics(d=3, length=8)
GENERATOR = stream(0, "attacks")
EPISODE, SEQUENCES = PAIRS.sample(6, GENERATOR), DYNAMICS.sample(6, GENERATOR)
HEADS = nets.AttentionConfig(8, 2)
CONFIG = nets.InContextRegressorConfig(nets.TransformerConfig(3, init_scale=0.1))


class Free(torch.nn.Module):
    """A learner with one parameter that answers in any shape it is told to."""

    def __init__(self, shape=lambda xq: xq[..., :1]):
        super().__init__()
        self.weight, self.shape = torch.nn.Parameter(torch.ones(())), shape

    def forward(self, context, xq):
        return self.weight * self.shape(xq)


class Linears(torch.nn.Module):
    """A layer of torch's own, of one dtype."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, context, xq):
        return self.layer(xq)


class Narrow(torch.nn.Module):
    """A module with parts, built for another width than that of the tasks."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(7, 1)

    def forward(self, context, xq):
        return self.layer(xq)


class Odd:
    """A family that draws something else than it is asked for."""

    def __init__(self, change):
        self.change = change

    def sample(self, batch, generator):
        return self.change(PAIRS, batch, generator)


NAMES |= {
    "math": math, "np": np, "torch": torch, "stream": stream, "mesascope": mesascope, "Free": Free, "Linears": Linears,
    "Narrow": Narrow,
    "Odd": Odd,
    "AsLearner": AsLearner, "AsPredictor": AsPredictor, "from_sklearn": from_sklearn,
    "Measurement": mesascope.Measurement,
    "pairs": PAIRS, "dynamics": DYNAMICS, "g": GENERATOR, "ep": EPISODE, "sq": SEQUENCES, "heads": HEADS,
    "numbers": tuple(part.numpy() for part in EPISODE.context),
    "config": CONFIG, "net": CONFIG.build(GENERATOR), "gd": learners.GradientDescent(1, 1.0),
    "predictor": learners.OnlineGradientDescent(1, 0.1), "plan": training.Training(steps=2, batch=4),
    "wide": nets.InContextRegressorConfig(nets.TransformerConfig(4, init_scale=0.1)).build(GENERATOR),
    "deep": nets.InContextRegressorConfig(nets.TransformerConfig(3, n_layers=2, init_scale=0.1)).build(GENERATOR),
    "soft": nets.InContextRegressorConfig(nets.TransformerConfig(3, attention="softmax")).build(GENERATOR),
    "qkv": torch.ones(2, 1, 2, 4, 3), "steps": torch.arange(4),
    "half": EPISODE.to(torch.float16), "nan": math.nan, "inf": math.inf,
}  # fmt: skip

# Wrong values of each kind, and where they are put. A place that takes None, too, ends with a question mark.
GRIDS = {
    "count": (
        "None 'a' 1.5 nan inf -1 True [3] 3j",
        """
        LinearRegression(pool=3).seeded(seed=@)
        FewShotImages().sample(batch=@, generator=g)
        MAML(0.1, steps=@)
        pairs.sample(batch=@, generator=g)
        dynamics.sample(batch=@, generator=g)
        SineWaves().sample(batch=@, generator=g)
        stream(seed=@, name='a')
        stream(0, 'a', step=@)
        GradientDescent(steps=@, eta=1.0)
        GradientDescentPlusPlus(steps=@, eta=1.0, gamma=0.1)
        KernelGradientDescent(torch.tanh, steps=@, eta=1.0)
        PreconditionedGradientDescent(torch.eye(2), steps=@)
        Newton(steps=@)
        NearestNeighbours(k=@)
        OnlineGradientDescent(steps=@, eta=0.1)
        NeumannLeastSquares(terms=@, bound=9.0)
        ChebyshevLeastSquares.inverse(terms=@, bound=9.0)
        gram_spectra(pairs, contexts=@, generator=g)
        tune(gd, pairs, tasks=@)
        tune(gd, pairs, tasks=20, seed=@)
        tune_spectral(gd, pairs, contexts=@)
        tune_spectral(gd, pairs, contexts=20, seed=@)
        gradient_descent(d_in=@, d_out=1, eta=1.0, n_context=5)
        gradient_descent(2, d_out=@, eta=1.0, n_context=5)
        gradient_descent(2, 1, 1.0, n_context=@)
        gradient_descent(2, 1, 1.0, 5, steps=@)
        gradient_descent_plus_plus(2, 1, 1.0, 0.1, n_context=@)
        kernel_gradient_descent(TokenMLP(2, 4, 1.0, g), d_out=@, eta=1.0, n_context=5)
        copy_tokens(2, 1, 1.0, n_context=@)
        softmax_gradient_descent(d_in=@, d_out=1, eta=1.0)
        softmax_gradient_descent(2, 1, 1.0, steps=@)
        mesa_gradient_descent(d=@, eta=1.0)
        online_gradient_descent(2, 1.0, steps=@)
        neumann_preconditioning(2, terms=@, bound=9.0)
        mesa_least_squares(d=@, ridge=1.0)
        ModuleState(net, half_mse, plan, accumulate=@)
        compare(gd, {'a': gd}, pairs, tasks=@)
        compare(gd, {'a': gd}, pairs, tasks=9, seed=@)
        sweep({'a': gd}, pairs, {'noise': [0.1]}, tasks=@)
        sweep({'a': gd}, pairs, {'noise': [0.1]}, tasks=9, seed=@)
        rollout(gd, steps=@)
        step_sizes(net, n_context=@)
        token_sensitivity(net, ep, layer=@)
        TokenMLP(2, 4, 1.0, g) and NearestNeighbours(k=@)
        """,
    ),
    "number": (
        "None 'a' nan inf -inf True [] 3j",
        """
        MAML(inner_lr=@, steps=1)
        GradientDescent(1, eta=@)
        GradientDescent(1, eta=1.0, token_clip=@)?
        GradientDescentPlusPlus(1, 1.0, gamma=@)
        KernelGradientDescent(torch.tanh, 1, eta=@)
        KernelSmoother(bandwidth=@)
        LeastSquares(ridge=@)
        Lasso(alpha=@)
        BayesPool([[[1.0]]], noise=@)
        OnlineGradientDescent(1, eta=@)
        RecursiveLeastSquares(ridge=@)
        RecursiveLeastSquares(1.0, forget=@)
        NeumannLeastSquares(2, bound=@)
        NeumannLeastSquares(2, 9.0, ridge=@)
        ChebyshevLeastSquares([1.0, @], 9.0) | coefficients
        ChebyshevLeastSquares.inverse(2, bound=@)
        gradient_descent(2, 1, eta=@, n_context=5)
        gradient_descent_plus_plus(2, 1, 1.0, gamma=@, n_context=5)
        softmax_gradient_descent(2, 1, eta=@)
        softmax_gradient_descent(2, 1, 1.0, scale=@)
        mesa_gradient_descent(2, eta=@)
        neumann_preconditioning(2, 3, bound=@)
        mesa_least_squares(2, ridge=@)
        rollout(gd, 2, damping=@)
        interpolate(net, net, t=@)
        """,
    ),
    "flag": (
        "None 'no' 1 0.0 []",
        """
        TransformerConfig(3, layer_norm=@)
        CausalTransformerConfig(heads, layer_norm=@)
        """,
    ),
    "start": (
        "'a' 0 stream",
        """
        config.build(generator=@)
        SequencePredictorConfig(CausalTransformerConfig(heads), 3).build(generator=@)
        EmbeddedDescentConfig(EmbeddingConfig(4, 8), 2, (0.1, 0.2)).build(generator=@)
        TokenMLP(2, 4, 1.0, generator=@)
        """,
    ),
    "generator": (
        "None 'a' 0 stream",
        """
        pairs.sample(3, generator=@)
        dynamics.sample(3, generator=@)
        SineWaves().sample(3, generator=@)
        LinearRegression(pool=4).sample(3, generator=@)
        gram_spectra(pairs, 3, generator=@)
        """,
    ),
    "family": (
        "None 'a' 5 LinearRegression [] gd",
        """
        compare(gd, {'a': gd}, family=@)
        sweep({'a': gd}, family=@, over={'noise': [0.1]})
        tune(gd, family=@)
        tune_spectral(gd, family=@)
        train(config.build, family=@, training=plan)
        one_step_optimum(family=@)
        gram_spectra(family=@, contexts=3, generator=g)
        spectral_mse(torch.ones(3, 2), gd, family=@)
        """,
    ),
    "learner": (
        "None 'a' 5 []",
        """
        compare(learner=@, others={'a': gd}, family=pairs)
        compare(gd, {'a': @}, pairs) | learner
        agreement(a=@, b=gd, tasks=ep) | learner
        agreement(gd, @, ep) | learner
        alignment(@, gd, ep) | learner
        alignment(gd, @, ep) | learner
        per_task_errors(learner=@, tasks=ep)
        measure_learners({'a': [@]}, ['a'], ep) | learner
        trajectory_errors(learner=@, episodes=ep)
        rollout(learner=@, steps=3)
        token_sensitivity(@, ep) | network
        weights(@) | network
        rescaled_products(@) | network
        step_sizes(@, 5) | network
        interpolate(@, net) | network
        interpolate(net, @) | network
        tune(learner=@, family=pairs)
        tune_spectral(learner=@, family=pairs)
        spectral_mse(torch.ones(3, 2), learner=@, family=pairs)
        half_mse(@, ep) | learner
        Centred(learner=@)
        AsLearner(predictor=@)
        AsPredictor(learner=@)
        KernelGradientDescent(features=@, steps=1, eta=1.0)
        from_sklearn(estimator=@)
        train(make=@, family=pairs)
        train(lambda generator: @, pairs, plan) | make
        Ensemble(members=[@]) | members
        Ensemble(members=@)
        EnsembleState(@, half_mse, plan) | members
        ModuleState(module=@, loss=half_mse, plan=plan)
        """,
    ),
    "tasks": (
        "None 'a' 5 pairs ep.context sq.long() ep.part(0,0) sq[:0] sq[:,:1] sq[0]",
        """
        per_task_errors(gd, tasks=@) | must
        agreement(gd, gd, tasks=@) | must
        alignment(gd, gd, episodes=@) | must
        measure_learners({'a': [gd]}, ['a'], episodes=@) | must
        trajectory_errors(gd, episodes=@) | must
        token_sensitivity(net, episodes=@) | must
        """,
    ),
    "context": (
        "None 'a' 5 ep tuple(ep.context) list(ep.context) sq Context(1,2) Context(*numbers)",
        """
        gd(@, ep.xq) | context
        net(@, ep.xq) | context
        LeastSquares(0.1)(@, ep.xq) | context
        Lasso(0.1)(@, ep.xq) | context
        Newton(2)(@, ep.xq) | context
        KernelSmoother()(@, ep.xq) | context
        NearestNeighbours()(@, ep.xq) | context
        Mean()(@, ep.xq) | context
        Zero()(@, ep.xq) | context
        Averaging()(@, ep.xq) | context
        Centred(gd)(@, ep.xq) | context
        KernelGradientDescent(torch.tanh, 1, 1.0)(@, ep.xq) | context
        PreconditionedGradientDescent(torch.eye(2))(@, ep.xq) | context
        BayesPool([[[1.0, 2.0]]], 1.0)(@, ep.xq) | context
        AsLearner(lambda s: s)(@, ep.xq) | context
        gd.trajectory(@, ep.xq) | context
        check_inputs(@, ep.xq) | context
        check_episode(Episode(@, ep.xq, ep.yq)) | context
        """,
    ),
    "queries": (
        "None 'a' 5 ep.xq.numpy() ep.xq.long() ep.xq.double() ep.xq[...,:1] ep.xq[0] ep.xq[:2] ep.context",
        """
        gd(ep.context, @) | xq
        net(ep.context, @) | xq
        LeastSquares()(ep.context, @) | xq
        KernelSmoother()(ep.context, @) | xq
        Mean()(ep.context, @) | xq
        check_inputs(ep.context, xq=@)
        """,
    ),
    "sequence": (
        "None 'a' 5 [1.0,2.0] sq.numpy() sq.long() sq[0,0] ep sq*nan",
        """
        predictor(@) | sequence
        RecursiveLeastSquares(1.0)(@) | sequence
        NeumannLeastSquares(2, 99.0)(@) | sequence
        ChebyshevLeastSquares.inverse(2, 99.0)(@) | sequence
        """,
    ),
    "matrix": (
        "'a' 5 [] [1.0] [[1.0],[1.0,2.0]] [[nan,1.0]] torch.full((1,2),inf) torch.ones(1,2).long() [[None,1.0]]",
        """
        GradientDescent(1, 1.0, w0=@)
        GradientDescentPlusPlus(1, 1.0, 0.1, w0=@)
        OnlineGradientDescent(1, 1.0, w0=@)
        PreconditionedGradientDescent(matrix=@)
        BayesPool(weights=@, noise=1.0)
        gradient_descent(2, 1, 1.0, 5, w0=@)
        gradient_descent_plus_plus(2, 1, 1.0, 0.1, 5, w0=@)
        mesa_gradient_descent(2, 1.0, w0=@)
        online_gradient_descent(2, 1.0, 2, w0=@)
        LinearRegression(d_in=2, covariance=@)
        """,
    ),
    "attention": (
        "None 'a' 5 [1.0] torch.ones(4) torch.ones(1,2,4,3).long() qkv[0]*1j",
        """
        linear_attention(q=@, k=qkv[0], v=qkv[0])
        linear_attention(qkv[0], @, qkv[0]) | k
        linear_attention(qkv[0], qkv[0], @) | v
        softmax_attention(qkv[0], qkv[0], v=@)
        causal_softmax_attention(@, qkv[0], qkv[0]) | q
        causal_linear_attention(qkv[0], @, qkv[0]) | k
        delta_attention(qkv[0], qkv[0], @) | v
        mesa_attention(@, qkv[0], qkv[0], ridge=1.0) | q
        mesa_attention_reference(qkv[0], @, qkv[0], ridge=1.0) | k
        mesa_recursion(qkv[0], qkv[0], @, ridge=1.0) | v
        mesa_neumann(@, qkv[0], qkv[0], ridge=1.0) | q
        mesa_state(@, qkv[0], ridge=1.0) | k
        mesa_state(qkv[0], @, ridge=1.0) | v
        mesa_step(@, qkv[0, :, :, 0], qkv[0, :, :, 0], None, ridge=1.0) | q
        mesa_step(qkv[0, :, :, 0], qkv[0, :, :, 0], @, None, ridge=1.0) | v
        mesa_attention(*qkv, qkv[0], ridge=[@]) | ridge
        mesa_attention(*qkv, qkv[0], ridge=1.0, beta=@)?
        mesa_step(*qkv[:, :, :, 0], qkv[0, :, :, 0], None, ridge=1.0, log_forget=@)?
        causal_linear_attention(*qkv, qkv[0], beta=@)?
        causal_softmax_attention(*qkv, qkv[0], log_forget=@)?
        """,
    ),
    "state": (
        "'a' 5 [] MesaState(None,None) SoftmaxState(None,None,None) LinearState(None) DeltaState('a')",
        """
        mesa_attention(*qkv, qkv[0], ridge=1.0, state=@)
        mesa_state(*qkv, ridge=1.0, state=@)
        causal_softmax_attention(*qkv, qkv[0], state=@)
        causal_linear_attention(*qkv, qkv[0], state=@)
        delta_attention(*qkv, qkv[0], state=@)
        """,
    ),
    "positions": (
        "None 'a' 5 [1.0]",
        """
        sinusoidal(positions=@, size=4)
        rotated(vectors=@, times=steps)
        rotated(qkv[0, ..., :2], times=@)
        dpfp(x=@, nu=1)
        """,
    ),
    "device": (
        "'gpu' 7 'cuda:99' [] 'cpu:x'",
        """
        stream(0, 'a', device=@)
        compare(gd, {'a': gd}, pairs, tasks=9, device=@)
        sweep({'a': gd}, pairs, {'noise': [0.1]}, tasks=9, device=@)
        train(config.build, pairs, plan, device=@)
        Ensemble([net]).to(device=@)
        """,
    ),
    "seeds": (
        "None 3 'ab' [0.5] [] [0,0] [-1] [None] ['a']",
        """
        train(config.build, pairs, plan, seeds=@)
        """,
    ),
    "choice": (
        "None 'unifrom' 3 [] True",
        """
        KernelSmoother(kernel=@)
        copy_tokens(2, 1, 1.0, 5, attention=@)
        TransformerConfig(3, attention=@)
        CausalTransformerConfig(heads, attention=@)
        schedule_factor(schedule=@, step=1, steps=2)
        """,
    ),
    "callable": (
        "5 'a' [] pairs",
        """
        train(config.build, pairs, plan, observe=@)
        train(config.build, pairs, plan, evaluate=@)
        fit(ModuleState(net, half_mse, plan), batch_at=@, plan=plan)
        fit(ModuleState(net, half_mse, plan), lambda step: ep, plan, evaluate=@)
        fit(ModuleState(net, half_mse, plan), lambda step: ep, plan, observe=@)
        ModuleState(net, loss=@, plan=plan)
        EnsembleState([net], loss=@, plan=plan)
        """,
    ),
    "plan": (
        "5 'a' {'steps':3} Training",
        """
        train(config.build, pairs, training=@)
        fit(ModuleState(net, half_mse, plan), lambda step: ep, plan=@)
        ModuleState(net, half_mse, plan=@)
        EnsembleState([net], half_mse, plan=@)
        """,
    ),
    "names": (
        "None 'a' 5 {} [gd]",
        """
        compare(gd, others=@, family=pairs)
        sweep(learners=@, family=pairs, over={'noise': [0.1]})
        sweep({'a': gd}, pairs, over=@)
        measure_learners(groups=@, against=[], episodes=ep)
        """,
    ),
}

# A call, and what its sentence says.
SINGLE = """
compare(gd, {'a': gd}, dynamics) | must take what the family draws, here (sequence), but GradientDescent
compare(predictor, {'a': predictor}, pairs) | here (context, xq), but OnlineGradientDescent(steps=1, eta=0.1) does not
compare(predictor, {'a': predictor}, pairs) | write it to take (context, xq), or choose a family of sequences.
compare(lambda c, xq, more: xq, {'a': gd}, pairs) | write it to take (context, xq), or pass from_numpy(it) if it
compare(lambda: None, {'a': predictor}, dynamics) | but <lambda> does not: write it to take (sequence).
compare(Zero, {'a': gd}, pairs) | a learner must be an instance, but is the class Zero: pass Zero()
compare(gd, {'a': GradientDescent}, pairs) | a learner must be an instance, but is the class GradientDescent: pass Gra
compare(Narrow(), {'a': gd}, pairs, tasks=9) | x (1, 5, 2), y (1, 5, 1), xq (1, 1, 2), but Narrow raised RuntimeErr
compare(gd, {'a': Narrow()}, pairs, tasks=9) | a learner must accept tasks of these shapes, x (
compare(gd, {'a': lambda c, xq: xq.view(7, 7)}, pairs, tasks=9) | <lambda> raised RuntimeError (shape '[7, 7]' is inval
compare(gd, {'a': lambda c, xq: xq.sum(5)}, pairs, tasks=9) | <lambda> raised IndexError (Dimension out of range
compare(predictor, {'a': lambda s: s.view(7, 7)}, dynamics, tasks=9) | sequence (9, 7, 3), but <lambda> raised
compare(gd, {'a': config.build(g).to('meta')}, pairs, tasks=9) | the network must be on a device that holds numbers
compare(gd, {'a': lambda c, xq: xq[..., :1].to('meta')}, pairs, tasks=9) | a learner must return numbers, but <lambda> c
train(lambda g: Narrow(), pairs, plan, seeds=[0, 1]) | but Narrow raised RuntimeError (
train(lambda g: Free(lambda xq: xq[..., 0]), pairs, plan) | return (*batch, m, dy), with dy the width of context.y, or
compare(gd, {3: gd}, pairs) | the name of a learner must be of type str
compare(gd, {'a': gd}, pairs, name=3) | name must be of type str
compare(Ensemble([net]), {'a': gd}, pairs) | is given an ensemble of 1: pass one of its members().
compare(gd, {'a': Ensemble([net])}, pairs) | is given an ensemble of 1: pass one of its members().
compare(gradient_descent(2, 1, 1.0, 5).network, {'a': gd}, pairs) | torch.float64
compare(config.build(g).half(), {'a': gd}, pairs) | torch.float16
compare(gd, {'a': gd}, Odd(lambda f, b, g: f.sample(b + 1, g))) | must draw as many tasks as it is asked for
compare(gd, {'a': gd}, Odd(lambda f, b, g: None)) | must draw an Episode or a tensor of sequences, but Odd drew
compare(gd, {'a': gd}, Odd(lambda f, b, g: tuple(f.sample(b, g)))) | must draw an Episode
compare(gd, {'a': gd}, Odd(lambda f, b, g: f.sample(b, g)._replace(yq=None))) | yq must be of type Tensor, but is None
compare(gd, {'a': gd}, Odd(lambda f, b, g: f.sample(b, g).map(lambda t: t * nan))) | must be finite, but
compare(gd, {'a': lambda c, xq: xq[..., 0]}, pairs) | predictions of the answers' shape (10000, 1, 1), but <lambda>
compare(gd, {'a': lambda c, xq: xq[..., :1].numpy()}, pairs, tasks=9) | must return a torch tensor, but <lambda>
compare(gd, {'a': lambda c, xq: None}, pairs, tasks=9) | must return a torch tensor, but <lambda> returned NoneType
compare(gd, {'a': lambda c, xq: xq[..., :1] * nan}, pairs, tasks=9) | predictions must be finite, but 9 of 9 by <lambda>
compare(gd, {'a': lambda c, xq: torch.empty(2**60)}, pairs, tasks=9) | must fit into memory, but <lambda> ran out of it
compare(gd, {'a': gd}, LinearRegression(n_context=2**50), tasks=9) | must fit into memory, but LinearRegression ran out
train(config.build, LinearRegression(n_context=2**50, d_in=2), plan) | must fit into memory
train(config, pairs, plan) | make must build a module from a torch.Generator, but is InContextRegressorConfig(
train(lambda: net, pairs, plan) | make must build a module from a torch.Generator
train(lambda g: net, pairs, plan, seeds=[0, 1]) | members must start from different weights
train(lambda g: gd, dynamics, plan) | must take what the family draws, here (sequence), but GradientDescent
train(lambda g: predictor, pairs, plan) | must take what the family draws, here (context, xq)
train(lambda g: Free(lambda xq: xq[..., 0]), pairs, plan) | the answers' shape (1, 4, 1, 1), but Free() returned (1, 4
train(lambda g: Free(lambda xq: xq), pairs, plan) | of the answers' shape (1, 4, 1, 1), but Free() returned (1, 4, 1, 2)
train(lambda g: config.build(g).double(), pairs, plan) | torch.float64
train(lambda g: torch.nn.Identity(), pairs, plan) | members must have parameters
train(lambda g: config.build(g).requires_grad_(False), pairs, plan) | must have parameters that require gradients
train(config.build, Odd(lambda f, b, g: f.sample(b + 1, g)), plan) | must draw as many tasks as it is asked for, 4
train(config.build, Odd(lambda f, b, g: f.sample(1, g)), plan) | must draw as many tasks as it is asked for, 4, but Odd
train(config.build, pairs, plan, checkpoints='path') | checkpoints must be of type Checkpoints
tune(Free(lambda xq: xq[..., 0]), pairs, tasks=9) | of the answers' shape (9, 1, 1)
tune(Mean(), pairs) | must have parameters to tune, but Mean() has none
tune(GradientDescent(0, 1.0), pairs) | must have parameters to tune
tune(gd, dynamics, tasks=20) | must take what the family draws
tune(predictor, pairs, tasks=20) | must take what the family draws, here (context, xq), but OnlineGradientDescent
tune(gd, Odd(lambda f, b, g: f.sample(b, g).map(lambda t: t * inf)), tasks=9) | must be finite
tune_spectral(GradientDescent(1, 1.0, w0=[[1.0, 2.0]]), pairs) | learner must start from zero weights
tune_spectral(gd, LinearRegression(x='mixture')) | family.x must be one of
one_step_optimum(LinearRegression(x='exponential')) | family.x must be one of
one_step_optimum(LinearRegression(d_in=1, covariance=[2.0])) | family.covariance must be None for a closed form
spectral_mse(None, gd, pairs) | spectra must be of type Tensor
sweep({'a': gd}, pairs, {'nois': [0.1]}) | did you mean 'noise'?
sweep({'a': gd}, pairs, {'noise': []}) | noise must have a non-empty list of values, but has []
sweep({'a': gd}, pairs, {'noise': 0.1}) | noise must have a non-empty list of values, but has 0.1
sweep({'a': gd}, pairs, {'noise': [-1.0]}) | noise must be at least 0
sweep({'a': []}, pairs, {'noise': [0.1]}) | a must be a non-empty list of learners, but is []
sweep({'a': Ensemble([net])}, pairs, {'noise': [0.1]}) | is given an ensemble of 1
sweep({'a': gd}, Odd(None), {'noise': [0.1]}) | family must be a dataclass to sweep its fields
measure_learners({'a': []}, [], ep) | a must be a non-empty list of learners, but is []
measure_learners({'a': gd}, ['a'], ep) | a must be a non-empty list of learners, but is GradientDescent
measure_learners({'a': Ensemble([net])}, [], ep) | but is Ensemble of 1: InContextRegressor: pass its members().
measure_learners({'a': [gd]}, 'a', ep) | against must be a list of names, but is 'a'
measure_learners({'a': [gd]}, ['b'], ep) | against must be one of 'a', but is 'b'.
measure_learners({'a': [gd] * 2, 'b': [gd] * 3}, ['b'], ep) | groups must have as many members
measure_learners({'a': [lambda c, xq: Mean()(c, xq.detach())]}, [], ep) | a learner that torch can differentiate by xq
alignment(gd, lambda c, xq: Mean()(c, xq.detach()), ep) | a learner that torch can differentiate by xq
agreement(gd, gd, sq) | must take what the family draws, here (sequence)
agreement(predictor, predictor, ep) | must take what the family draws, here (context, xq)
per_task_errors(lambda s: s[..., :1], sq) | of the answers' shape (6, 7, 3), but <lambda> returned (6, 7, 1)
trajectory_errors(Mean(), ep) | must be given a learner with a trajectory of predictions
rollout(Mean(), 3) | must be given a learner with repeated(steps, damping)
rollout(GradientDescent(2, [1.0, 2.0]), 3) | eta must be one number to repeat the step
rollout(GradientDescentPlusPlus(2, 1.0, [0.1, 0.2]), 3) | gamma must be one number to repeat the step
rollout(deep, 3) | must
interpolate(net, wide) | networks of one depth, width and number of heads
interpolate(net, deep) | networks of one depth, width and number of heads
interpolate(net, soft) | must be given linear attention networks
interpolate(net, gd) | must be given a network with products()
weights(net, wide) | construction must have the network's depth and width
weights(net, deep) | construction must have the network's depth and width
weights(net, gd) | must be given a network with products()
token_sensitivity(net, ep, layer=2) | layer must be at most the network's depth 1
token_sensitivity(gd, ep) | must be given a network with tokens
access_of(gd, None) | tasks must be an Episode or a tensor of sequences
Measurement.of(torch.tensor([])) | samples must have at least one number
Measurement.of([1.0, 2.0]) | samples must be of type Tensor
Measurement.of(None) | samples must be of type Tensor
Measurement.ratio(torch.ones(3), torch.ones(2)) | below must have shape (3,), but is (2,)
Measurement.ratio(torch.ones(3), torch.zeros(3)) | the mean of below must differ from 0
half_mse(gd, None) | sequence must be of type Tensor, but is None
half_mse(predictor, sq[:, :1]) | tasks must have sequences of at least 2 elements
half_mse(Free(lambda xq: xq[..., 0]), ep) | of the answers' shape (6, 1, 1)
Ensemble([]) | members must hold at least one module
Ensemble([net, gd]) | members must be of one architecture
Ensemble([net, wide]) | members must be of one architecture
Ensemble([net]).member(3) | index must be below the number of members, 1
Ensemble([net]).member('a') | index must be an integer
Ensemble([net])[1] | index must be below the number of members, 1, but is 1: count from 0.
Ensemble([net])[-2] | index must be at least -1, but is -2: pass a larger whole number.
Ensemble([net])[:1] | index must be an integer, but is slice(None, 1, None)
Ensemble([net])(ep.context, ep.xq) | inputs must have a first axis of 1, one per member, but is (6, 5, 2)
EnsembleState([net, net], half_mse, plan) | members must start from different weights
fit(None, lambda step: ep, plan) | state must be of type TrainingState
fit(ModuleState(Free(), lambda m, b: torch.ones(2), plan), lambda step: ep, plan) | loss must return one number
fit(ModuleState(Free(), lambda m, b: torch.ones(()), plan), lambda step: ep, plan) | loss must depend on the
fit(EnsembleState([Free()], lambda m, b: torch.ones(1), plan), lambda step: ep, plan) | loss must depend on the weights
fit(EnsembleState([Free()], lambda m, b: torch.ones(2), plan), lambda step: ep, plan) | loss must return one loss per
ModuleState(net, half_mse, plan, autocast='half') | autocast must be torch.float16, torch.bfloat16 or None
ModuleState(net, half_mse, plan, parameter_groups=['a']) | parameter_groups must be of type ParameterGroup
ModuleState(net, half_mse, plan, parameter_groups=[ParameterGroup(('x.*',))]) | parameter_groups must name parameters
ModuleState(torch.nn.Identity(), half_mse, plan) | must have parameters that require gradients
ParameterGroup(()) | names must have 1 or more entries, but is ()
Training(betas=(0.9, 1.0)) | betas must be less than 1
Training(momentum=0.9) | momentum must be 0 for adam
Training(steps=3, warmup_steps=4) | warmup_steps must be at most 3
GradientDescent(2, [1.0]) | eta must be one number or 2, one per step
GradientDescent(1, 1.0, w0=[[1.0, 2.0, 3.0]])(ep.context, ep.xq) | w0 must have shape (1, 2), but is (1, 3)
GradientDescent(1, 1.0, token_clip=0) | token_clip must be greater than 0
OnlineGradientDescent(1, 1.0, w0=[[1.0]])(sq) | w0 must have shape (3, 3), but is (1, 1)
OnlineGradientDescent(9, 1e30)(sq) | the iteration must stay finite, but diverged
NeumannLeastSquares(1, 0.5) | bound must be greater than ridge = 1
ChebyshevLeastSquares([], 9.0) | len(coefficients) must be at least 1
RecursiveLeastSquares(1.0, 2.0) | forget must be at most 1
PreconditionedGradientDescent(torch.ones(2, 3)) | matrix must be square, but is (2, 3)
PreconditionedGradientDescent(torch.eye(3))(ep.context, ep.xq) | context.x must have the matrix' width 3
BayesPool([[[1.0]]], 1.0)(ep.context, ep.xq) | context must have widths (dy, dx) = (1, 1)
Centred(Mean()).trajectory(ep.context, ep.xq) | learner must have a trajectory
KernelGradientDescent(lambda x: x[..., 0], 1, 1.0)(ep.context, ep.xq) | features(x) must have one row for each of x
KernelGradientDescent(lambda x: None, 1, 1.0)(ep.context, ep.xq) | features(x) must be of type Tensor
LeastSquares()(half.context, half.xq) | context must be of dtype float32 or float64 for this learner
LeastSquares(0.1)(half.context, half.xq) | context must be of dtype float32 or float64 for this learner
KernelSmoother()(half.context, half.xq) | context must be of dtype float32 or float64 for this learner
NearestNeighbours()(half.context, half.xq) | context must be of dtype float32 or float64 for this learner
gd(ep.context, ep.xq.to('meta')) | context and xq must be on one device, but x is on cpu, y on cpu and xq on meta
half_mse(config.build(g).double(), ep) | torch.float64
half_mse(Linears().double(), ep) | has weights of torch.float64: convert one of the two
AsLearner(lambda s: s[..., 0])(ep.context, ep.xq) | of the answers' shape
AsLearner(lambda s: 3)(ep.context, ep.xq) | must return a torch tensor, but <lambda> returned int
AsPredictor(lambda c, xq: 3)(sq) | must return a torch tensor, but <lambda> returned int
AsPredictor(lambda c, xq: xq[..., :1])(sq) | of the answers' shape (6, 1, 3), but <lambda> returned (6, 1, 1)
AsPredictor(gd)(None) | sequence must be of type Tensor
LinearRegression(covariance=[1.0]) | covariance must have shape (10, 10), but is (1, 1)
LinearRegression(covariance=[-1.0] * 10) | covariance must be symmetric and positive definite
LinearRegression(covariance=[1e200] * 10) | covariance must have finite entries of at most 1e30
SineWaves(amplitude=(1, 0)) | amplitude must be (low, high), but is (1, 0)
RealTable(n_context=442).sample(1, g) | n_context must be at most 441, as diabetes has 442 rows
stream(0, 3) | name must be of type str
gradient_descent(2, 1, [1.0], 5, steps=2) | eta must be one number or 2, one per step
gradient_descent(2, 1, 1.0, 5, w0=[[1.0, 2.0, 3.0]]) | w0 must have shape (1, 2), but is (1, 3)
gradient_descent(2, 1, 1.0, 5, w0=[[1.0, 2.0, 3.0]]) | pass w0 of shape (dy, dx)
kernel_gradient_descent(None, 1, 1.0, 5) | mlp must be of type TokenMLP, but is None
softmax_gradient_descent(2, 1, [1.0, 2.0]) | eta must be a number
mesa_gradient_descent(2, [1.0, 2.0]) | eta must be one number
mesa_gradient_descent(2, 1.0, w0=torch.ones(3, 3)) | w0 must have shape (2, 2), but is (3, 3)
neumann_preconditioning(2, 3, bound=0.5) | bound must be greater than ridge = 1
result_tensors(None) | tensors must be of type Mapping, but is None
result_tensors({}) | tensors must hold weights, but is []
Range(1, 0, 'linear') | low must be less than high = 0
Range(0, 1, 'log') | low must be greater than 0 on a log scale
ep.to('half') | device must be one that torch can use here, but is 'half'
from_sklearn(Free) | estimator must have the methods fit, predict and get_params
SequencePredictor(heads) | config must be of type SequencePredictorConfig
causal_linear_attention(*torch.ones(3, 4, 5)) | q must have shape
sinusoidal(steps, -2) | size must be at least 1
sinusoidal(steps, 2.5) | size must be an integer
causal_softmax_attention(*qkv, qkv[0], scale='a') | scale must be a number
causal_softmax_attention(*qkv, qkv[0], scale=nan) | scale must be finite
mesa_step(*torch.ones(3, 4), None, ridge=1.0) | q, k and v must be one token, (*batch, heads, d) each
mesa_state(qkv[0] * nan, qkv[0], ridge=1.0) | k must be finite
mesa_state(qkv[0, 0, 0], qkv[0, 0, 0], ridge=1.0) | k must have shape (*batch, heads, t, dk)
mesa_attention_reference(*qkv, qkv[0], ridge=1.0, cu_seqlens=torch.tensor([0, 4])) | cu_seqlens must be None
mesa_chebyshev(*qkv, qkv[0], ridge=1.0, cu_seqlens=[0, 4]) | cu_seqlens must be None
mesa_recursion(qkv[0], 1e25 * qkv[0], qkv[0], ridge=1.0) | outputs and states must be finite
mesa_attention_reference((100 * qkv[0]).half(), qkv[0].half(), (6e4 * qkv[0]).half(), ridge=1.0) | outputs and
softmax_gradient_descent(2, 1, 1.0, scale=1e-30) | scale must be at least 1e-06
LinearRegression(d_in=2, covariance=[nan, 1.0]) | replace what is no number
LinearRegression(d_in=2, covariance=[[1.0, 0.0], [0.0]]) | give its rows the same length
TransformerConfig(3, attention='Linear') | did you mean 'linear'
"""

# Calls that look like attacks, and their right results.
RIGHT = """
sorted(compare(gd, {'a': gd}, pairs, tasks=9, device='cpu').rows) == ['a']
tune(GradientDescent(1, 1e30), pairs, tasks=50).step_sizes['eta'][0].value < 10
tune(GradientDescent(1, 1e-300), pairs, tasks=50).step_sizes['eta'][0].value > 0.1
stream(np.int64(3), 'a', np.int32(1)).initial_seed() == stream(3, 'a', 1).initial_seed()
gd(half.context, half.xq).dtype == torch.float16
gd(Context(ep.context.x[:0], ep.context.y[:0]), ep.xq[:0]).shape == (0, 1, 1)
gd(Context(ep.context.x[:, :0], ep.context.y[:, :0]), ep.xq).eq(0).all()
gd(Context(*(part[0] for part in ep.context)), ep.xq[0]).shape == (1, 1)
gd(ep.context, ep.xq[:, :0]).shape == (6, 0, 1)
pairs.sample(0, g).xq.shape == (0, 1, 2)
dynamics.sample(0, g).shape == (0, 8, 3)
math.isnan(agreement(gd, gd, ep.part(0, 1)).mse_a.stderr)
[len(train(config.build, pairs, plan, seeds=seeds)) for seeds in (range(2), np.arange(2), (5,))] == [2, 2, 1]
len(train(config.build, pairs, plan, seeds=torch.arange(2))) == 2
train(config.build, pairs, plan, observe=lambda step, metrics: None).history[0]['step'] == 1
gradient_descent(2, 1, 1.0, 5, w0=[[1.0, 2.0]]).algorithm.w0.tolist() == [[1.0, 2.0]]
LinearRegression(d_in=2, covariance=np.eye(2)) == LinearRegression(d_in=2, covariance=torch.eye(2))
LinearRegression(pool=3).seeded(4).pool_seed == 4
NearestNeighbours(5)(ep.context, ep.xq).isfinite().all()
interpolate(net, net, 0.5)(ep.context, ep.xq).allclose(net(ep.context, ep.xq), atol=1e-5)
"""


def _lines(text):
    return [line.strip() for line in text.strip().splitlines()]


def _grid():
    for values, places in GRIDS.values():
        for place, value in itertools.product(_lines(places), values.split()):
            call, _, name = place.partition(" | ")
            optional = call.endswith("?")
            if not (optional and value == "None"):
                yield call.rstrip("?").replace("@", value), name or re.search(r"(\w+)=@", call)[1]


ATTACKS = [*_grid(), *(tuple(line.split(" | ")) for line in _lines(SINGLE))]


def evaluated(expression):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(expression, dict(NAMES))


@in_turn(("call", "said"), ATTACKS)
def test_a_wrong_argument_ends_in_one_sentence_that_names_it(call, said, unchecked):
    with pytest.raises(MesascopeError) as refusal:
        evaluated(call)
    assert said in one_sentence(str(refusal.value))


@pytest.mark.parametrize("statement", _lines(RIGHT))
def test_what_looks_like_an_attack_and_is_none_has_its_right_result(statement, unchecked):
    assert evaluated(statement)

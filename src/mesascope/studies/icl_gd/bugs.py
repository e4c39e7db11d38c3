"""Planted bugs that the claims of these studies must detect, for use in several studies."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from mesascope import learners
from mesascope.studies.common import drawn_with, returning
from mesascope.study import Mutation

_DESCENT = "mesascope.learners.descent:GradientDescentPlusPlus._predictions"


def _with(changes: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Any]:
    """Predictions of a descent with new values of some attributes, from ``changes``."""

    def wrong(predict: Any) -> Any:
        def predictions(self: Any, context: Any, xq: Any) -> Any:
            other = copy.copy(self)
            other._parameters = dict(self._parameters)
            for name, value in changes(self).items():
                (other._parameters if name in other._parameters else vars(other))[name] = value
            return predict(other, context, xq)

        return predictions

    return wrong


def _scaled_steps(factor: float) -> Callable[[Any], Any]:
    """Gradient descent with its step size times ``factor``; GD++ is unchanged."""
    return _with(lambda descent: {"eta": factor * descent.eta} if descent.gamma is None else {})


def _without_gamma(tune: Any) -> Any:
    """Tuning of GD++ that ends at a local optimum with gamma 0."""

    def tuned(learner: Any, family: Any, **options: Any) -> Any:
        if learner.gamma is None:
            return tune(learner, family, **options)
        plain = tune(learners.GradientDescent(learner.steps, learner.eta.tolist()), family, **options)
        none = (0 * learner.gamma).tolist()
        stuck = type(learner)(learner.steps, plain.learner.eta.tolist(), none, token_clip=learner.token_clip)
        zeros = [type(one)(0.0, 0.0, 1) for one in plain.step_sizes["eta"]]
        return dataclasses.replace(plain, learner=stuck, step_sizes=plain.step_sizes | {"gamma": zeros})

    return tuned


def _half_tuned(found: Any) -> Any:
    """Tuning of gradient descent that ends at half the best step sizes."""
    if found.learner.gamma is not None:
        return found
    halves = [type(one)(0.5 * one.value, one.stderr, one.n) for one in found.step_sizes["eta"]]
    return dataclasses.replace(found, step_sizes={"eta": halves})


def _shifted(drawn: Any) -> Any:
    """Tasks in which each input has the target of the previous input."""
    return drawn._replace(context=drawn.context._replace(y=drawn.context.y.roll(1, dims=-2)))


def _leaking(drawn: Any) -> Any:
    """Tasks whose last context pairs are the queries with their targets."""
    context = drawn.context._replace(x=drawn.context.x.clone(), y=drawn.context.y.clone())
    last = min(drawn.xq.shape[1], context.x.shape[1])
    context.x[:, -last:], context.y[:, -last:] = drawn.xq[:, :last], drawn.yq[:, :last]
    return drawn._replace(context=context)


def _at_other_queries(sensitivities: Any) -> Any:
    """Derivatives at the query of the previous task."""

    def wrong(learner: Any, episode: Any) -> Iterator[Any]:
        elsewhere = sensitivities(learner, episode._replace(xq=episode.xq.roll(1, dims=0)))
        both = zip(sensitivities(learner, episode), elsewhere, strict=True)
        return ((*own, sensitivity) for (*own, _), (*_, sensitivity) in both)

    return wrong


HALF_STEP = Mutation("gradient descent takes half its step", _DESCENT, _scaled_steps(0.5))
TWICE_STEP = Mutation("gradient descent takes twice its step", _DESCENT, _scaled_steps(2.0))
FEWER_STEPS = Mutation("gradient descent takes a step fewer", _DESCENT,
                       _with(lambda descent: {"steps": max(descent.steps - 1, 1)}))  # fmt: skip
FLIPPED_GAMMA = Mutation("gamma has the wrong sign", _DESCENT,
                         _with(lambda descent: {} if descent.gamma is None else {"gamma": -descent.gamma}))  # fmt: skip
UNCLIPPED = Mutation("tokens of the reference are not clipped", _DESCENT,
                     _with(lambda descent: {"token_clip": descent.token_clip and 1e4}))  # fmt: skip
POOR_OPTIMUM = Mutation("GD++ is tuned to a poor local optimum", "mesascope.learners:tune_spectral", _without_gamma)
HALF_TUNED = Mutation("gradient descent is tuned to half its best step sizes", "mesascope.learners:tune",
                      returning(_half_tuned))  # fmt: skip
FIRST_END = Mutation(
    "interpolation returns its first end", "mesascope.lenses:interpolate",
    lambda interpolate: lambda a, b, t=0.5: interpolate(a, b, 0.0),
)  # fmt: skip
RAW_PRODUCTS = Mutation("weight products are not rescaled", "mesascope.lenses.reading:rescaled_products",
                        lambda rescaled: lambda network: [
                            type(one)(*(part.detach() for part in one)) for one in network.products()])  # fmt: skip
SHIFTED_TARGETS = Mutation(
    "targets are shifted against inputs", "mesascope.tasks.regression:LinearRegression.sample", returning(_shifted)
)
NOISY = Mutation(
    "targets of contexts are noisy", "mesascope.tasks.regression:LinearRegression.sample", drawn_with(noise=0.5)
)
LEAK = Mutation("the query is in its context with its target", "mesascope.tasks.regression:LinearRegression.sample",
                returning(_leaking))  # fmt: skip
OTHER_QUERIES = Mutation("sensitivities are taken at another query", "mesascope.lenses.access:sensitivities",
                         _at_other_queries)  # fmt: skip
OTHER_TASKS = Mutation("sensitivities are those of another task", "mesascope.lenses.access:sensitivities",
                       returning(lambda found: ((*own, last.roll(1, dims=0)) for *own, last in found)))  # fmt: skip
OTHER_LENGTH = Mutation(
    "step sizes are read for twice as many pairs", "mesascope.lenses:step_sizes",
    lambda read: lambda network, n_context: read(network, 2 * n_context),
)  # fmt: skip
REVERSED_SIZES = Mutation(
    "step sizes are read from the last layer to the first", "mesascope.lenses:step_sizes",
    returning(lambda found: type(found)(*(sizes.flip(0) for sizes in found))),
)  # fmt: skip
FIRST_HEAD = Mutation(
    "all heads but the first are left out", "mesascope.nets.transformer:products_of",
    returning(lambda found: type(found)(*(part[:1] for part in found))),
)  # fmt: skip
WITHOUT_MLPS = Mutation(
    "MLPs are left out", "mesascope.nets.layers:TokenMLP.forward",
    lambda forward: lambda self, tokens: 0 * forward(self, tokens),
)  # fmt: skip
UNNORMALISED = Mutation(
    "weights of softmax attention are not normalised", "torch:softmax",
    lambda softmax: lambda scores, dim: scores.exp() / scores.shape[dim],
)  # fmt: skip
NOT_CENTRED = Mutation(
    "the inputs of centred descent are not centred", "mesascope.learners.transformed:Centred._centred",
    lambda centred: lambda self, context, xq: context,
)  # fmt: skip

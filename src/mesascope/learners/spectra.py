"""Losses of descent learners from the spectrum of the context, and closed forms for one step.

With C = X^T X / N, the error of a prediction after k steps from zero weights, without label noise, is w^T r(C) x_q for
a polynomial r. For isotropic teachers and queries, its mean square depends only on the eigenvalues of C. Label noise
adds a term that depends on them, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard

import torch

from mesascope.errors import MesascopeError, refuse, require_choice, require_count, require_instance
from mesascope.learners.descent import GradientDescentPlusPlus, filters
from mesascope.shapes import Float, Tensor
from mesascope.tasks import LinearRegression
from mesascope.tasks.calling import sample_tasks

# Variance and kurtosis E z^4 / (E z^2)^2 of the centred input distributions of `LinearRegression`.
_MOMENTS = {"uniform": (1 / 3, 9 / 5), "normal": (1.0, 3.0), "laplace": (2.0, 6.0)}


class Optimum(NamedTuple):
    """Optimal step size of one gradient step from zero, and its mean squared error."""

    eta: float
    mse: float


def one_step_optimum(family: LinearRegression) -> Optimum:
    """Closed-form optimum of one gradient step from zero, for inputs with independent centred coordinates.

    With s^2 the variance and K the kurtosis of a coordinate, teachers of variance w^2 and label noise sigma^2,

        eta* = N w^2 / (w^2 s^2 (N + d + K - 2) + sigma^2),    mse* = w^2 s^2 d (1 - eta* s^2).

    Without noise, no linear self-attention layer has a lower error, for any weights and number of heads.

    >>> optimum = one_step_optimum(LinearRegression(x_scale=0.5))
    >>> f"{optimum.eta:.6f} {optimum.mse / 2:.6f}"
    '6.060606 0.206229'
    """
    variance, kurtosis = _centred_moments(family)
    n, d, teacher = family.n_context, family.d_in, family.w_scale**2
    eta = n * teacher / (teacher * variance * (n + d + kurtosis - 2) + family.noise**2)
    return Optimum(eta, teacher * variance * d * (1 - eta * variance))


def gram_spectra(family: LinearRegression, contexts: int, generator: torch.Generator) -> Float[Tensor, "contexts d"]:
    """Eigenvalues of X^T X / N over fresh contexts, ascending, in float64."""
    require_instance("family", family, LinearRegression)
    require_count("contexts", contexts)
    x = sample_tasks(family, contexts, generator).context.x.double()
    grams = x.mT @ x / family.n_context
    # On a GPU, eigenvalues of a million matrices at once would take 500 GB of memory.
    return torch.cat([torch.linalg.eigvalsh(part) for part in grams.split(4096)])


def spectral_mse(
    spectra: Float[Tensor, "contexts d"],
    learner: GradientDescentPlusPlus,
    family: LinearRegression,
    sizes: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, " contexts"]:
    """Mean squared error of a descent learner per context, averaged over teachers, noise and queries.

    With the gain h and the residual r of `filters`,

        mse = s^2 sum_j [ w^2 r(lambda_j)^2 + (sigma^2 / N) lambda_j h(lambda_j)^2 ].

    This requires w0 = None, no token clip, and queries with independent centred coordinates of variance s^2. ``sizes``
    replaces the learner's step sizes, by name.
    """
    require_instance("spectra", spectra, Tensor)
    require_instance("learner", learner, GradientDescentPlusPlus)
    if learner.w0 is not None or learner.token_clip is not None:
        refuse("learner", "start from zero weights and clip nothing for its spectral loss", learner, "use `tune`")
    variance, _ = _centred_moments(family)
    sizes = sizes or {}
    eta, gamma = sizes.get("eta", learner.eta), sizes.get("gamma", learner.gamma)
    gammas = None if gamma is None else gamma.expand(learner.steps)
    gain, residual = filters(spectra, family.n_context, eta.expand(learner.steps), gammas)
    mse = family.w_scale**2 * residual.square().sum(-1)
    if family.noise:
        mse = mse + family.noise**2 / family.n_context * (spectra * gain.square()).sum(-1)
    return variance * mse


def has_spectral_loss(family: object) -> TypeGuard[LinearRegression]:
    """True if `spectral_mse` is valid for the tasks of ``family``."""
    with contextlib.suppress(MesascopeError):
        return bool(_centred_moments(family))  # type: ignore[arg-type]
    return False


def _centred_moments(family: LinearRegression) -> tuple[float, float]:
    """Variance and kurtosis of one input coordinate."""
    require_instance("family", family, LinearRegression)
    require_choice("family.x", family.x, _MOMENTS)
    if family.pool is not None:
        refuse("family.pool", "be None for a closed form, which averages over all teachers", family.pool, "use `tune`")
    if family.covariance is not None:
        refuse("family.covariance", "be None for a closed form", family.covariance, "use `tune`")
    variance, kurtosis = _MOMENTS[family.x]
    return variance * family.x_scale**2, kurtosis

"""Linear self-attention layers evaluated through the context's Gram matrix.

A layer e <- e + sum_h W_PV,h (sum_i e_i e_i^T) W_KQ,h e depends on the context only through C = sum_i e_i e_i^T. It
maps every token by T = I + sum_h W_PV,h C W_KQ,h, and C to T C T^T. So the cost after the first C
does not grow with the number of context tokens.

There are two ways to apply a layer. `_advance` computes T and the next C: with one head, four products of width x width
matrices per task. `_apply` applies layers to query tokens by nested products with the first C: layer l (counted from 0)
takes 3^l products C v. Matrices are cheaper for the first layers of a deep network, vectors for the last ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from mesascope.nets.layers import Products, rows_times
from mesascope.shapes import Float, Tensor


def run_linear_layers(
    context: Float[Tensor, "*batch n width"], query: Float[Tensor, "*batch m width"], layers: Sequence[Products]
) -> list[Float[Tensor, "*batch m width"]]:
    """Query tokens after each layer, as attention over the tokens gives them, up to rounding."""
    width = query.shape[-1]
    # Batched products of float32 matrices on CPU run up to three times faster when rows are multiples of 16 bytes.
    pad = -width % 4
    context, query = functional.pad(context, (0, pad)), functional.pad(query, (0, pad))
    layers = [Products(*(functional.pad(part, (0, pad, 0, pad)) for part in layer)) for layer in layers]
    nested = _nested_layers(len(layers), query.shape[-2], query.shape[-1])
    queries = []
    products = query.shape[-2] * sum(3**depth for depth in range(nested))
    state = _Context.of_tokens(context, products)
    for layer in layers[: len(layers) - nested]:
        query, state = _advance(layer, query, state)
        queries.append(query)
    tail = layers[len(layers) - nested :]
    for depth in range(len(tail)):
        query = _apply(tail[: depth + 1], query, state)
        queries.append(query)
    return [tokens[..., :width] for tokens in queries]


def _nested_layers(n_layers: int, m: int, width: int) -> int:
    """Number of last layers that are cheaper to apply to the m queries than to compute as matrices."""
    nested = 1
    while nested < n_layers and 2 * 3**nested * m <= width:
        nested += 1
    return nested


@dataclass(frozen=True)
class _Context:
    """C = sum_i e_i e_i^T before a layer, stored as tokens, a matrix or both; after the first layer, as a matrix."""

    tokens: Tensor | None
    gram: Tensor | None

    @classmethod
    def of_tokens(cls, tokens: Tensor, products: int) -> _Context:
        """Context before the first layer.

        The matrix C is computed if ``products`` products C v are then cheaper than through the tokens.
        """
        n, width = tokens.shape[-2:]
        # A product C v takes 2 n width multiplications through tokens and width^2 through the matrix. The matrix takes
        # n width^2, each in a quarter of the time, because it is a matrix product (measured on CPU).
        through_gram = width * products + n * width / 4 < 2 * n * products
        return cls(tokens, tokens.mT @ tokens if through_gram else None)

    def times(self, vectors: Tensor) -> Tensor:
        """Product C v for each row v; C is symmetric."""
        if self.gram is None:
            assert self.tokens is not None
            return (vectors @ self.tokens.mT) @ self.tokens
        if self.tokens is None and vectors.shape[-2] == 1:
            # C has a gradient here: a sum of outer products, which batched matrix products compute slowly.
            return (vectors.mT * self.gram).sum(-2, keepdim=True)
        return vectors @ self.gram

    def matrix(self) -> Tensor:
        if self.gram is None:
            assert self.tokens is not None
            return self.tokens.mT @ self.tokens
        return self.gram


def _advance(layer: Products, query: Tensor, context: _Context) -> tuple[Tensor, _Context]:
    """The query tokens and the context's Gram matrix after a layer."""
    gram = context.matrix()
    # Each head's PV C KQ, transposed so that tokens are rows.
    moves = [rows_times(rows_times(gram, kq).mT, pv.mT) for kq, pv in zip(layer.w_kq, layer.w_pv, strict=True)]
    move = functools.reduce(torch.add, moves)
    half = gram + gram @ move
    return query + query @ move, _Context(None, half + move.mT @ half)


def _apply(layers: Sequence[Products], tokens: Tensor, context: _Context, transposed: bool = False) -> Tensor:
    """Apply the last of ``layers`` (T, or T^T) to each row; ``context`` is the context before the first of them."""
    layer, before = layers[-1], layers[:-1]
    moved = tokens
    for w_kq, w_pv in zip(layer.w_kq, layer.w_pv, strict=True):
        first, second = (w_pv, w_kq) if transposed else (w_kq.mT, w_pv.mT)
        moved = moved + rows_times(_times_gram(before, rows_times(tokens, first), context), second)
    return moved


def _times_gram(before: Sequence[Products], vectors: Tensor, context: _Context) -> Tensor:
    """Product C v after the layers ``before``: C_l v = T C_{l-1} T^T v."""
    if not before:
        return context.times(vectors)
    inner = _apply(before, vectors, context, transposed=True)
    return _apply(before, _times_gram(before[:-1], inner, context), context)

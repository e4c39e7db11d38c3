"""Check La-MAML on rotated digits (continual-mnist): retained accuracy, and backward transfer.

Run `python tests/independent/la_maml.py [streams]`; each stream takes two minutes of a core, and three are the
default. It reads MNIST from MESASCOPE_DATA.

A stream has twenty tasks of 1,000 training digits and 1,000 test digits, turned by an angle drawn from the task's
twentieth of 180 degrees. A network 784-100-100-10 with ReLU sees them once, in batches of ten, and learns with a rate
for each of its numbers (Gupta et al., 2020), written here again from its description. The published mean is over ten
streams, the check's over a few others: the error of their difference is of the published standard deviation.
"""

from __future__ import annotations

import gzip
import itertools
import sys

import numpy as np
from published import DATA, Row, arrays, report

TASKS, SAMPLES, BATCH, SIDE = 20, 1000, 10, 28
RATE, META_RATE, CLIP, GLANCES, MEMORY, REPLAYED = 0.15, 0.3, 2.0, 5, 200, 10
SIZES = (SIDE**2, 100, 100, 10)
Parameters = list[np.ndarray]


def mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images from 0 to 1 and classes."""
    images = gzip.decompress((DATA / "mnist" / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((DATA / "mnist" / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, SIDE, SIDE)
    return pixels.astype(np.float32) / 255, np.frombuffer(labels, np.uint8, offset=8).astype(int)


def turned(images: np.ndarray, angle: float) -> np.ndarray:
    """Images turned around their centre, read between pixels linearly, with 0 outside."""
    middle = (SIDE - 1) / 2
    rows, columns = np.mgrid[:SIDE, :SIDE] - middle
    across = np.cos(angle) * columns - np.sin(angle) * rows + middle
    down = np.sin(angle) * columns + np.cos(angle) * rows + middle
    left, top = np.floor(across).astype(int), np.floor(down).astype(int)
    padded, found = np.pad(images, ((0, 0), (10, 10), (10, 10))), 0.0
    for row in (top, top + 1):
        for column in (left, left + 1):
            share = (1 - np.abs(down - row)) * (1 - np.abs(across - column))
            found = found + share * padded[:, row + 10, column + 10]
    return found.reshape(len(images), -1).astype(np.float32)


def initial(rng: np.random.Generator) -> Parameters:
    """Weights and biases, uniform within 1/sqrt(inputs)."""
    found = []
    for inputs, outputs in itertools.pairwise(SIZES):
        found += [rng.uniform(-1, 1, shape) / np.sqrt(inputs) for shape in ((outputs, inputs), outputs)]
    return [one.astype(np.float32) for one in found]


def scores(parameters: Parameters, x: np.ndarray) -> list[np.ndarray]:
    """Input of each layer, and the scores of classes."""
    w1, b1, w2, b2, w3, b3 = parameters
    first = np.maximum(x @ w1.T + b1, 0)
    second = np.maximum(first @ w2.T + b2, 0)
    return [x, first, second, second @ w3.T + b3]


def gradient(parameters: Parameters, x: np.ndarray, y: np.ndarray) -> Parameters:
    """Gradient of the mean cross-entropy."""
    *inputs, out = scores(parameters, x)
    error = np.exp(out - out.max(1, keepdims=True))
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    found: Parameters = []
    for layer in (2, 1, 0):
        found = [error.T @ inputs[layer], error.sum(0), *found]
        if layer:
            error = (error @ parameters[2 * layer]) * (inputs[layer] > 0)
    return found


def clipped(gradients: Parameters) -> Parameters:
    """Gradients with a norm of at most CLIP together."""
    norm = np.sqrt(sum(float((one**2).sum()) for one in gradients))
    return [one * min(1.0, CLIP / norm) if norm > 0 else one for one in gradients]


def glance(weights: Parameters, rates: Parameters, x: np.ndarray, y: np.ndarray, own: np.ndarray) -> None:
    """One outer step on the examples x; inner steps go through the examples own. Changes weights and rates."""
    phi, sums = [one.copy() for one in weights], [np.zeros_like(one) for one in weights]
    by_weights, by_rates = ([np.zeros_like(one) for one in weights] for _ in range(2))
    for row in own:
        for place, one in enumerate(gradient(phi, x[row : row + 1], y[row : row + 1])):
            sums[place] += one
            phi[place] -= np.maximum(rates[place], 0) * one
        for place, one in enumerate(gradient(phi, x, y)):
            by_weights[place] += one / len(own)
            by_rates[place] -= one * sums[place] / len(own)
    by_rates = [one * (rate > 0) for one, rate in zip(by_rates, rates, strict=True)]
    for place, (own_rates, outer) in enumerate(zip(clipped(by_rates), clipped(by_weights), strict=True)):
        rates[place] -= META_RATE * own_rates
        weights[place] -= np.maximum(rates[place], 0) * outer


class Memory:
    """A uniform sample of all examples so far."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.seen = rng, 0
        self.x, self.y = np.zeros((MEMORY, SIZES[0]), np.float32), np.zeros(MEMORY, int)

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        for one, label in zip(x, y, strict=True):
            slot = self.seen if self.seen < MEMORY else self.rng.integers(self.seen + 1)
            self.seen += 1
            if slot < MEMORY:
                self.x[slot], self.y[slot] = one, label

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.rng.permutation(min(self.seen, MEMORY))[:REPLAYED]
        return self.x[chosen], self.y[chosen]


def learn_task(weights: Parameters, rates: Parameters, memory: Memory, x: np.ndarray, y: np.ndarray) -> None:
    """Look at each batch five times, with past examples beside it, and then remember it."""
    for start in range(0, SAMPLES, BATCH):
        for _ in range(GLANCES):
            order = start + memory.rng.permutation(BATCH)
            past_x, past_y = memory.draw()
            own = len(past_y) + np.arange(BATCH)
            glance(weights, rates, np.concatenate([past_x, x[order]]), np.concatenate([past_y, y[order]]), own)
        memory.add(x[start : start + BATCH], y[start : start + BATCH])


def stream(seed: int) -> tuple[float, float]:
    """Mean accuracy on all tasks at the end, and its change since each was learned, in percent."""
    rng, sets = np.random.default_rng(seed), [mnist("train"), mnist("t10k")]
    weights, memory, tests, learned = initial(rng), Memory(rng), [], []
    rates = [np.full_like(one, RATE) for one in weights]
    for task in range(TASKS):
        angle, parts = np.pi * (task + rng.random()) / TASKS, []
        for images, labels in sets:
            chosen = rng.permutation(len(labels))[:SAMPLES]
            parts.append((turned(images[chosen], angle), labels[chosen]))
        learn_task(weights, rates, memory, *parts[0])
        tests.append(parts[1])
        learned.append(accuracy(weights, *parts[1]))
    retained = [accuracy(weights, *test) for test in tests]
    return float(np.mean(retained)), float(np.mean(retained) - np.mean(learned))


def accuracy(weights: Parameters, x: np.ndarray, y: np.ndarray) -> float:
    """Percent of images whose class has the largest score."""
    return 100 * float((scores(weights, x)[-1].argmax(1) == y).mean())


def rows(found: np.ndarray) -> list[Row]:
    """Mean retained accuracy and transfer; the published table has streams, kinds of streams and methods."""
    table, made = arrays("continual-mnist", "table"), []
    for place, name in enumerate(("retained", "transfer")):
        published = table[name][:, 0, 5]
        error = published.std(ddof=1) * np.sqrt(1 / len(published) + 1 / len(found))
        made.append(Row(f"La-MAML, {name}, %", published.mean(), found[:, place].mean(), error, len(published) - 1))
    return made


if __name__ == "__main__":
    results = []
    for index in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        results.append(stream(100 + index))
        print(f"stream {index + 1}: retained {results[-1][0]:.2f} %, transfer {results[-1][1]:.2f} points", flush=True)
    report(rows(np.array(results)))

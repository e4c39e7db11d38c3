"""Check the interval of sparse-maml's `above-maml`, and the accuracy of MAML before it has learned (cross-domain).

Run `python tests/independent/few_shot_accuracy.py`; it takes three minutes. It reads Omniglot and MNIST from
MESASCOPE_DATA, with Pillow for the pictures.

The median, its interval and the verdict of `above-maml` are recomputed from the published accuracies of eight
networks of each method. Meta-training is too slow in NumPy, but the run cross-domain has the same networks before it.
Such a network has four blocks (3 x 3 convolution of 32 filters, BatchNorm with the statistics of each batch,
max-pooling, ReLU) and a linear layer. It takes five gradient steps of 0.1 on one image of each class, and classifies
two more of each: among 20 of Omniglot's test characters, and among five of MNIST's digits, for which 15 of the 20
outputs have no class.
"""

from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from published import DATA, Row, arrays, claim, mean, report

FILTERS, OUTPUTS, SIDE, STEPS, RATE, EPSILON = 32, 20, 28, 5, 0.1, 1e-5
NETWORKS, QUERIES = 8, 2
Numbers = np.ndarray
Parameters = list[Numbers]


def omniglot() -> list[Numbers]:
    """Drawings of each test character, white on black, from 105 to 28 pixels by averaging under triangles."""
    by_character: dict[str, list[Numbers]] = {}
    with zipfile.ZipFile(DATA / "omniglot" / "images_evaluation.zip") as archive:
        for name in archive.namelist():
            if name.endswith(".png") and not name.startswith("__"):
                picture = Image.open(io.BytesIO(archive.read(name))).convert("L")
                by_character.setdefault(name.rpartition("/")[0], []).append(255.0 - np.asarray(picture, float))
    scale = 105 / SIDE
    away = np.abs((np.arange(SIDE)[:, None] + 0.5) * scale - 0.5 - np.arange(105)) / scale
    shares = np.maximum(1 - away, 0)
    shares /= shares.sum(1, keepdims=True)
    return [np.round(shares @ np.stack(each) @ shares.T) / 255 for each in by_character.values()]


def mnist() -> list[Numbers]:
    """Test images of each digit."""
    images = gzip.decompress((DATA / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((DATA / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, SIDE, SIDE) / 255
    return [pixels[np.frombuffer(labels, np.uint8, offset=8) == digit] for digit in range(10)]


def initial(rng: np.random.Generator) -> Parameters:
    """For each block kernel, bias, and BatchNorm's factor and shift; then the linear layer."""
    found = []
    for inputs in (1, FILTERS, FILTERS, FILTERS):
        bound = 1 / np.sqrt(9 * inputs)
        found += [rng.uniform(-bound, bound, (9 * inputs, FILTERS)), rng.uniform(-bound, bound, FILTERS)]
        found += [np.ones(FILTERS), np.zeros(FILTERS)]
    bound = 1 / np.sqrt(FILTERS)
    found += [rng.uniform(-bound, bound, (FILTERS, OUTPUTS)), rng.uniform(-bound, bound, OUTPUTS)]
    return [one.astype(np.float32) for one in found]


def windows(images: Numbers) -> Numbers:
    """Patches of 3 x 3 around each pixel ``(n, side, side, 9 * channels)``, with 0 outside."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sliding_window_view(padded, (3, 3), (1, 2)).reshape(*images.shape[:3], -1)


def pooled(images: Numbers) -> tuple[Numbers, Numbers]:
    """Largest of each 2 x 2 pixels, the last odd row and column left out; and where it was."""
    n, side, _, channels = images.shape
    half = side // 2
    quads = images[:, : 2 * half, : 2 * half].reshape(n, half, 2, half, 2, channels).transpose(0, 1, 3, 5, 2, 4)
    quads = quads.reshape(n, half, half, channels, 4)
    return quads.max(-1), quads.argmax(-1)


def unpooled(error: Numbers, where: Numbers, side: int) -> Numbers:
    """Gradient of `pooled` for its images."""
    n, half, _, channels = error.shape
    quads = (np.arange(4) == where[..., None]) * error[..., None]
    spread = quads.reshape(n, half, half, channels, 2, 2).transpose(0, 1, 4, 2, 5, 3)
    found = np.zeros((n, side, side, channels), np.float32)
    found[:, : 2 * half, : 2 * half] = spread.reshape(n, 2 * half, 2 * half, channels)
    return found


def scores(parameters: Parameters, images: Numbers) -> tuple[Numbers, list[tuple[Numbers, ...]]]:
    """Scores of the classes, and for each layer what its gradient needs."""
    hidden, kept = images, []
    for block in range(4):
        kernel, bias, factor, shift = parameters[4 * block : 4 * block + 4]
        patches = windows(hidden)
        written = patches @ kernel + bias
        deviation = np.sqrt(written.var((0, 1, 2)) + EPSILON)
        normal = (written - written.mean((0, 1, 2))) / deviation
        largest, where = pooled(normal * factor + shift)
        hidden = np.maximum(largest, 0)
        kept.append((patches, normal, deviation, where, hidden))
    return hidden.reshape(len(images), -1) @ parameters[-2] + parameters[-1], kept


def gradient(parameters: Parameters, images: Numbers, labels: Numbers) -> Parameters:
    """Gradient of the mean cross-entropy."""
    out, kept = scores(parameters, images)
    error = np.exp(out - out.max(1, keepdims=True))
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    last = kept[-1][-1]
    found = [last.reshape(len(images), -1).T @ error, error.sum(0)]
    error = (error @ parameters[-2].T).reshape(last.shape)
    for block in (3, 2, 1, 0):
        patches, normal, deviation, where, hidden = kept[block]
        kernel, _, factor, _ = parameters[4 * block : 4 * block + 4]
        error = unpooled(error * (hidden > 0), where, patches.shape[1])
        by_factor, by_shift = (error * normal).sum((0, 1, 2)), error.sum((0, 1, 2))
        count = error.size / FILTERS
        error = factor / deviation * (error - by_shift / count - normal * by_factor / count)
        by_kernel = patches.reshape(-1, patches.shape[-1]).T @ error.reshape(-1, FILTERS)
        found = [by_kernel, error.sum((0, 1, 2)), by_factor, by_shift, *found]
        if block:
            turned = kernel.reshape(FILTERS, 3, 3, FILTERS)[:, ::-1, ::-1]  # inputs, rows, columns, filters
            error = windows(error) @ turned.transpose(3, 1, 2, 0).reshape(-1, FILTERS)
    return found


def accuracy(rng: np.random.Generator, classes: list[Numbers], ways: int, tasks: int) -> float:
    """Percent of the queries that one untrained network classifies correctly after its inner steps, over all tasks."""
    start, right, labels = initial(rng), [], np.arange(ways)
    for _ in range(tasks):
        drawn = [
            classes[one][rng.permutation(len(classes[one]))[: 1 + QUERIES]]
            for one in rng.permutation(len(classes))[:ways]
        ]
        pixels = np.stack(drawn).astype(np.float32)[..., None]
        adapted = start
        for _ in range(STEPS):
            found = gradient(adapted, pixels[:, 0], labels)
            adapted = [one - RATE * change for one, change in zip(adapted, found, strict=True)]
        queries = pixels[:, 1:].reshape(-1, SIDE, SIDE, 1)
        guess = scores(adapted, queries)[0][:, :ways].argmax(1)
        right.append((guess == labels.repeat(QUERIES)).mean())
    return 100 * float(np.mean(right))


def untrained_row(rng: np.random.Generator, stage: str, classes: list[Numbers], ways: int, tasks: int) -> Row:
    """Mean accuracy over networks; the error is of both sets of networks."""
    there, error = mean(arrays("cross-domain", stage)["untrained maml"].astype(float))
    own, own_error = mean(np.array([accuracy(rng, classes, ways, tasks) for _ in range(NETWORKS)]))
    return Row(f"untrained MAML, {stage}, %", there, own, float(np.hypot(error, own_error)), 2 * NETWORKS - 2)


def claim_rows() -> list[Row]:
    """Median and range of sparse-MAML's accuracy minus MAML's: of eight, an interval at 99.2 %."""
    found, published = arrays("sparse-maml", "accuracy"), claim("sparse-maml", "above-maml")
    points = found["sparse-maml"].astype(float) - found["maml"]
    ends = {"value": np.median(points), "low": points.min(), "high": points.max()}
    rows = [(name, published[name], own) for name, own in ends.items()]
    rows.append(("holds (1 = yes)", published["verdict"] == "holds", ends["low"] > 0))
    return [Row(f"above-maml, {name}", float(there), float(here), 1e-4) for name, there, here in rows]


if __name__ == "__main__":
    generator = np.random.default_rng(5)
    on_omniglot = untrained_row(generator, "own", omniglot(), ways=20, tasks=25)
    on_mnist = untrained_row(generator, "on mnist", mnist(), ways=5, tasks=150)
    report([*claim_rows(), on_omniglot, on_mnist])

"""What tests share: tasks that try every branch, by name, and the check of a refusal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from fase_gpu.errors import InputError

Floats = npt.NDArray[np.float32]

SIZES = (2, 3, 10, 64, 200)
"""Sample counts at which tasks of every kind are made; 0 and 1 have no tree and tests of their own."""


def random(n: int, rng: np.random.Generator) -> Floats:
    return rng.standard_normal((n, 24), dtype=np.float32)


def clustered(n: int, rng: np.random.Generator) -> Floats:
    centres = rng.standard_normal((max(1, n // 3), 24))
    spread = 10.0 ** rng.uniform(-3, 0, (n, 1))
    return (centres[rng.integers(len(centres), size=n)] + spread * rng.standard_normal((n, 24))).astype(np.float32)


def duplicates(n: int, rng: np.random.Generator) -> Floats:
    """A few distinct rows many times over: most distances are the minimum."""
    return random(max(1, n // 4), rng)[rng.integers(max(1, n // 4), size=n)]


def identical(n: int, rng: np.random.Generator) -> Floats:
    return np.repeat(random(1, rng), n, axis=0)


def collinear(n: int, rng: np.random.Generator) -> Floats:
    """One direction in many lengths, and its opposite: distances 0 and 2."""
    row = random(1, rng)
    return (row * rng.choice([-2.0, 0.5, 1.0, 3.0], size=(n, 1))).astype(np.float32)


def lattice(n: int, rng: np.random.Generator) -> Floats:
    """Rows with few different coordinates: ties everywhere, in the tree and between the peaks of the density."""
    rows = rng.integers(0, 2, size=(n, 4)).astype(np.float32)
    rows[:, 0] = 1
    return rows


def orthogonal(n: int, rng: np.random.Generator) -> Floats:
    return np.eye(n, max(n, 2), dtype=np.float32)


def near(n: int, rng: np.random.Generator) -> Floats:
    """Near-duplicates: distances of 1e-8 to 1e-3 about the minimum of 1e-6."""
    spread = 10.0 ** rng.uniform(-4, -1.5, (n, 1))
    return (rng.standard_normal((1, 64)) + spread * rng.standard_normal((n, 64))).astype(np.float32)


KINDS: dict[str, Callable[[int, np.random.Generator], Floats]] = {
    kind.__name__: kind for kind in (random, clustered, duplicates, identical, collinear, lattice, orthogonal, near)
}


def embeddings(kind: str, n: int) -> Floats:
    """The task [n, d] of that kind and size; the same at every call."""
    return KINDS[kind](n, np.random.default_rng([n, list(KINDS).index(kind)]))


def distances(kind: str, n: int) -> Floats:
    """Its distances [n, n] float32, as the torch executor computes them."""
    import torch

    from fase_gpu.distance import cosine_distances

    x = torch.from_numpy(embeddings(kind, n))[None]
    matrix: Floats = cosine_distances(x, torch.tensor([n]), 1e-6).distance[0].numpy()
    return matrix


def refused(call: Callable[[], object]) -> str:
    """The message of the InputError that the call has to raise, which is one line."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message

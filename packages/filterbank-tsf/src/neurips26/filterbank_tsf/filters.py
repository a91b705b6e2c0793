"""Filters of a bank: data-driven, cosine, wavelet, Fourier or random; each a row, newest sample last."""

from __future__ import annotations

import numpy as np
import pywt
import scipy.fft as sfft
from jaxtyping import Float

from .regression import leading_eigen
from .stats import WindowStats

FILTER_INITS: tuple[str, ...] = ("predictive", "dct", "haar", "dbN", "random")


def make_filters(
    init: str, count: int, size: int, *, rng: np.random.Generator | None = None
) -> Float[np.ndarray, "k p"]:
    """``count`` orthonormal filters of length ``size`` that need no data: ``"dct"``, ``"haar"``, ``"db2"``.. or
    ``"random"`` (orthonormal too as long as ``count <= size``).
    """
    if init == "dct":
        return _pad_rows(sfft.dct(np.eye(size), norm="ortho", axis=0), count, size)
    if init == "random":
        draw = (rng or np.random.default_rng(0)).standard_normal((size, count))
        if count <= size:
            draw = np.linalg.qr(draw)[0]
        return np.ascontiguousarray(draw.T)
    if init == "haar" or (init.startswith("db") and init in pywt.wavelist(kind="discrete")):
        return _pad_rows(wavelet_packet(init, size), count, size)
    raise ValueError(f"init must be 'predictive', 'dct', 'haar', a Daubechies wavelet 'dbN' or 'random', got {init!r}")


def wavelet_packet(name: str, size: int) -> Float[np.ndarray, "size size"]:
    """An orthonormal basis of ``R^size`` from the periodised wavelet packet, coarse filters first.

    Sizes that are not a power of two are completed by Gram-Schmidt on the truncated basis.
    """
    whole = 1 << (size - 1).bit_length()
    level = int(np.log2(whole))
    if name != "haar":
        level = min(level, pywt.dwt_max_level(whole, pywt.Wavelet(name).dec_len)) or 1
    rows = []
    for unit in np.eye(whole):
        packet = pywt.WaveletPacket(unit, name, mode="periodization", maxlevel=level)
        rows.append(np.concatenate([node.data for node in packet.get_level(level, "freq")]))
    basis = np.stack(rows, 1)  # coefficient x sample
    if whole == size:
        return basis
    orthogonal, upper = np.linalg.qr(basis[:, :size].T, mode="complete")
    signs = np.sign(np.diag(upper[:, :size]))
    return (orthogonal[:, :size] * np.where(signs == 0, 1.0, signs)).T


def fourier_filters(size: int, frequencies: int) -> Float[np.ndarray, "k p"]:
    """Cosine and minus-sine rows of the first ``frequencies`` bins of a real DFT: real and imaginary parts of rfft."""
    angle = 2.0 * np.pi * np.outer(np.arange(frequencies), np.arange(size)) / size
    return np.concatenate([np.cos(angle), -np.sin(angle)])


def predictive_analysis(stats: WindowStats, count: int, size: int) -> Float[np.ndarray, "k p"]:
    """Leading eigenvectors of the sum of the ``size x size`` diagonal blocks of ``G`` (blocks end at the newest
    sample).
    """
    return _block_eigen(stats.gram, count, size, from_end=True)


def predictive_synthesis(
    stats: WindowStats, weight: Float[np.ndarray, "l h"], count: int, size: int
) -> Float[np.ndarray, "k q"]:
    """Leading eigenvectors of the same sum for the covariance ``W^T G W`` of the fitted outputs."""
    fitted = weight.T @ stats.gram @ weight
    return _block_eigen(fitted, count, size, from_end=False)


def _block_eigen(matrix: np.ndarray, count: int, size: int, from_end: bool) -> np.ndarray:
    width = len(matrix)
    if size > width:
        padded = np.zeros((size, size))
        padded[:width, :width] = matrix
        matrix, width = padded, size
    blocks = width // size
    offset = width - blocks * size if from_end else 0
    starts = offset + size * np.arange(blocks)
    total = sum(matrix[s : s + size, s : s + size] for s in starts)
    vectors = leading_eigen(total, min(count, size))[1].T
    return _pad_rows(vectors, count, size)


def _pad_rows(rows: np.ndarray, count: int, size: int) -> np.ndarray:
    """The first ``count`` rows; where fewer exist than asked for, seeded random directions are added."""
    if count <= len(rows):
        return np.ascontiguousarray(rows[:count])
    extra = np.random.default_rng(0).standard_normal((count - len(rows), size)) / np.sqrt(size)
    return np.concatenate([rows, extra])


def frequency_response(
    filters: Float[np.ndarray, "k p"], points: int = 512
) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, "k f"]]:
    """Frequencies in cycles per step (0 .. 1/2) and the magnitude response of each filter."""
    filters = np.atleast_2d(np.asarray(filters, dtype=float))
    size = max(2 * (points - 1), filters.shape[1])
    return np.fft.rfftfreq(size), np.abs(np.fft.rfft(filters, size, axis=1))

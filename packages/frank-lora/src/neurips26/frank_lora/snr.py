"""Signal to noise of a frozen-A step, and the learning rate that follows from it.

With A frozen and B starting at 0, one SGD step on B changes the weight by ``-eta G S``, ``S = A^T A``, where G is the
gradient of the full weight. E[S] = I makes it unbiased, and for i.i.d. entries of kurtosis k

    E ||G S - G||_F^2 = (n + k - 2) / r  ||G||_F^2,      SNR(r) = r / (n + k - 2).

For an L-smooth loss the expected decrease of a step is largest at ``eta = SNR / ((1 + SNR) L)``. The abstract states that
the SNR is linear in the rank and that the rate must follow the rank; the formulas here are our derivation.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from neurips26.frank_lora.sampler import KINDS, sample_a
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["measure_snr", "optimal_lr", "snr_theory"]

_KURTOSIS = {"gaussian": 3.0, "kaiming": 1.8, "rademacher": 1.0}


def snr_theory(r: int, n: int, kind: str = "gaussian") -> float:
    """SNR of a step at rank ``r`` and input width ``n``; ``inf`` where there is no noise (orthogonal, r = n)."""
    check_choice(kind, "kind", KINDS)
    check_int(r, "r", minimum=1, maximum=n if kind == "orthogonal" else None)
    if kind == "orthogonal":
        return float("inf") if r == n else r / (n - r)
    noise = n + _KURTOSIS[kind] - 2
    return float("inf") if noise == 0 else r / noise


def optimal_lr(r: int, n: int, smoothness: float = 1.0, kind: str = "gaussian") -> float:
    """The step that minimises the bound of one step's loss: ``SNR / ((1 + SNR) L)``, r / (r + n + 1) / L for a Gaussian A."""
    check_real(smoothness, "smoothness", minimum=0, inclusive=False)
    snr = snr_theory(r, n, kind)
    return (1.0 if snr == float("inf") else snr / (1 + snr)) / smoothness


def measure_snr(
    gradient: Float[Tensor, "m n"], r: int, draws: int = 64, kind: str = "gaussian", seed: int = 0
) -> float:
    """``||G||^2`` over the mean of ``||G S - G||^2`` in ``draws`` independent matrices A."""
    check_int(draws, "draws", minimum=1)
    noise = 0.0
    for i in range(draws):
        a = sample_a(seed, "snr", i, r, r, gradient.shape[1], kind).to(gradient.dtype)
        noise += float(((gradient @ a.T) @ a - gradient).square().sum())
    return float(gradient.square().sum()) / (noise / draws)

"""Signal to noise of a frozen-A step, and the learning rate that follows from it.

With A frozen and B starting at 0, one SGD step on B changes the weight by ``-eta G S``, ``S = A^T A``, where G is the
gradient of the full weight. E[S] = I makes it unbiased, and for i.i.d. entries of kurtosis k

    E ||G S - G||_F^2 = (n + k - 2) / r  ||G||_F^2,      SNR(r) = r / (n + k - 2).

For an L-smooth loss the expected decrease of a step is largest at ``eta = SNR / ((1 + SNR) L)``: proportional to r.

Under Adam a first step moves every entry of B by eta, ``dW = -eta sign(G A^T) A``. Then (Gaussian A, g a row of G)

    E <dW, -G> = eta sqrt(2 r / pi) sum_rows ||g||,      E ||dW||_F^2 = eta^2 m (n + (2 / pi)(r - 1)),

so for r << n the best step is proportional to sqrt(r): the step's length hardly depends on the rank, its part along the
gradient grows with the root.

With rates ``eta_i = eta r_i / (r_i + n + 1)``, K local steps, T rounds, gradient noise sigma^2, dissimilarity zeta^2 and
``eta_eff = sum p_i eta_i`` the usual analysis of local SGD bounds the smallest expected squared gradient norm by

    O((f_0 - f*) / (T K eta_eff)) + O(L eta (sigma^2 + zeta^2) sum p_i^2 (1 + (n + 1) / r_i))
    + O(K^2 eta^2 L^2 (sigma^2 + zeta^2)),

in whose middle term K clients of rank r with A of their own count like one of rank K r.

The abstract states that the SNR is linear in the rank, that the rate must follow the rank, and that there is a proof of
convergence; the formulas here are our derivation, the bound a sketch and no proof.
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

"""How readouts and neighbours degrade when noise is added to the weights, with the controls that make it a fair contest.

Noise relative to each tensor: ``W <- W + s std(W) N(0, 1)`` (or to its RMS, or to each unit's own). Re-embedding the memory
under noise lets the k-NN decoder adapt to the noisy features, which a fixed linear head cannot; so two controls belong
beside them: k-NN with the *clean* memory, and a linear readout *refitted* on the noisy features.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from torch import nn

from neurips26.knn_certificate.knn import neighbours, prepare, votes
from neurips26.knn_certificate.networks import features_of
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["CURVES", "perturbed", "weight_noise"]

_KINDS = ("std", "rms", "filter")
CURVES = ("readout", "readout, all weights noisy", "k-NN re-embedded", "k-NN clean memory", "readout refitted")


def perturbed(model: nn.Module, scale: float, seed: int, *, kind: str = "std") -> nn.Module:
    """A copy with Gaussian noise on every weight and bias, relative to the size of what it is added to.

    Args:
        model: any network.
        scale: relative noise ``s``.
        seed: of the draw.
        kind: size of a tensor: its standard deviation (``"std"``), its root mean square (``"rms"``), or for weights the root
            mean square of each output unit's own (``"filter"``, after Li et al. 2018).
    """
    check_choice(kind, "kind", _KINDS)
    noisy = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in noisy.parameters():
            own = tuple(range(1, p.ndim)) if kind == "filter" and p.ndim > 1 else tuple(range(p.ndim))
            unit = p.std(correction=0) if kind == "std" else p.pow(2).mean(dim=own, keepdim=True).sqrt()
            p.add_(scale * unit * torch.randn(p.shape, generator=generator))
    return noisy


def weight_noise(
    model: nn.Module,
    memory: np.ndarray,
    memory_labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    scales: Sequence[float],
    *,
    draws: int = 8,
    k: int = 5,
    seed: int = 0,
    kind: str = "std",
) -> list[dict[str, float | str | int]]:
    """Test accuracy of every curve at every scale and draw.

    Args:
        model: a network with a ``body`` (the representation) and a linear ``head``.
        memory: training inputs.
        memory_labels: integer labels.
        test: test inputs.
        test_labels: integer labels.
        scales: relative noise ``s``.
        draws: noise draws a scale.
        k: neighbours.
        seed: of the draws.
        kind: see :func:`perturbed`.

    Returns:
        rows ``{"curve", "scale", "draw", "accuracy"}``.
    """
    check_int(draws, "draws", minimum=1)
    for s in scales:
        check_real(float(s), "scales", minimum=0.0)
    x_memory, x_test = (torch.from_numpy(v.astype(np.float32)) for v in (memory, test))
    clean = _unit(features_of(model, x_memory))
    rows: list[dict[str, float | str | int]] = []
    head, body = model.head, model.body
    assert isinstance(head, nn.Module) and isinstance(body, nn.Module)

    def knn(base: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return votes(memory_labels, neighbours(base, asked, k), [k])[k]

    for s in scales:
        for draw in range(draws):
            noisy = perturbed(model, float(s), seed * 1_000 + draw, kind=kind)
            f_memory, f_test = features_of(noisy, x_memory), features_of(noisy, x_test)
            z = torch.from_numpy(f_test)
            noisy_head = noisy.head
            assert isinstance(noisy_head, nn.Module)
            with torch.inference_mode():
                answers = {
                    "readout": head(z).argmax(1).numpy(),
                    "readout, all weights noisy": noisy_head(z).argmax(1).numpy(),
                }
            answers["k-NN re-embedded"] = knn(_unit(f_memory), _unit(f_test))
            answers["k-NN clean memory"] = knn(clean, _unit(f_test))
            answers["readout refitted"] = RidgeClassifier(alpha=1e-2).fit(f_memory, memory_labels).predict(f_test)
            rows += [
                {"curve": c, "scale": float(s), "draw": draw, "accuracy": float((answers[c] == test_labels).mean())}
                for c in CURVES
            ]
    return rows


def _unit(features: np.ndarray) -> np.ndarray:
    """Unit rows; an all-zero row (every unit dead under noise) is kept at the origin."""
    x = np.pad(features.astype(np.float64), ((0, 0), (0, 1)), constant_values=1e-9)
    return prepare(x, "cosine")

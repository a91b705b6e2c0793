"""What is timed: each case against its peer, with the bar it must meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.posterior import reference_mean, squared_norms

__all__ = ["CASES", "Case"]

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        make: builds what is timed and its peer.
        bar: the ratio of CPU seconds that may not be exceeded.
        peer: what the peer is, in words.
        repeats: pairs that are timed; more where one is short.
    """

    make: Callable[[], tuple[Call, Call]]
    bar: float
    peer: str
    repeats: int = 5


def _mean() -> tuple[Call, Call]:
    refs, x = torch.rand(1000, 294_912, dtype=torch.float64), torch.rand(1, 294_912, dtype=torch.float64)
    norms = squared_norms(refs)
    return lambda: reference_mean(x, refs, 0.5, metric="mean", topk=4, norms=norms), lambda: refs @ x[0]


def _pipeline() -> tuple[Call, Call]:
    from neurips26.reference_guidance.schedulers import guide
    from neurips26.reference_guidance.tiny import tiny_call, tiny_pipeline

    pipe = tiny_pipeline("flux2-klein")
    call = {"height": 64, "width": 96, "num_inference_steps": 8}
    guidance = ReferenceMeanGuidance(ReferenceBank.from_latents(torch.randn(20, 16 * 24, 16)))

    def guided() -> None:
        with guide(pipe, guidance):
            pipe(**tiny_call("flux2-klein", **call))

    return guided, lambda: pipe(**tiny_call("flux2-klein", **call))


def _anchor() -> tuple[Call, Call]:
    from neurips26.reference_guidance.spg import MeanAnchor, SPGConfig

    anchor = MeanAnchor(SPGConfig(32, 8, 8)).requires_grad_(False)
    x, refs, time = torch.randn(1, 32, 8, 8), torch.randn(4096, 32, 8, 8), torch.randn(1, 256)
    cached = anchor.cache(refs)
    return lambda: anchor(x, time, cached, None), lambda: anchor(x, time, anchor.cache(refs), None)


CASES = {
    "pipeline": Case(_pipeline, 1.15, "the unguided pipeline", 60),
    "mean": Case(_mean, 3.0, "one float64 product refs @ x"),
    "anchor": Case(_anchor, 0.5, "keys computed at every step"),
}

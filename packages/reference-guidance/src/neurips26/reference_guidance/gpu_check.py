"""What one GPU measures without any download: the cost of guidance beside a klein-sized transformer, and SPG beside a DiT.

Every step takes a :class:`Scale`, so the same code runs in small on a CPU as a rehearsal whose figures are thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.toys import cats_and_dogs

__all__ = ["NO_PHOTOGRAPHS", "STEPS", "Scale", "full_scale", "guidance_overhead", "rehearsal", "spg_parity"]

#: What a record says where the photographs are missing.
NO_PHOTOGRAPHS = (
    "cifar10_cat_dog.zip is not at hand: both models were trained on random numbers, so steps a second are theirs but the "
    "losses say nothing about photographs"
)

#: FLUX.2-klein-4B's transformer as published: 5 double and 20 single blocks, 24 heads of 128, text width 7680.
KLEIN = {
    "in_channels": 128, "num_layers": 5, "num_single_layers": 20, "attention_head_dim": 128, "num_attention_heads": 24,
    "joint_attention_dim": 7680, "timestep_guidance_channels": 256, "axes_dims_rope": (32, 32, 32, 32),
    "guidance_embeds": False,
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Sizes of a run.

    Attributes:
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of the transformer.
        tokens, text: latent and prompt tokens (2304 are 768x768 pixels).
        transformer: configuration of the transformer.
        banks: numbers of references.
        repeats: timed repeats, one value each.
        spg: sizes of the generator (arguments of ``SPGConfig``).
        steps, batch, data: of the training; ``data`` images.
    """

    device: str
    dtype: torch.dtype
    tokens: int
    text: int
    transformer: dict[str, Any]
    banks: tuple[int, ...]
    repeats: int
    spg: tuple[int, ...]
    steps: int
    batch: int
    data: int


def full_scale() -> Scale:
    """klein-4B at 768x768 and the authors' SPG (768 wide, 11 blocks) on cats and dogs brought to 48x16x16 numbers."""
    return Scale("cuda", torch.bfloat16, 2304, 512, KLEIN, (20, 1000), 5, (48, 16, 16), 500, 64, 4000)


def rehearsal() -> Scale:
    """The same steps on a CPU within seconds."""
    small = KLEIN | {
        "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
        "joint_attention_dim": 24, "timestep_guidance_channels": 16, "axes_dims_rope": (4, 4, 4, 4),
    }  # fmt: skip
    return Scale("cpu", torch.float32, 24, 7, small, (3, 5), 2, (48, 16, 16, 8, 64, 1, 2, 4, 32), 4, 4, 16)


def _sync(scale: Scale) -> None:
    if scale.device == "cuda":
        torch.cuda.synchronize()


def _seconds(scale: Scale, call: Callable[[], Any], calls: int = 5) -> float:
    call()
    _sync(scale)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _sync(scale)
    return (time.perf_counter() - start) / calls


@torch.no_grad()
def guidance_overhead(scale: Scale) -> dict[str, list[float]]:
    """Time of one correction over that of one forward pass, by number of references."""
    from diffusers import Flux2Transformer2DModel

    with torch.device(scale.device):
        model = Flux2Transformer2DModel(**scale.transformer).to(scale.dtype).eval()
        x = torch.randn(1, scale.tokens, scale.transformer["in_channels"], dtype=scale.dtype)
        prompt = torch.randn(1, scale.text, scale.transformer["joint_attention_dim"], dtype=scale.dtype)
        ids, words = torch.zeros(1, scale.tokens, 4), torch.zeros(1, scale.text, 4)
        t = torch.full((1,), 0.5, dtype=scale.dtype)
    forward = lambda: model(x, prompt, t, ids, words, return_dict=False)[0]  # noqa: E731
    v = forward()
    found = {}
    for m in scale.banks:
        bank = ReferenceBank.from_latents(torch.randn(m, *x.shape[1:], device=scale.device, dtype=scale.dtype))
        guidance = ReferenceMeanGuidance(bank, strength=0.5)
        pairs = []
        for _ in range(scale.repeats):
            ours = _seconds(scale, lambda g=guidance: g.correct(v, x, 0.5, 10, 50))
            pairs.append(ours / _seconds(scale, forward))
        found[str(m)] = pairs
    return found


@cache
def _latents(path: Path | None, n: int) -> Tensor:
    """Cats and dogs enlarged to 64x64 and folded to 48x16x16; random numbers where the photographs are not at hand."""
    if path is None:
        return torch.randn(n, 48, 16, 16, generator=torch.Generator().manual_seed(0))
    images = cats_and_dogs(path, 32)[0].images[:: max(1, 4000 // n)][:n]
    large = torch.nn.functional.interpolate(images, scale_factor=2, mode="bilinear", align_corners=False)
    return torch.nn.functional.pixel_unshuffle(large, 4) / 0.5


def spg_parity(scale: Scale, path: Path | None, seed: int) -> dict[str, float]:
    """Mean loss over the last tenth of the training, and steps a second, of SPG and of the DiT in bf16.

    Without the photographs (``path`` is ``None``) both train on random numbers: see ``NO_PHOTOGRAPHS``.
    """
    from neurips26.reference_guidance.spg import SPG, DiTMean, SPGConfig  # takes seconds to import
    from neurips26.reference_guidance.spg_train import SPGTrainer, TrainConfig

    latents = _latents(path, scale.data)
    found: dict[str, float] = {}
    for kind, build in (("SPG", SPG.from_sizes), ("DiT", DiTMean.of_equal_budget)):
        torch.manual_seed(seed)
        model = build(SPGConfig(*scale.spg)).to(scale.device)
        precision = "bf16" if scale.device == "cuda" else "no"
        config = TrainConfig(scale.steps, scale.batch, 0, 1e-4, ema=0.99, precision=precision, seed=seed)
        trainer = SPGTrainer(model, latents, config)
        begin = time.perf_counter()
        trainer.train()
        _sync(scale)
        last = trainer.losses[-max(1, scale.steps // 10) :]
        found[f"{kind} loss"] = sum(last) / len(last)
        found[f"{kind} steps a second"] = scale.steps / (time.perf_counter() - begin)
    return found


STEPS: dict[str, Callable[[Scale, Path | None], Any]] = {
    "guidance-overhead": lambda scale, path: guidance_overhead(scale),
    "spg-parity": lambda scale, path: spg_parity(scale, path, 0),
}

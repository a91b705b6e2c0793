"""Training of SPG and of its baseline: the authors' losses, self-masking, reference dropout; resumes bit for bit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.training_utils import EMAModel
from jaxtyping import Float
from lion_pytorch import Lion
from torch import Tensor

from neurips26.reference_guidance.errors import CheckpointError
from neurips26.reference_guidance.spg import SPG, T_EPS, DiTMean
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["SPGTrainer", "TrainConfig", "keep_mask", "spg_loss"]


@dataclass(frozen=True)
class TrainConfig:
    """The recipe; the defaults are the authors' (AFHQv2 latents, batch 64 on each of 4 GPUs).

    Attributes:
        steps: optimiser steps.
        batch: samples a step (and process).
        bank: references drawn a step; 0 uses the whole training set as the bank, as the authors do.
        lr: of Lion, without weight decay.
        clip: gradient norm.
        ema: decay of the weight average; it warms up, so that short runs do not evaluate their initial weights.
        penalty: weight of the residual loss.
        dropout: share of references hidden from each sample, never all.
        self_mask: hide a training image from its own reference set; without it the model learns to copy.
        cooldown: share of the steps, at the end, in which the rate falls linearly to 0; the authors train long at one rate.
        precision: ``"no"``, ``"bf16"`` or ``"fp16"`` (accelerate).
        seed: of weights, batches, times and noise.
    """

    steps: int = 10_000
    batch: int = 64
    bank: int = 0
    lr: float = 1e-4
    clip: float = 1.0
    ema: float = 0.9999
    penalty: float = 0.1
    dropout: float = 0.1
    self_mask: bool = True
    cooldown: float = 0.0
    precision: str = "no"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            check_int(getattr(self, name), name, minimum=1)
        check_int(self.bank, "bank", minimum=0)
        check_int(self.seed, "seed", minimum=0)
        check_choice(self.self_mask, "self_mask", (True, False))
        check_choice(self.precision, "precision", ("no", "bf16", "fp16"))
        if self.bank == 1 and self.self_mask:
            raise ValueError(
                "bank: expected 0 or at least 2 with self_mask (a sample hides itself from its set), got 1"
            )
        check_real(self.lr, "lr", minimum=0.0, inclusive=False)
        check_real(self.clip, "clip", minimum=0.0, inclusive=False)
        check_real(self.ema, "ema", minimum=0.0, maximum=1.0)
        check_real(self.penalty, "penalty", minimum=0.0)
        check_real(self.dropout, "dropout", minimum=0.0, maximum=0.99)
        check_real(self.cooldown, "cooldown", minimum=0.0, maximum=1.0)

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        left = self.steps - step
        fall = self.cooldown * self.steps
        return self.lr * min(1.0, left / fall) if fall else self.lr


def keep_mask(own: Tensor, bank: Tensor, dropout: float, generator: torch.Generator, self_mask: bool = True) -> Tensor:
    """(b, m): which references a training sample may use; dropout never hides the last one.

    Args:
        own: index of each training sample (b,).
        bank: index of each reference (m,).
        dropout: share hidden at random.
        generator: source of the dropout.
        self_mask: hide the sample itself.
    """
    allowed = (own[:, None] != bank[None]) if self_mask else torch.ones(len(own), len(bank), dtype=torch.bool)
    score = torch.rand(allowed.shape, generator=generator)
    kept = allowed & (score >= dropout)
    # a sample left with nothing keeps the allowed reference with the highest score
    best = score.masked_fill(~allowed, -1.0).argmax(1, keepdim=True)
    rescue = torch.zeros_like(kept).scatter(1, best, True) & allowed
    return torch.where(kept.any(1, keepdim=True), kept, rescue)


def spg_loss(
    out: Any, target: Float[Tensor, "b c h w"], t: Float[Tensor, " b"], penalty: float = 0.1
) -> Float[Tensor, ""]:
    """``mean_b [mse_b / max(1 - t^2, 1e-4)]`` plus ``penalty`` times the residual's own loss (a tensor has none)."""
    mean = out if isinstance(out, Tensor) else out.mean
    weight = (1 - t.square()).clamp_min(1e-4)
    loss = ((mean - target).square().flatten(1).mean(1) / weight).mean()
    if isinstance(out, Tensor):
        return loss
    return loss + penalty * (out.residual - (target - out.base.detach())).square().mean()


def _kind(x: Any) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


class SPGTrainer:
    """Trains an :class:`SPG` or a :class:`DiTMean` on latents.

    Args:
        model: the model.
        latents: training set (n, c, h, w).
        config: the recipe.
        accelerator: an ``accelerate.Accelerator`` for several processes or mixed precision; plain CPU training without.
    """

    def __init__(
        self, model: SPG | DiTMean, latents: Float[Tensor, "n c h w"], config: TrainConfig, accelerator: Any = None
    ) -> None:
        if not isinstance(config, TrainConfig):
            raise TypeError(f"config: expected a TrainConfig, got {type(config).__name__}")
        self._check(latents, config)
        if config.precision != "no" and accelerator is None:
            from accelerate import Accelerator

            accelerator = Accelerator(mixed_precision=config.precision)
        self.config, self.accelerator = config, accelerator
        self.device = accelerator.device if accelerator else next(model.parameters()).device
        self.latents = latents.to(self.device)
        self._data = hashlib.sha256(latents.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        self.model = model.to(self.device)
        self.optimizer = Lion(self.model.parameters(), lr=config.lr, weight_decay=0.0)
        self.ema = EMAModel(self.model.parameters(), decay=config.ema, use_ema_warmup=True)
        self.forward: Any = self.model
        if accelerator:
            self.forward, self.optimizer = accelerator.prepare(self.model, self.optimizer)
        rank = accelerator.process_index if accelerator else 0
        self.generator = torch.Generator().manual_seed(config.seed * 1000 + rank)
        self.step, self.skipped = 0, 0
        self.losses: list[float] = []

    @staticmethod
    def _check(latents: Tensor, config: TrainConfig) -> None:
        if not isinstance(latents, Tensor) or latents.dtype != torch.float32 or latents.ndim != 4:
            raise TypeError(f"latents: expected a float32 tensor (n, c, h, w), got {_kind(latents)}")
        if len(latents) < 1 + config.self_mask:
            raise ValueError(
                f"latents: expected at least {1 + config.self_mask} (with self_mask a sample hides itself), got {len(latents)}"
            )
        if not torch.isfinite(latents).all():
            raise ValueError("latents: expected finite numbers, got some that are not")

    def batch_loss(self) -> Tensor:
        """Loss of a fresh batch (times uniform on [1e-3, 1 - 1e-3])."""
        c, g = self.config, self.generator
        n = len(self.latents)
        own = torch.randint(n, (c.batch,), generator=g)
        x1 = self.latents[own.to(self.device)]
        t = (T_EPS + (1 - 2 * T_EPS) * torch.rand(c.batch, generator=g)).to(self.device)
        x0 = torch.randn(x1.shape, generator=g).to(self.device)
        w = t.reshape(-1, 1, 1, 1)
        x = (1 - w) * x0 + w * x1
        if isinstance(self.model, DiTMean):
            return spg_loss(self.forward(x, t), x1, t)
        refs = torch.randperm(n, generator=g)[: c.bank] if 0 < c.bank < n else torch.arange(n)
        mask = keep_mask(own, refs, c.dropout, g, c.self_mask).to(self.device)
        return spg_loss(self.forward(x, t, self.latents[refs.to(self.device)], mask), x1, t, c.penalty)

    def train(
        self,
        until: int | None = None,
        save_to: Path | None = None,
        every: int = 0,
        report: Callable[[int], Any] | None = None,
    ) -> SPGTrainer:
        """Train up to step ``until``; with ``save_to`` a checkpoint every ``every`` steps and at the end."""
        end = self.config.steps if until is None else until
        self.model.train()
        while self.step < end:
            self._step()
            if save_to is not None and (self.step == end or (every and self.step % every == 0)):
                self.save(save_to)
            if report is not None:
                report(self.step)
        return self

    def _step(self) -> None:
        context = self.accelerator.autocast() if self.accelerator else torch.enable_grad()
        with context:
            loss = self.batch_loss()
        self.optimizer.zero_grad(set_to_none=True)
        parameters = list(self.model.parameters())
        if torch.isfinite(loss):
            self.accelerator.backward(loss) if self.accelerator else loss.backward()
            clip = self.accelerator.clip_grad_norm_ if self.accelerator else torch.nn.utils.clip_grad_norm_
            norm = clip(parameters, self.config.clip)
        if torch.isfinite(loss) and torch.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.rate(self.step)
            self.optimizer.step()
            self.ema.step(parameters)
        else:
            self.skipped += 1
        self.losses.append(float(loss.detach()))
        self.step += 1

    def averaged(self) -> SPG | DiTMean:
        """The model with averaged weights, in evaluation mode; the training weights stay in the trainer."""
        twin = type(self.model)(**{k: v for k, v in self.model.config.items() if not k.startswith("_")}).to(self.device)
        twin.load_state_dict(self.model.state_dict())
        self.ema.copy_to(twin.parameters())
        return twin.eval()

    def save(self, path: Path) -> None:
        """Write a checkpoint (the first of several processes); atomic."""
        if self.accelerator and not self.accelerator.is_main_process:
            return
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "ema": self.ema.state_dict(),
            "generator": self.generator.get_state(), "step": self.step, "skipped": self.skipped, "losses": self.losses,
            "config": asdict(self.config), "data": self._data, "sizes": self._sizes(),
        }  # fmt: skip
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        torch.save(state, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> SPGTrainer:
        """Continue from a checkpoint; on one CPU the continued run equals an uninterrupted one bit for bit.

        Raises:
            CheckpointError: unreadable, of another model, or of a run with other settings or other latents (more steps
                may be asked for where the rate does not depend on their number).
        """
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            self._same_run(path, state)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.ema.load_state_dict(state["ema"])
        except (FileNotFoundError, CheckpointError):
            raise
        except Exception as error:
            raise CheckpointError(
                f"{path}: cannot be used as a checkpoint ({type(error).__name__}: {error})"
            ) from error
        if self.accelerator and not self.accelerator.is_main_process:  # other batches than the first process
            self.generator.manual_seed(
                self.config.seed * 1000 + self.accelerator.process_index + 1_000_003 * state["step"]
            )
        else:
            self.generator.set_state(state["generator"].cpu())
        self.step, self.skipped, self.losses = state["step"], state["skipped"], list(state["losses"])
        return self

    def _sizes(self) -> dict[str, Any]:
        sizes = {k: v for k, v in self.model.config.items() if not k.startswith("_")}
        return {"model": type(self.model).__name__} | sizes

    def _same_run(self, path: Path, state: dict[str, Any]) -> None:
        asked, theirs = asdict(self.config), dict(state["config"])
        if not self.config.cooldown:
            theirs["steps"] = asked["steps"]
        theirs |= state.get("sizes", {})
        asked |= self._sizes()
        other = [f"{k} {theirs.get(k)} (asked {v})" for k, v in asked.items() if theirs.get(k) != v]
        if state["data"] != self._data:
            other.append("other latents")
        if other:
            raise CheckpointError(f"{path}: belongs to a run with {', '.join(other)}; choose another folder")

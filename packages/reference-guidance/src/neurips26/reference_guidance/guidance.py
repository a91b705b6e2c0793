r"""Reference-Mean Guidance: shift the endpoint mean towards the reference mean, and the flow follows.

    u_guided = u_theta + beta_t (mu_ref - mu_theta) / (1 - t)      or, with diffusers' v = -u and sigma = 1 - t,
    v_guided = v - beta_t (mu_ref - mu_theta) / sigma,   mu_theta = x - sigma v.

``beta = 0`` is the base model, ``beta = 1`` the flow of the reference set alone, ``beta > 1`` extrapolates.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.bridge import LinearBridge
from neurips26.reference_guidance.errors import BankMismatchError, EmptyBankError
from neurips26.reference_guidance.posterior import (
    METRICS,
    SCOPES,
    check_finite,
    dense_mean,
    reference_mean,
    scales,
)
from neurips26.reference_guidance.schedules import SCHEDULES, Schedule, beta, check_window, in_window, step_fraction
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["MODES", "TIMES", "ExtrapolationWarning", "ReferenceMeanGuidance", "StepRecord"]

TIMES = ("sigma", "step_fraction")
MODES = ("in_step", "released", "released_first")
#: References kept at each step (the authors' k); a smaller bank is used whole without a word.
TOPK = 4
LINEAR = LinearBridge()  # of all flow pipelines of diffusers


class ExtrapolationWarning(UserWarning):
    """Guidance may push samples beyond the reference mean (``beta > 1``)."""


@dataclass(frozen=True)
class StepRecord:
    """What guidance did in one solver step; averages over the batch."""

    step: int
    sigma: float
    t: float
    beta: float
    entropy: float
    top1: float
    correction: float

    def to_json(self) -> dict[str, float | int]:
        """As a plain dict."""
        return dict(vars(self))


@dataclass
class ReferenceMeanGuidance:
    """How a bank guides a sampler. Defaults are those of the authors' FLUX configurations, with the true time.

    Attributes:
        bank: the references, or one bank a sample of the batch (with several images a prompt: that many in a row).
        strength: ``lambda``; above 1 the three named schedules reach ``beta > 1``, which extrapolates: allowed, with an
            :class:`ExtrapolationWarning` and a note in :meth:`settings`.
        schedule: ``"quadratic"`` (lambda (1-t)^2), ``"bell"`` (4 lambda t (1-t)), ``"constant"`` or a function of t.
        window: guidance acts at step fractions inside this closed interval.
        topk: references kept at each step; ``None`` keeps all.
        metric: ``"mean"`` (soft, as released) or ``"sum"`` (exact posterior, nearest neighbour in high dimension).
        temperature: further softening of the posterior.
        time: ``"sigma"`` (t = 1 - sigma, the true time) or ``"step_fraction"`` (t = step / (N - 1), as released).
        scope: one softmax an image (``"global"``) or a token (``"patch"``).
        region: weights in [0, 1] that broadcast against the latents; guidance acts only where they are above 0.
        mode: ``"in_step"`` corrects the velocity before the solver uses it. ``"released"`` reproduces the authors'
            callback after the step (velocity by finite differences), ``"released_first"`` their first public version,
            which leaves the model's velocity out. Both released modes set ``time="step_fraction"``, the only clock they know.
        chunk: references per block of the streamed softmax (the patch scope goes through the tokens in blocks instead).
        history: one :class:`StepRecord` a guided step of the last run.
    """

    bank: ReferenceBank | Sequence[ReferenceBank]
    strength: float | int = 0.5
    schedule: Schedule = "quadratic"
    window: tuple[float | int, float | int] = (0.0, 0.95)
    topk: int | None = TOPK
    metric: str = "mean"
    temperature: float | int = 1.0
    time: str = "sigma"
    scope: str = "global"
    region: Tensor | None = None
    mode: str = "in_step"
    chunk: int | None = None
    history: list[StepRecord] = field(default_factory=list, repr=False)
    _reached: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.bank, (ReferenceBank, list, tuple)):
            raise TypeError(f"bank: expected a ReferenceBank or a list of them, got {type(self.bank).__name__}")
        if not self.banks:
            raise EmptyBankError("bank: expected a bank, or one a sample, got an empty list")
        for b in self.banks:
            if not isinstance(b, ReferenceBank):
                raise TypeError(f"bank: expected a ReferenceBank or a list of them, got a list with {type(b).__name__}")
        check_real(self.strength, "strength")
        if isinstance(self.schedule, str):
            check_choice(self.schedule, "schedule", SCHEDULES)
        elif not callable(self.schedule):
            raise TypeError(f"schedule: expected a name or a function of t, got {self.schedule!r}")
        self.window = check_window(self.window)
        if self.topk is not None:
            check_int(self.topk, "topk", minimum=1)
            largest = max(len(b) for b in self.banks)
            if self.topk > largest:
                if self.topk != TOPK:
                    warnings.warn(
                        f"topk: {self.topk} is more than the {largest} references; using all of them", stacklevel=3
                    )
                self.topk = largest
        check_choice(self.metric, "metric", METRICS)
        check_real(self.temperature, "temperature", minimum=0.0, inclusive=False)
        check_choice(self.time, "time", TIMES)
        check_choice(self.scope, "scope", SCOPES)
        check_choice(self.mode, "mode", MODES)
        if self.mode != "in_step":
            self.time = "step_fraction"
        if self.chunk is not None:
            check_int(self.chunk, "chunk", minimum=1)
        if self.region is not None and not isinstance(self.region, Tensor):
            raise TypeError(f"region: expected a tensor of weights, got {type(self.region).__name__}")
        if self.region is not None and self.mode != "in_step":
            raise ValueError(f"region: expected none with mode {self.mode!r}, which knows no regions")
        if self.region is not None and not (
            self.region.numel()
            and torch.isfinite(self.region).all()
            and 0 <= self.region.min() <= self.region.max() <= 1
        ):
            raise ValueError("region: expected weights in [0, 1], got some outside")
        if self.note:
            warnings.warn(self.note, ExtrapolationWarning, stacklevel=3)

    @property
    def banks(self) -> list[ReferenceBank]:
        """The bank, or the bank of every sample, as a list."""
        return [self.bank] if isinstance(self.bank, ReferenceBank) else list(self.bank)

    def settings(self) -> dict[str, Any]:
        """The numbers that define a run, for its record."""
        names = ("strength", "window", "topk", "metric", "temperature", "time", "scope", "mode", "chunk")
        named = self.schedule if isinstance(self.schedule, str) else getattr(self.schedule, "__name__", "callable")
        found = {n: getattr(self, n) for n in names} | {"schedule": named, "references": [len(b) for b in self.banks]}
        if self.region is not None:
            found["region"] = {"shape": list(self.region.shape), "mean": float(self.region.float().mean())}
        return found | ({"note": self.note} if self.note else {})

    @property
    def note(self) -> str:
        """What to know about these settings; empty where there is nothing to say."""
        if isinstance(self.schedule, str) and self.strength > 1:
            return (
                f"strength: {self.strength:g} lets beta exceed 1 ({self.schedule} schedule), which extrapolates beyond the "
                "reference mean"
            )
        if self.strength < 0:
            return f"strength: {self.strength:g} is negative, which extrapolates away from the reference mean"
        return self._reached

    def begin(self, sample: Tensor, steps: int) -> None:
        """Start a run of ``steps`` solver steps: forget the last one, and check what can be checked before the first."""
        self.history.clear()
        for bank in self.banks:
            bank.check_latents(sample)
        if not any(in_window(i, steps, self.window) for i in range(steps)):
            warnings.warn(
                f"window: none of the {steps} steps lies between the fractions {self.window[0]:g} and {self.window[1]:g}; "
                "nothing is guided",
                stacklevel=3,
            )

    def mean(self, x: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reference mean of a batch with the entropy and largest weight of every sample."""
        banks = self.banks
        if len(banks) == 1:
            return self._bank_mean(banks[0], x, t)
        if len(banks) != x.shape[0]:
            raise BankMismatchError(f"bank: expected one bank, or one a sample ({x.shape[0]}), got {len(banks)}")
        each = [
            self._bank_mean(b, x[i : i + 1], t[i : i + 1] if isinstance(t, Tensor) and t.ndim else t)
            for i, b in enumerate(banks)
        ]
        mu, entropy, top1 = (torch.cat(parts) for parts in zip(*each))
        return mu, entropy, top1

    def _bank_mean(self, bank: ReferenceBank, x: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bank.check_latents(x)
        k = None if self.topk is None or self.topk >= len(bank) else self.topk
        at_hand = bank.rows(x.device) if self.chunk is None and self.scope == "global" else None
        if at_hand is not None and not isinstance(t, Tensor):
            # the path of a sampler's step: what belongs to the bank is computed once, what was checked is not again
            rows, norms, prior = at_hand
            a, s = scales(t, LINEAR)
            width = s * s * self.temperature * (rows.shape[1] if self.metric == "mean" else 1)
            mu, stats = dense_mean(x.flatten(1).double(), rows, norms, a / width, a * a / (2 * width), k, prior)
            return mu.to(x.dtype).reshape(x.shape), stats.entropy, stats.top1
        mu, stats = reference_mean(
            x, bank.ready(x.device), t, temperature=self.temperature, metric=self.metric, topk=k, log_prior=bank.log_prior,
            chunk=self.chunk, scope=self.scope, norms=bank.norms,
        )  # fmt: skip
        return mu, stats.entropy.flatten(1).mean(1) if stats.entropy.ndim > 1 else stats.entropy, stats.top1

    def active(self, step: int, steps: int, sigma: float) -> float:
        """``beta`` of this step, 0 outside the window."""
        if not in_window(step, steps, self.window):
            return 0.0
        found = beta(self.schedule, self.strength, self.clock(step, steps, sigma))
        if not math.isfinite(found):
            raise ValueError(f"schedule: expected finite numbers, got beta {found} at step {step} of {steps}")
        if found > 1 and not self.note:  # a schedule of the user's own: known only when it gets there
            self._reached = f"schedule: beta reached {found:.3g}, which extrapolates beyond the reference mean"
            warnings.warn(self._reached, ExtrapolationWarning, stacklevel=2)
        return found

    def clock(self, step: int, steps: int, sigma: float) -> float:
        """The ``t`` that schedule and posterior see."""
        return step_fraction(step, steps) if self.time == "step_fraction" else 1.0 - sigma

    def _strengths(self, sigma: Tensor, step: int, steps: int) -> Tensor:
        """``beta`` of every token where tokens have noise levels of their own; few levels differ."""
        levels, which = sigma.double().cpu().unique(return_inverse=True)
        found = [self.active(step, steps, float(level)) for level in levels]
        return torch.tensor(found, dtype=torch.float32)[which]

    def _weights(self, x: Tensor) -> Tensor:
        """The region on the device of ``x``; it broadcasts against the latents, and they never against it."""
        assert self.region is not None
        try:
            return self.region.to(x.device, x.dtype).broadcast_to(x.shape)
        except RuntimeError as error:
            raise BankMismatchError(
                f"region: expected a shape that broadcasts to {tuple(x.shape)}, got {tuple(self.region.shape)}"
            ) from error

    @torch.no_grad()
    def correct(self, v: Tensor, x: Tensor, sigma: float | Tensor, step: int, steps: int) -> Tensor:
        """Guided velocity in diffusers' sign.

        Args:
            v: the model's output, ``noise - data``.
            x: the sample it was evaluated at.
            sigma: noise level of the evaluation; a tensor that broadcasts against ``x`` where tokens differ.
            step: index of the solver step.
            steps: number of solver steps.

        Returns:
            ``v`` itself (the same object) where guidance does not act, otherwise the corrected velocity in float32.
        """
        noise = sigma.to(x.device, torch.float32) if isinstance(sigma, Tensor) and sigma.ndim else None
        level = float(sigma.float().mean()) if isinstance(sigma, Tensor) else float(sigma)
        strength = self.active(step, steps, level) if noise is None else self._strengths(noise, step, steps)
        if level <= 0.0 or not (strength.any() if isinstance(strength, Tensor) else strength):
            return v
        x, v = x.float(), v.float()
        clock = self.clock(step, steps, level)
        if noise is not None:
            mu_ref, entropy, top1 = self.mean(x, 1.0 - noise if self.time == "sigma" else clock)
            # per-token schedules may contain clean tokens (sigma 0): they have nothing left to guide
            shift = torch.where(noise > 0, (mu_ref - x) / noise.clamp_min(1e-12) + v, torch.zeros_like(x))
        else:
            mu_ref, entropy, top1 = self.mean(x, clock)
            shift = torch.add(v, mu_ref - x, alpha=1.0 / level)  # (mu_ref - mu_theta) / sigma
        if self.region is not None:
            shift = shift * self._weights(x)
        correction = shift * strength.to(x.device) if isinstance(strength, Tensor) else shift
        norm = torch.linalg.vector_norm(correction.flatten(1), dim=1)
        seen = torch.stack([entropy, top1, norm.double()]).mean(1).tolist()  # one wait for the device, not three
        if not math.isfinite(seen[0]):  # a number of x that is not finite makes the entropy nan
            check_finite(x, "x")
        beta_seen, alpha = (float(strength.mean()), 1.0) if isinstance(strength, Tensor) else (strength, strength)
        self.history.append(StepRecord(step, level, clock, beta_seen, seen[0], seen[1], alpha * seen[2]))
        return torch.sub(v, correction, alpha=alpha)

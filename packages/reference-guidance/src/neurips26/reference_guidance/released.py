"""The authors' released guidance, arithmetic for arithmetic: a correction of the latents after each solver step.

It differs from the paper's formula in ways that matter when a published strength is to be used as published: the clock
is ``step / (N - 1)`` whatever the noise schedule does, the model's velocity is rebuilt from the difference of two stored
latents (the first guided step goes without), what is stored does not yet contain the correction, and nothing is stored
outside the window. The first public version leaves the model's velocity out altogether.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from diffusers.callbacks import PipelineCallback
from torch import Tensor

from neurips26.reference_guidance.posterior import check_finite
from neurips26.reference_guidance.schedules import in_window, step_fraction

if TYPE_CHECKING:
    from neurips26.reference_guidance.guidance import ReferenceMeanGuidance

__all__ = ["ReferenceGuidanceCallback", "ReleasedCorrection"]


class ReleasedCorrection:
    """State of one run of the released callback."""

    def __init__(self, guidance: ReferenceMeanGuidance) -> None:
        self.guidance = guidance
        self.previous: Tensor | None = None

    @torch.no_grad()
    def __call__(self, latents: Tensor, step: int, steps: int) -> Tensor:
        """Latents after the solver step ``step`` of ``steps``, corrected."""
        from neurips26.reference_guidance.guidance import StepRecord

        g = self.guidance
        if not in_window(step, steps, g.window):
            return latents
        t = step_fraction(step, steps)
        dt = (1.0 if step + 1 >= steps else step_fraction(step + 1, steps)) - t
        strength = g.active(step, steps, 1.0 - t)
        x = latents.float()
        mu, entropy, top1 = g.mean(x, t)
        if not torch.isfinite(entropy).all():  # a number of x that is not finite makes the entropy nan
            check_finite(x, "latents")
        clock = min(max(t, 1e-4), 1 - 1e-4)
        velocity = ((mu - x) / (1.0 - clock)).to(latents.dtype)
        if g.mode == "released" and self.previous is not None and dt > 0:
            velocity = velocity - (latents - self.previous) / dt
        correction = strength * velocity * dt
        self.previous = latents.detach().clone()
        norm = float(correction.float().flatten(1).norm(dim=1).mean())
        g.history.append(StepRecord(step, 1.0 - t, t, strength, float(entropy.mean()), float(top1.mean()), norm))
        return latents + correction.to(latents.dtype)


class ReferenceGuidanceCallback(PipelineCallback):
    """The released guidance as a ``callback_on_step_end``, for pipelines whose scheduler cannot be swapped.

    ``pipe(..., callback_on_step_end=ReferenceGuidanceCallback(guidance))``; the guidance's ``mode``, ``"released"`` or
    ``"released_first"``, chooses the version. A callback sees latents alone: where they are packed, it cannot tell a bank of
    64x96 from a picture of 96x64, which :func:`guide` refuses.
    """

    tensor_inputs: ClassVar[list[str]] = ["latents"]

    def __init__(self, guidance: ReferenceMeanGuidance) -> None:
        super().__init__()
        if guidance.mode == "in_step":
            raise ValueError(
                "guidance: expected mode 'released' or 'released_first', got 'in_step', which acts inside the scheduler: "
                "use guide(pipe, guidance)"
            )
        self.guidance = guidance
        self._run: ReleasedCorrection | None = None

    def callback_fn(
        self, pipeline: Any, step_index: int, timesteps: Any, callback_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Called by the pipeline after each step."""
        if step_index == 0 or self._run is None:
            for bank in self.guidance.banks:
                bank.check_pipe(pipeline)
            self.guidance.begin(callback_kwargs["latents"], int(pipeline.num_timesteps))
            self._run = ReleasedCorrection(self.guidance)
        steps = int(pipeline.num_timesteps)
        callback_kwargs["latents"] = self._run(callback_kwargs["latents"], step_index, steps)
        return callback_kwargs

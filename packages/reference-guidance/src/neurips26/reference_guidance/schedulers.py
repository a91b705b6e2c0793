"""Guidance inside ``scheduler.step``: the one place where velocity, sample and noise level of every flow pipeline meet.

By then classifier-free guidance is merged, reference-image tokens are cut off and sign conventions are settled.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler, FlowMatchLCMScheduler
from torch import Tensor

from neurips26.reference_guidance.errors import UnsupportedSchedulerError
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.released import ReleasedCorrection

__all__ = [
    "ReferenceGuidanceMixin",
    "ReferenceGuidedFlowMatchEuler",
    "ReferenceGuidedFlowMatchHeun",
    "ReferenceGuidedFlowMatchLCM",
    "guide",
    "guided_scheduler",
]


class ReferenceGuidanceMixin:
    """Corrects the velocity in ``step`` before the solver uses it.

    Make one with :meth:`from_scheduler`; ``from_config`` builds a scheduler without guidance, which samples like its base.
    """

    guidance: ReferenceMeanGuidance | None = None
    _released: ReleasedCorrection | None = None

    @classmethod
    def from_scheduler(cls, scheduler: Any, guidance: ReferenceMeanGuidance) -> Any:
        """A guided copy of a scheduler, with its configuration and its run-time state (shift, timesteps)."""
        if getattr(scheduler.config, "invert_sigmas", False):
            raise UnsupportedSchedulerError("scheduler: invert_sigmas runs the noise level backwards; not supported")
        guided = cls.__new__(cls)  # configuration and run-time state both live in the instance
        vars(guided).update({k: v for k, v in vars(scheduler).items() if k not in ("guidance", "_released")})
        guided.guidance = guidance
        return guided

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the base class, with the guided velocity."""
        base: Any = super()
        if self.guidance is None:
            return base.step(model_output, timestep, sample, *args, **kwargs)
        if self.step_index is None:  # type: ignore[attr-defined]
            # first step of a run. (set_timesteps stays untouched: pipelines read its signature.)
            self._init_step_index(timestep)  # type: ignore[attr-defined]
            self.guidance.begin(sample, len(self.timesteps))  # type: ignore[attr-defined]
            self._released = None
        index, steps = int(self.step_index), len(self.timesteps)  # type: ignore[attr-defined]
        if self.guidance.mode != "in_step":
            return self._step_released(base, index, steps, model_output, timestep, sample, *args, **kwargs)
        guided = self.guidance.correct(model_output, sample, self._noise_level(index, sample, kwargs), index, steps)
        if guided is model_output:
            return base.step(model_output, timestep, sample, *args, **kwargs)
        # the solver works in float32 and hands back the dtype of the velocity: keep the pipeline's own
        out = base.step(guided, timestep, sample, *args, **kwargs)
        if guided.dtype == model_output.dtype:
            return out
        return _with_sample(out, _sample(out).to(model_output.dtype))

    def _noise_level(self, index: int, sample: Tensor, kwargs: dict[str, Any]) -> float | Tensor:
        tokens = kwargs.get("per_token_timesteps")
        if tokens is not None:
            return (tokens / self.config.num_train_timesteps)[..., None].to(sample.device)  # type: ignore[attr-defined]
        # Heun calls step twice a step; its sigmas are laid out so that this index is the stage's own level both times
        return float(self.sigmas[index])  # type: ignore[attr-defined]

    def _step_released(self, base: Any, index: int, steps: int, *args: Any, **kwargs: Any) -> Any:
        if self._released is None:
            assert self.guidance is not None
            self._released = ReleasedCorrection(self.guidance)
        out = base.step(*args, **kwargs)
        return _with_sample(out, self._released(_sample(out), index, steps))


def _sample(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out.prev_sample


def _with_sample(out: Any, sample: Tensor) -> Any:
    if isinstance(out, tuple):
        return (sample, *out[1:])
    out.prev_sample = sample
    return out


class ReferenceGuidedFlowMatchEuler(ReferenceGuidanceMixin, FlowMatchEulerDiscreteScheduler):
    """Euler (also stochastic sampling and per-token timesteps)."""


class ReferenceGuidedFlowMatchHeun(ReferenceGuidanceMixin, FlowMatchHeunDiscreteScheduler):
    """Heun; both stages are corrected at their own noise level."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As :class:`ReferenceGuidanceMixin`; churn moves the sample inside the step and is refused."""
        if self.guidance is not None and (kwargs.get("s_churn") or (args and args[0])):
            raise ValueError(
                "s_churn: expected 0 with reference guidance, which needs the sample the velocity belongs to"
            )
        return super().step(model_output, timestep, sample, *args, **kwargs)


class ReferenceGuidedFlowMatchLCM(ReferenceGuidanceMixin, FlowMatchLCMScheduler):
    """LCM."""


_GUIDED = {
    FlowMatchEulerDiscreteScheduler: ReferenceGuidedFlowMatchEuler,
    FlowMatchHeunDiscreteScheduler: ReferenceGuidedFlowMatchHeun,
    FlowMatchLCMScheduler: ReferenceGuidedFlowMatchLCM,
}


def guided_scheduler(scheduler: Any, guidance: ReferenceMeanGuidance) -> Any:
    """The guided counterpart of a scheduler.

    Raises:
        UnsupportedSchedulerError: not a flow-matching Euler, Heun or LCM scheduler, or one with inverted sigmas.
    """
    if not isinstance(guidance, ReferenceMeanGuidance):
        raise TypeError(f"guidance: expected a ReferenceMeanGuidance, got {type(guidance).__name__}")
    if isinstance(scheduler, ReferenceGuidanceMixin):
        return type(scheduler).from_scheduler(scheduler, guidance)
    guided = _GUIDED.get(type(scheduler))
    if guided is None:
        known = ", ".join(c.__name__ for c in _GUIDED)
        raise UnsupportedSchedulerError(f"scheduler: expected one of {known}, got {type(scheduler).__name__}")
    return guided.from_scheduler(scheduler, guidance)


@contextmanager
def guide(pipe: Any, guidance: ReferenceMeanGuidance) -> Iterator[Any]:
    """Guide every call of ``pipe`` inside the block; the pipeline's own scheduler comes back afterwards, also on error."""
    if not isinstance(guidance, ReferenceMeanGuidance):
        raise TypeError(f"guidance: expected a ReferenceMeanGuidance, got {type(guidance).__name__}")
    if not hasattr(pipe, "scheduler"):
        raise TypeError(f"pipe: expected a diffusers pipeline with a scheduler, got {type(pipe).__name__}")
    for bank in guidance.banks:
        bank.check_pipe(pipe)
    original = pipe.scheduler
    pipe.scheduler = guided = guided_scheduler(original, guidance)
    try:
        with _checked_size(pipe, guidance):
            yield pipe
    finally:
        replaced = pipe.scheduler is not guided
        pipe.scheduler = original
    if replaced:
        warnings.warn(
            "pipe: its scheduler was replaced inside guide(), and nothing was guided from then on; change it before",
            stacklevel=3,
        )


@contextmanager
def _checked_size(pipe: Any, guidance: ReferenceMeanGuidance) -> Iterator[None]:
    """Compare the size of every picture with the banks' while its noise is drawn: packed latents have lost it."""
    prepare, before = getattr(pipe, "prepare_latents", None), vars(pipe).get("prepare_latents")
    if prepare is None or not {"height", "width"} <= inspect.signature(prepare).parameters.keys():
        yield
        return
    signature = inspect.signature(prepare)

    def checked(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for bank in guidance.banks:
            if bank.latents.ndim == 3:  # tokens
                bank.check_size(int(given["height"]), int(given["width"]))
        return prepare(*args, **kwargs)

    pipe.prepare_latents = checked
    try:
        yield
    finally:
        del pipe.prepare_latents
        if before is not None:
            pipe.prepare_latents = before

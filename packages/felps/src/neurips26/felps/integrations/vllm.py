"""vLLM plug-in: ``vllm serve BASE --enable-lora --scheduler-cls neurips26.felps.integrations.vllm.FELPSScheduler``.

Settings come from ``--additional-config '{"felps": {"policy": "felps", "weight": 0.2}}'``: the name of a registered policy
and its arguments. Only the waiting queue is replaced, and service is booked from what the scheduler schedules and what
comes back; admission checks, memory, preemption and asynchronous scheduling stay vLLM's own.

Residency lives in the workers, which keep the adapters of the last steps in an LRU of ``max_loras`` slots. The scheduler
cannot see it and mirrors it: the same slots, pinned by running requests, least recently used out first.
"""

from __future__ import annotations

import time
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import RequestStatus

from neurips26.felps.integrations.bridge import PolicyQueue
from neurips26.felps.policy import Policy
from neurips26.felps.request import BASE, Request
from neurips26.felps.slots import AdapterSlots

__all__ = ["TESTED", "FELPSScheduler", "VLLMQueue"]

TESTED = "0.32"
"""Series of vLLM whose (unstable) scheduler interface this was written and tested against."""

logger = init_logger("vllm.felps")


class VLLMQueue(PolicyQueue, RequestQueue):
    """``PolicyQueue`` as vLLM's ``RequestQueue``."""


def translate(request: Any) -> Request:
    """A vLLM request as a policy sees it: without its tokens, and without its output length."""
    lora = request.lora_request
    return Request(
        id=request.request_id,
        adapter=BASE if lora is None else lora.lora_int_id,
        arrival=0.0,
        prompt_tokens=max(1, request.num_prompt_tokens),
        max_tokens=request.max_tokens,
    )


class FELPSScheduler(AsyncScheduler):
    """vLLM's scheduler with a policy in place of its waiting queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not vllm.__version__.startswith(TESTED):
            logger.warning("vLLM %s: this plug-in was tested with %s", vllm.__version__, TESTED)
        self.fresh_policy()
        logger.info("waiting requests are chosen by %s", self.waiting.policy.describe())

    def fresh_policy(self) -> None:
        """Begin with empty books, as a new server would (only while no request is open). Adapters stay where they are."""
        if self.requests:
            raise RuntimeError(f"fresh_policy: expected no open request, got {len(self.requests)}")
        additional = self.vllm_config.additional_config or {}
        options = additional.get("felps", {}) if isinstance(additional, dict) else {}
        if not isinstance(options, dict):
            raise ValueError(f"additional_config: expected felps to be an object of settings, got {options!r}")
        options = dict(options)
        slots = getattr(self.waiting, "slots", None)  # not vLLM's own queue, which has none
        if slots is None:
            slots = AdapterSlots(self.lora_config.max_loras if self.lora_config else 1)
        slots.loads = slots.hits = 0
        self.waiting = VLLMQueue(
            Policy.make(options.pop("policy", "felps"), **options), slots, translate, time.monotonic
        )

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """One step."""
        self.waiting.new_step()
        return super().schedule(*args, **kwargs)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            end = request.num_computed_tokens
            self.waiting.scheduled(request, end - tokens, end)

    def _update_request_with_output(self, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any) -> Any:
        tokens, stopped = super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
        self.waiting.emitted(request, len(tokens))
        return tokens, stopped

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.waiting.finished(request, request.status == RequestStatus.FINISHED_ABORTED)
        return super()._free_request(request, *args, **kwargs)

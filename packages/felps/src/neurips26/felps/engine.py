"""A small real engine on the CPU: continuous batching of requests of different adapters with a true slot limit.

The batch is composed by the simulator's own loop; here each step is executed instead of timed. One forward pass decodes
all running sequences, each under its own adapter (PEFT's ``adapter_names``); prompts are processed whole, one pass each.
The model carries exactly ``max_loras`` adapters, whose weights are exchanged in place when another one is needed.

Time is CPU time of this process (and jumps over idle stretches), so that makespans do not depend on other programs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from neurips26.felps.adapters import AdapterError, exchange_adapter
from neurips26.felps.engine_model import EngineModel, Step
from neurips26.felps.metrics import RunResult
from neurips26.felps.policy import Policy
from neurips26.felps.request import BASE, Request
from neurips26.felps.row_cache import RowCache
from neurips26.felps.simulator import Simulator, _Loop, _Run
from neurips26.felps.workload import Workload
from neurips26.shared.arrays import check_int


@dataclass
class EngineResult:
    """Outcome of a run: the same figures as the simulator's, the tokens, and what every step did."""

    run: RunResult
    tokens: dict[int, list[int]]
    steps: list[Step]
    errors: dict[int, str] = field(default_factory=dict)


class CPUEngine:
    """Serve requests of several LoRA adapters with one base model.

    Args:
        model: a causal language model of transformers (float32, on the CPU).
        adapters: adapter id (from 1) -> folder of a PEFT LoRA adapter for this model.
        max_loras: adapter slots.
        max_num_seqs: sequences that run at the same time.
        max_num_batched_tokens: tokens of a step (a longer prompt is processed alone).
        max_length: longest prompt plus output.
        kv_tokens: tokens of context that fit; default: enough for all sequences.
        max_rank: largest LoRA rank accepted.
        target_modules: modules that adapters may change.
    """

    def __init__(
        self,
        model: Any,
        adapters: Mapping[int, str | os.PathLike[str]],
        max_loras: int = 2,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 512,
        max_length: int = 512,
        kv_tokens: int | None = None,
        max_rank: int = 64,
        target_modules: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
    ) -> None:
        check_int(max_loras, "max_loras", minimum=1)
        check_int(max_length, "max_length", minimum=2)
        self.adapters = {int(adapter): Path(path) for adapter, path in adapters.items()}
        self.max_rank = check_int(max_rank, "max_rank", minimum=1)
        self.max_length = max_length
        self.targets = list(target_modules)
        self.batching = Simulator(
            EngineModel(1e-9, 0.0, 0.0, 0.0, 0.0, source="not used: steps are executed"),
            max_loras, max_num_seqs, max(max_num_batched_tokens, max_num_seqs),
            kv_tokens or max_num_seqs * max_length, chunked_prefill=False, sample_every=0.25,
        )  # fmt: skip
        config = model.config
        self.config = config
        lora = LoraConfig(r=max_rank, lora_alpha=max_rank, target_modules=self.targets)
        self.model = get_peft_model(model, lora, adapter_name="slot0").eval()
        for slot in range(1, max_loras):
            self.model.add_adapter(f"slot{slot}", lora)
        self.model.requires_grad_(False)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache = RowCache(
            config.num_hidden_layers,
            max_num_seqs,
            config.num_key_value_heads,
            max_length,
            width,
            next(model.parameters()).dtype,
        )

    def load(self, adapter: int, slot: int) -> None:
        """Exchange the weights of a slot.

        Raises:
            AdapterError: no such adapter, unreadable, for another model, or of too large a rank.
        """
        path = self.adapters.get(adapter)
        if path is None:
            raise AdapterError(f"adapter {adapter}: not known to this engine")
        try:
            exchange_adapter(self.model, path, f"slot{slot}", self.targets, self.max_rank)
        except AdapterError as error:
            raise AdapterError(f"adapter {adapter}: {error}") from None

    def prompt(self, index: int, length: int) -> list[int]:
        """Default prompt tokens of a request: any text will do where only time and order matter."""
        vocabulary = self.config.vocab_size
        return [3 + (7919 * (index + 1) + 104729 * i) % (vocabulary - 3) for i in range(length)]

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, rows: slice, adapters: list[str]) -> torch.Tensor:
        """Logits of the last token of each row, ``[rows, vocabulary]``."""
        self.cache.view(rows, positions)
        reach = torch.arange(self.cache.reach)
        mask = (reach[None, None, :] <= positions[:, :, None])[:, None]  # causal, and nothing beyond a row's own length
        call = dict(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        if set(adapters) == {"__base__"}:
            with self.model.disable_adapter():
                out = self.model(**call)
        else:
            out = self.model(**call, adapter_names=adapters)
        return out.logits[:, -1]

    def run(
        self,
        workload: Workload,
        policy: Policy,
        prompts: Mapping[int, Sequence[int]] | None = None,
        horizon: float = float("inf"),
        stop_at: Sequence[int] = (),
        aborts: Mapping[int, float] | None = None,
        removals: Mapping[int, float] | None = None,
    ) -> EngineResult:
        """Serve a workload greedily. What cannot be served (too long, no such adapter) fails alone, with a reason in ``errors``.

        Args:
            workload: arrivals, adapters, prompt lengths, and output lengths, which cap the outputs.
            policy: who is admitted.
            prompts: token ids per request (their lengths must be the workload's); made up where absent.
            horizon: stop at this CPU time.
            stop_at: token ids that end a request early.
            aborts: request -> time at which its client gives up.
            removals: adapter -> time at which its owner takes it away (running requests finish).
        """
        for index, tokens in (prompts or {}).items():
            check_int(index, "prompts", minimum=0, maximum=len(workload) - 1)
            if len(tokens) != workload.prompt[index]:
                raise ValueError(
                    f"prompts: request {index} has {len(tokens)} tokens, the workload says {workload.prompt[index]}"
                )
        orders = (dict(aborts or {}), dict(removals or {}))
        loop = _Executed(self, workload, policy, horizon, orders, dict(prompts or {}), frozenset(stop_at))
        result = loop.run()
        return EngineResult(result, loop.tokens, loop.log, loop.errors)


class _Executed(_Loop):
    """The simulator's loop with its steps executed."""

    may_jump = False

    def __init__(
        self, engine: CPUEngine, workload: Workload, policy: Policy, horizon: float,
        orders: tuple[dict[int, float], dict[int, float]], prompts: dict[int, Sequence[int]], stop_at: frozenset[int],
    ) -> None:  # fmt: skip
        super().__init__(engine.batching, workload, policy, horizon, *orders, 10**9)
        self.engine, self.prompts, self.stop_at = engine, prompts, stop_at
        self.tokens: dict[int, list[int]] = {}
        self.log: list[Step] = []
        self.errors: dict[int, str] = {}
        self.row: dict[int, int] = {}  # request id -> row of the cache
        self.step_loads, self.step_load_seconds = 0, 0.0
        self.mark = time.process_time()

    def _refusal(self, request: Request) -> str:
        tokens, room = request.prompt_tokens + request.output_tokens, self.engine.max_length
        return f"expected at most {room} tokens, got {tokens}" if tokens > room else super()._refusal(request)

    def _failed(self, request: Request, why: str) -> None:
        self.errors[int(request.id)] = why

    def _load(self, request: Request) -> bool:
        began = time.process_time()
        try:
            self.engine.load(request.adapter, self.slots.slot_of(request.adapter))
        except AdapterError as error:
            self.slots.cancel(request.adapter)
            self._failed(request, str(error))
            self._abort(request)
            return False
        finally:
            self.step_load_seconds += time.process_time() - began
        self.step_loads += 1
        return True

    def _execute(self, decode_seqs: int, kv_read: int) -> float:
        began = time.process_time()
        self._compact()
        if decode_seqs:
            runs = self.decoding
            last = torch.tensor([[self.tokens[run.index][-1]] for run in runs])
            where = torch.tensor([[run.request.prompt_tokens + len(self.tokens[run.index]) - 1] for run in runs])
            logits = self.engine.forward(last, where, slice(0, len(runs)), [self._slot(run) for run in runs])
            self._append(runs, logits)
        for row, run in enumerate(self.started, decode_seqs):
            text = list(self.prompts.get(run.index) or self.engine.prompt(run.index, run.request.prompt_tokens))
            text += self.tokens.setdefault(run.index, [])
            self.row[run.index] = row
            where = torch.arange(len(text))[None]
            logits = self.engine.forward(torch.tensor([text]), where, slice(row, row + 1), [self._slot(run)])
            self._append([run], logits)
        now = time.process_time()
        seconds = now - self.mark if (decode_seqs or self.started) else 0.0
        # Time since the last step: this step, the scheduler's decisions and loads. Idle waiting costs no CPU time.
        if decode_seqs or self.started:
            computing = now - began
            self.log.append(
                Step(self.step_prefill, self.step_prompts, decode_seqs, kv_read, self.step_loads,
                     computing + self.step_load_seconds, self.step_load_seconds, self._decode_adapters())
            )  # fmt: skip
            self.stall = self.step_load_seconds
            self.step_loads, self.step_load_seconds = 0, 0.0
            seconds = self.log[-1].seconds
        self.mark = now
        return seconds

    def _slot(self, run: _Run) -> str:
        return "__base__" if run.request.adapter == BASE else f"slot{self.slots.slot_of(run.request.adapter)}"

    def _append(self, runs: list[_Run], logits: torch.Tensor) -> None:
        for run, token in zip(runs, logits.argmax(-1).tolist()):
            self.tokens[run.index].append(token)
            if token in self.stop_at:
                # This step's token is the last one: the loop finishes what ends at the coming tick.
                run.request.output_tokens = len(self.tokens[run.index])
                run.ends = self.tick + 1
                self.next_end = min(self.next_end, run.ends)

    def _compact(self) -> None:
        """Rows follow the order of the running sequences; a row is copied only when somebody before it left."""
        for row, run in enumerate(self.decoding):
            if self.row[run.index] != row:
                self.engine.cache.move(self.row[run.index], row)
                self.row[run.index] = row

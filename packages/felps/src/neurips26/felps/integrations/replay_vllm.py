"""Serve a workload inside a real vLLM engine and report what happened, under a scheduler of one's choice.

Runs in an environment that has vLLM (``benchmarks/vllm_env.sh`` makes one for the CPU):

    python -m neurips26.felps.integrations.replay_vllm < job.json > outcome.json

The engines run in this process, on one thread. The clock of a replay is CPU time, so that a busy machine does not change
arrivals relative to service; while nothing runs, the clock jumps to the next arrival. Replays that are compared run side by
side, a step each in turn: a CPU second is worth more or less as other programs use the memory, and so it is for both.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

VOCABULARY = 1024


def make_model(folder: Path, hidden: int = 256, layers: int = 4, seed: int = 0) -> Path:
    """A small random Llama on disk."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64, max_position_embeddings=4096,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    # Random logits of a small model lie close together; a larger head keeps greedy choices clear of rounding.
    model.lm_head.weight.data.mul_(8.0)
    model.save_pretrained(folder)
    return folder


def make_adapters(model: Path, folder: Path, count: int, rank: int = 16, scale: float = 0.2) -> dict[int, str]:
    """LoRA adapters 1..count with random weights, large enough to change the text."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    paths = {}
    for adapter in range(1, count + 1):
        torch.manual_seed(1000 + adapter)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        wrapped = get_peft_model(
            base, LoraConfig(r=rank, lora_alpha=rank, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        )
        for name, weight in wrapped.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(weight, std=scale)
        wrapped.save_pretrained(folder / str(adapter))
        paths[adapter] = str(folder / str(adapter))
    return paths


def build_engine(model: Path, options: dict[str, Any], scheduler: dict[str, Any] | None) -> Any:
    """An in-process engine; ``scheduler`` is the plug-in's configuration, ``None`` vLLM's own."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    plug = {} if scheduler is None else {
        "scheduler_cls": "neurips26.felps.integrations.vllm.FELPSScheduler", "additional_config": {"felps": scheduler},
    }  # fmt: skip
    defaults = {
        "dtype": "float32", "enforce_eager": True, "enable_lora": True, "max_loras": 2, "max_lora_rank": 16,
        "max_num_seqs": 8, "max_model_len": 1024, "max_num_batched_tokens": 1024, "enable_prefix_caching": False,
        "skip_tokenizer_init": True, "disable_log_stats": True, "kv_cache_memory_bytes": 1 << 28,
    }  # fmt: skip
    return LLM(model=str(model), **(defaults | options | plug)).llm_engine


def scheduler_of(engine: Any) -> Any:
    """The scheduler object of an in-process engine."""
    return engine.engine_core.engine_core.scheduler


def prompt_tokens(index: int, length: int) -> list[int]:
    """A prompt of given length that differs from request to request."""
    return [3 + (7919 * (index + 1) + 104729 * i) % (VOCABULARY - 3) for i in range(length)]


class Stopwatch:
    """CPU seconds of this process while it runs."""

    def __init__(self) -> None:
        self.before, self.since = 0.0, time.process_time()

    def stop(self) -> None:
        """What follows is not counted."""
        self.before += time.process_time() - self.since

    def start(self) -> None:
        """Go on counting."""
        self.since = time.process_time()

    def read(self) -> float:
        """Seconds counted so far (while it runs)."""
        return self.before + time.process_time() - self.since


def replay(
    engine: Any, rows: list[list[float]], paths: dict[int, str], aborts: dict[int, float] | None = None
) -> dict[str, Any]:
    """One replay alone, see ``steps``."""
    return in_turns([steps(engine, rows, paths, aborts)])[0]


def in_turns(replays: list[Generator[None, None, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run replays on different engines side by side, a step each in turn; their outcomes."""
    outcomes: list[dict[str, Any]] = [{} for _ in replays]
    going = dict(enumerate(replays))
    while going:
        for i, one in list(going.items()):
            try:
                next(one)
            except StopIteration as end:
                outcomes[i] = end.value
                del going[i]
    return outcomes


def steps(
    engine: Any, rows: list[list[float]], paths: dict[int, str], aborts: dict[int, float] | None = None
) -> Generator[None, None, dict[str, Any]]:
    """Serve ``rows`` of (arrival, adapter, prompt, output), pausing after every engine step.

    Returns times, texts, service curves and loads. A plug-in begins with empty books: what an earlier replay served is no
    credit and no debt in this one.
    """
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    scheduler = scheduler_of(engine)
    while engine.has_unfinished_requests():  # left by aborts at the end of an earlier replay
        engine.step()
    if hasattr(scheduler, "fresh_policy"):
        scheduler.fresh_policy()
    texts: dict[int, list[int]] = {}
    first: dict[int, float] = {}
    finish: dict[int, float] = {}
    progress: list[list[float]] = []  # (time, request, tokens)
    schedule_seconds, busy_steps, preemptions = 0.0, 0, 0
    inner, inner_update = scheduler.schedule, scheduler.update_from_output

    def timed_schedule(*args: Any, **kwargs: Any) -> Any:
        nonlocal schedule_seconds, busy_steps, preemptions
        began = time.process_time()
        out = inner(*args, **kwargs)
        schedule_seconds += time.process_time() - began
        busy_steps += bool(out.num_scheduled_tokens)
        preemptions += len(out.preempted_req_ids or ())
        return out

    def timed_update(*args: Any, **kwargs: Any) -> Any:
        nonlocal schedule_seconds
        began = time.process_time()
        out = inner_update(*args, **kwargs)
        schedule_seconds += time.process_time() - began
        return out

    scheduler.schedule, scheduler.update_from_output = timed_schedule, timed_update
    worker_loads = _count_loads(engine)
    pending = sorted(range(len(rows)), key=lambda i: rows[i][0])
    open_requests: set[int] = set()
    gone = dict(aborts or {})
    order: list[int] = []
    jump = 0.0
    clock = Stopwatch()
    while pending or open_requests:
        now = clock.read() + jump
        if not open_requests and rows[pending[0]][0] > now:
            jump += rows[pending[0]][0] - now
            now = rows[pending[0]][0]
        while pending and rows[pending[0]][0] <= now:
            index = pending.pop(0)
            _, adapter, prompt, output = rows[index]
            lora = LoRARequest(f"adapter-{int(adapter)}", int(adapter), paths[int(adapter)]) if adapter else None
            parameters = SamplingParams(temperature=0.0, max_tokens=int(output), ignore_eos=True, detokenize=False)
            tokens = {"prompt_token_ids": prompt_tokens(index, int(prompt))}
            engine.add_request(str(index), tokens, parameters, lora_request=lora)
            open_requests.add(index)
        for index in [i for i, at in gone.items() if at <= now and i in open_requests]:
            engine.abort_request([str(index)])
            open_requests.discard(index)
            del gone[index]
        outputs = engine.step()
        now = clock.read() + jump
        for output in outputs:
            index = int(output.request_id.split("-")[0])
            tokens = list(output.outputs[0].token_ids)
            new = len(tokens) - len(texts.get(index, []))
            if index not in first and tokens:
                first[index] = now
                order.append(index)
            if new:
                progress.append([now, index, new])
            texts[index] = tokens
            if output.finished:
                finish[index] = now
                open_requests.discard(index)
        clock.stop()
        yield
        clock.start()
    scheduler.schedule, scheduler.update_from_output = inner, inner_update
    return {
        "makespan": clock.read() + jump,
        "busy": clock.read(),
        "first": {str(k): v for k, v in first.items()},
        "finish": {str(k): v for k, v in finish.items()},
        "texts": {str(k): v for k, v in texts.items()},
        "progress": progress,
        "order": order,
        "loads": worker_loads[0],
        "schedule_seconds": schedule_seconds,
        "steps": busy_steps,
        "preemptions": preemptions,
        "mirror_loads": getattr(getattr(scheduler.waiting, "slots", None), "loads", None),
        "waiting_left": len(scheduler.waiting),
    }


def _count_loads(engine: Any) -> list[int]:
    """Count activations of adapters in the worker: what really enters a slot."""
    worker = engine.engine_core.engine_core.model_executor.driver_worker
    runner = getattr(worker, "worker", worker).model_runner
    manager = runner.lora_manager._adapter_manager
    count = [0]
    if not hasattr(manager, "_felps_activate"):
        manager._felps_activate = manager.activate_adapter
    inner = manager._felps_activate

    def activate(adapter: int) -> bool:
        entered = inner(adapter)
        count[0] += bool(entered)
        return entered

    manager.activate_adapter = activate
    return count


def main() -> int:
    """Read a job, serve every run of it, write the outcomes.

    The job: ``{"engine": {...}, "adapters": n, "runs": [{"schedulers": [{...} or null, ...], "rows": [...]}]}``; the answer
    has a list of outcomes a run, one a scheduler. Every scheduler has one engine, which starts each run with empty books.
    """
    job = json.load(sys.stdin)
    real_stdout = os.dup(1)
    os.dup2(2, 1)  # vLLM prints; the answer has the stream for itself
    outcomes: list[list[dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        paths = make_adapters(model, folder, int(job["adapters"]))
        engines: dict[str, Any] = {}
        for run in job["runs"]:
            for scheduler in run["schedulers"]:
                if json.dumps(scheduler) not in engines:
                    engine = engines[json.dumps(scheduler)] = build_engine(model, job["engine"], scheduler)
                    replay(engine, [[0.0, 1 + i % int(job["adapters"]), 40, 16] for i in range(24)], paths)
            outcomes.append(in_turns([steps(engines[json.dumps(s)], run["rows"], paths) for s in run["schedulers"]]))
    with os.fdopen(real_stdout, "w") as stream:
        json.dump(outcomes, stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Replay a workload against any OpenAI-compatible server: open loop, at its true arrival times."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from neurips26.felps.workload import Workload
from neurips26.shared.arrays import check_real


@dataclass
class Reply:
    """What became of one request; times in seconds from the start of the replay, ``None`` where it never happened."""

    index: int
    adapter: int
    sent: float
    first_token: float | None = None
    finish: float | None = None
    tokens: int = 0
    error: str = ""


async def _one(client: Any, url: str, index: int, workload: Workload, model: str, start: float, speed: float) -> Reply:
    await asyncio.sleep(max(0.0, workload.arrival[index] / speed - (time.perf_counter() - start)))
    reply = Reply(index, int(workload.adapter[index]), time.perf_counter() - start)
    body = {
        "model": model,
        "prompt": "x " * int(workload.prompt[index]),
        "max_tokens": int(workload.output[index]),
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
    }
    try:
        async with client.stream("POST", f"{url.rstrip('/')}/v1/completions", json=body) as response:
            if response.status_code != 200:
                reply.error = f"HTTP {response.status_code}: {(await response.aread()).decode(errors='replace')[:200]}"
                return reply
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]" and json.loads(line[6:]).get("choices"):
                    reply.tokens += 1
                    if reply.first_token is None:
                        reply.first_token = time.perf_counter() - start
        reply.finish = time.perf_counter() - start
    except Exception as error:  # a broken connection ends one request, not the replay
        reply.error = f"{type(error).__name__}: {error}"
    return reply


async def replay(
    workload: Workload,
    url: str,
    models: dict[int, str],
    speed: float = 1.0,
    timeout: float = 600.0,
    transport: Any = None,
) -> list[Reply]:
    """Send every request at its time, whether or not earlier ones are answered.

    Args:
        workload: what to send; prompts are made up to about the right length.
        url: the server.
        models: adapter id -> model name at the server (``0``: the base model).
        speed: how many times as fast as the workload's clock.
        timeout: seconds for one request.
        transport: an httpx transport, for tests.

    Raises:
        ValueError: an adapter of the workload has no model name, or the address is none.
    """
    import httpx

    check_real(speed, "speed", minimum=0.0, inclusive=False)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url: expected http://host:port, got {url!r}")
    missing = sorted(set(workload.adapters.tolist()) - models.keys())
    if missing:
        raise ValueError(f"models: expected a name for every adapter, got none for {missing}")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=timeout, limits=limits, transport=transport) as client:
        start = time.perf_counter()
        jobs = [
            _one(client, url, i, workload, models[int(workload.adapter[i])], start, speed) for i in range(len(workload))
        ]
        return list(await asyncio.gather(*jobs))


def summary(replies: list[Reply]) -> dict[str, Any]:
    """Counts, mean time to first token and tokens of every adapter."""
    by_adapter: dict[int, dict[str, Any]] = {}
    for adapter in sorted({r.adapter for r in replies}):
        mine = [r for r in replies if r.adapter == adapter]
        waits = [r.first_token - r.sent for r in mine if r.first_token is not None]
        by_adapter[adapter] = {
            "requests": len(mine),
            "failed": sum(bool(r.error) for r in mine),
            "ttft_mean": sum(waits) / len(waits) if waits else None,
            "tokens": sum(r.tokens for r in mine),
        }
    return {"adapters": by_adapter, "replies": [asdict(r) for r in replies]}

"""What a run is judged by: service and workload per adapter, fairness indices, latencies, throughput, loads."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neurips26.felps.workload import Workload
from neurips26.shared.arrays import check_array
from neurips26.shared.runs import atomic_write_json


def jain(x: Any) -> float:
    """Jain's index ``(sum x)^2 / (n sum x^2)``; 1 for equal shares, 1/n when one takes all, 1 for nothing at all."""
    x = check_array(x, "x", shape=("n",), dtype=np.float64, allow_empty=True)
    total = float(np.square(x).sum())
    return 1.0 if total == 0.0 else float(x.sum()) ** 2 / (len(x) * total)


def proportional_shares(workload: Any, capacity: float) -> np.ndarray:
    """The optimum of ``sum_a W_a log S_a`` under ``sum_a S_a <= C``: ``S_a = C W_a / sum W`` (at most ``W_a``)."""
    workload = check_array(workload, "workload", shape=("a",), dtype=np.float64)
    total = workload.sum()
    return workload.copy() if capacity >= total else capacity * workload / total


@dataclass
class RunResult:
    """Everything observed in one run. Arrays with ``sample_`` are rows of a timeline, ``[samples, adapters]`` where per
    adapter (column = adapter id); arrays per request follow the workload's order, NaN where a request never got there.
    """

    workload: Workload
    policy: dict[str, Any]
    engine: dict[str, Any]
    prices: tuple[float, float]
    makespan: float
    first_token: np.ndarray
    finish: np.ndarray
    emitted: np.ndarray
    rejected: np.ndarray
    aborted: np.ndarray
    sample_time: np.ndarray
    sample_served: np.ndarray
    sample_arrived: np.ndarray
    sample_loads: np.ndarray
    sample_waiting: np.ndarray
    sample_running: np.ndarray
    sample_kv: np.ndarray
    sample_pinned: np.ndarray
    loads: int
    hits: int
    stall_seconds: float
    busy_seconds: float
    steps: int
    preemptions: int = 0
    slot_events: list[tuple] = field(default_factory=list)

    # Fairness --------------------------------------------------------------------------------------------------------
    def served_fraction(self) -> np.ndarray:
        """``rho`` at each sample, ``[samples, adapters]``; NaN before an adapter has any work."""
        with np.errstate(invalid="ignore", divide="ignore"):
            rho = self.sample_served / self.sample_arrived
        return np.where(self.sample_arrived > 0, np.minimum(rho, 1.0), np.nan)

    def _fractions(self) -> list[np.ndarray]:
        """``rho`` of the adapters with work, sample by sample; samples before any work tell nothing and are left out."""
        rows = (row[~np.isnan(row)] for row in self.served_fraction())
        return [row for row in rows if len(row)]

    def jain_served_fraction(self) -> float:
        """Mean over the timeline of Jain's index of ``rho`` over the adapters with work."""
        values = [jain(row) for row in self._fractions()]
        return float(np.mean(values)) if values else 1.0

    def served_fraction_gap(self) -> float:
        """Mean over the timeline of the largest minus the smallest ``rho``."""
        gaps = [float(np.ptp(row)) for row in self._fractions()]
        return float(np.mean(gaps)) if gaps else 0.0

    def _windows(self, seconds: float) -> list[np.ndarray]:
        """Service within windows of ``seconds``, of the adapters that had unserved work at every sample in them."""
        step = float(np.median(np.diff(self.sample_time))) if len(self.sample_time) > 1 else seconds
        width = max(1, round(seconds / max(step, 1e-9)))
        backlog = self.sample_arrived - self.sample_served > 1e-6
        out = []
        for i in range(len(self.sample_time) - width):
            busy = backlog[i : i + width + 1].all(axis=0)
            if busy.sum() >= 2:
                out.append((self.sample_served[i + width] - self.sample_served[i])[busy])
        return out

    def windowed_jain(self, seconds: float = 30.0) -> float:
        """Mean of Jain's index of the service in sliding windows, over adapters backlogged throughout (VTC's view)."""
        windows = self._windows(seconds)
        return float(np.mean([jain(w) for w in windows])) if windows else 1.0

    def service_difference(self, seconds: float = 30.0) -> tuple[float, float]:
        """VTC's metric: (largest, mean) difference of absolute service of two adapters backlogged through a window."""
        gaps = [float(np.ptp(w)) for w in self._windows(seconds)]
        return (max(gaps), float(np.mean(gaps))) if gaps else (0.0, 0.0)

    # Latency and throughput ------------------------------------------------------------------------------------------
    def _counted(self) -> np.ndarray:
        return ~(self.rejected | self.aborted) & (self.workload.arrival <= self.makespan)

    def ttft(self) -> np.ndarray:
        """Time to first token of every counted request; what has none yet is censored at the end of the run."""
        counted = self._counted()
        first = np.where(np.isnan(self.first_token), self.makespan, self.first_token)
        return (first - self.workload.arrival)[counted]

    def latency(self) -> np.ndarray:
        """Arrival to last token, censored at the end of the run."""
        counted = self._counted()
        finish = np.where(np.isnan(self.finish), self.makespan, self.finish)
        return (finish - self.workload.arrival)[counted]

    def tpot(self) -> np.ndarray:
        """Seconds per output token after the first, of finished requests with at least two."""
        ok = ~np.isnan(self.finish) & (self.emitted > 1)
        return (self.finish - self.first_token)[ok] / (self.emitted[ok] - 1)

    def goodput(self, ttft: float, tpot: float) -> float:
        """Finished requests per second that met both limits."""
        with np.errstate(invalid="ignore"):
            first_ok = self.first_token - self.workload.arrival <= ttft
            pace = (self.finish - self.first_token) / np.maximum(self.emitted - 1, 1)
            return float((first_ok & (pace <= tpot)).sum() / max(self.makespan, 1e-9))

    def weighted_throughput(self) -> float:
        """Cost units delivered per second (``w_p`` a prompt token, ``w_q`` an output token)."""
        return float(self.sample_served[-1].sum() / max(self.makespan, 1e-9))

    def metrics(self) -> dict[str, float]:
        """All figures of a table, plain numbers."""
        ttft, latency, tpot = self.ttft(), self.latency(), self.tpot()
        counted = self._counted()
        adapter = self.workload.adapter[counted]
        ids, inverse = np.unique(adapter, return_inverse=True)
        per_adapter = np.bincount(inverse, ttft) / np.bincount(inverse) if len(ids) else np.zeros(1)
        latency_by = np.bincount(inverse, latency) / np.bincount(inverse) if len(ids) else np.zeros(1)
        largest, mean_difference = self.service_difference()

        def quantile(values: np.ndarray, q: float) -> float:
            return float(np.quantile(values, q)) if len(values) else 0.0

        return {
            "jain": self.jain_served_fraction(),
            "gap": self.served_fraction_gap(),
            "throughput": self.weighted_throughput(),
            "output_tokens_per_s": float(self.emitted.sum() / max(self.makespan, 1e-9)),
            "finished_per_s": float((~np.isnan(self.finish)).sum() / max(self.makespan, 1e-9)),
            "loads": float(self.loads),
            "loads_per_s": self.loads / max(self.makespan, 1e-9),
            "hit_rate": self.hits / max(self.hits + self.loads, 1),
            "stall_s": self.stall_seconds,
            "windowed_jain_30s": self.windowed_jain(),
            "service_difference_max": largest,
            "service_difference_mean": mean_difference,
            "latency_jain": jain(latency_by),
            "worst_adapter_ttft": float(per_adapter.max()),
            "ttft_mean": float(ttft.mean()) if len(ttft) else 0.0,
            "ttft_p50": quantile(ttft, 0.5),
            "ttft_p90": quantile(ttft, 0.9),
            "ttft_p99": quantile(ttft, 0.99),
            "tpot_mean": float(tpot.mean()) if len(tpot) else 0.0,
            "tpot_p99": quantile(tpot, 0.99),
            "latency_mean": float(latency.mean()) if len(latency) else 0.0,
            "latency_p99": quantile(latency, 0.99),
            "normalised_latency": float((latency / np.maximum(self.emitted[counted], 1)).mean())
            if len(latency)
            else 0.0,
            "slot_use": float(self.sample_pinned.mean() / self.engine["max_loras"]),
            "kv_use": float(self.sample_kv.mean() / self.engine["kv_tokens"]),
            "makespan": self.makespan,
            "steps": float(self.steps),
            "preemptions": float(self.preemptions),
            "requests": float(counted.sum()),
            "unfinished": float((np.isnan(self.finish) & counted).sum()),
            "rejected": float(self.rejected.sum()),
            "aborted": float(self.aborted.sum()),
        }

    def table(self) -> dict[str, np.ndarray]:
        """One column a field, one entry a request (turn it into a data frame with ``pandas.DataFrame(result.table())``)."""
        return {
            "arrival": self.workload.arrival,
            "adapter": self.workload.adapter,
            "prompt_tokens": self.workload.prompt,
            "output_tokens": self.workload.output,
            "emitted": self.emitted,
            "first_token": self.first_token,
            "finish": self.finish,
            "rejected": self.rejected,
            "aborted": self.aborted,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write settings, figures and per-request times as JSON; the same run gives the same bytes."""

        def plain(values: np.ndarray) -> list:
            return [None if v != v else v for v in values.tolist()]

        atomic_write_json(
            path,
            {
                "policy": self.policy,
                "engine": self.engine,
                "workload": self.workload.describe(),
                "metrics": self.metrics(),
                "requests": {name: plain(values) for name, values in self.table().items()},
            },
        )

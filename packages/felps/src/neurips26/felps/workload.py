"""Workloads: requests with arrival times, adapters and true lengths; loaders of public traces and a generator.

The Azure traces carry no tenant: adapters are drawn from a Zipf law with a seed. The arena trace carries real ones.
"""

from __future__ import annotations

import csv
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from neurips26.felps.request import Request
from neurips26.shared.arrays import check_array, check_choice, check_int, check_real
from neurips26.shared.runs import atomic_write_text
from neurips26.shared.seeding import rng

ARENA_COLUMNS = ("arrival_s", "adapter", "prompt_tokens", "output_tokens")


class TraceError(ValueError):
    """A trace file cannot be read; the message names the file and, where there is one, the line."""


@dataclass
class Workload:
    """Requests in arrival order.

    Attributes:
        arrival: seconds from the start, ascending.
        adapter: adapter id of each request; 0 is the base model.
        prompt: prompt tokens, at least 1.
        output: true output tokens, at least 1.
        ranks: LoRA rank of each adapter (missing: ``default_rank``).
        name: for reports.
        origin: ``real``, ``generated`` or ``from a dependency``.
        duration: length of the observed window in seconds.
        dropped: rows of the source file that were not usable.
    """

    arrival: np.ndarray
    adapter: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    ranks: dict[int, int] = field(default_factory=dict)
    name: str = "workload"
    origin: str = "generated"
    duration: float = 0.0
    dropped: int = 0
    default_rank: int = 16

    def __post_init__(self) -> None:
        self.arrival = check_array(self.arrival, "arrival", shape=("n",), dtype=np.float64)
        n = len(self.arrival)
        for name in ("adapter", "prompt", "output"):
            column = check_array(getattr(self, name), name, shape=(n,))
            if (column != np.rint(column)).any():
                raise ValueError(f"{name}: expected whole numbers, got {column[column != np.rint(column)][0]}")
            setattr(self, name, column.astype(np.int64))
            least = 0 if name == "adapter" else 1
            if (column < least).any():
                raise ValueError(f"{name}: expected values of at least {least}, got {column.min()}")
        if (self.arrival < 0).any():
            raise ValueError(f"arrival: expected times >= 0, got {self.arrival.min()}")
        if (np.diff(self.arrival) < 0).any():
            warnings.warn(f"{self.name}: arrivals were not in order and have been sorted", stacklevel=3)
            order = np.argsort(self.arrival, kind="stable")
            for name in ("arrival", "adapter", "prompt", "output"):
                setattr(self, name, getattr(self, name)[order])
        if not self.duration:
            self.duration = float(self.arrival[-1])

    def __len__(self) -> int:
        return len(self.arrival)

    def requests(self) -> Iterator[Request]:
        """The requests as objects; ids are their positions."""
        for i, (t, a, n, m) in enumerate(zip(self.arrival, self.adapter, self.prompt, self.output)):
            yield Request(i, int(a), float(t), int(n), int(m))

    @property
    def adapters(self) -> np.ndarray:
        """Distinct adapter ids, ascending."""
        return np.unique(self.adapter)

    def rank(self, adapter: int) -> int:
        """LoRA rank of an adapter."""
        return self.ranks.get(adapter, self.default_rank)

    def cost(self, input_price: float = 1.0, output_price: float = 2.0) -> np.ndarray:
        """True cost ``c(r)`` of each request."""
        return input_price * self.prompt + output_price * self.output

    def describe(self) -> dict[str, float | int | str]:
        """Size, lengths, skew and offered rate."""
        counts = np.sort(np.unique(self.adapter, return_counts=True)[1])[::-1]
        return {
            "name": self.name,
            "origin": self.origin,
            "requests": len(self),
            "dropped": self.dropped,
            "duration_s": round(self.duration, 3),
            "adapters": len(counts),
            "largest_share": round(float(counts[0] / counts.sum()), 4),
            "requests_per_s": round(len(self) / max(self.duration, 1e-9), 4),
            "weighted_tokens_per_s": round(float(self.cost().sum()) / max(self.duration, 1e-9), 2),
            "prompt_mean": round(float(self.prompt.mean()), 2),
            "prompt_median": float(np.median(self.prompt)),
            "prompt_max": int(self.prompt.max()),
            "output_mean": round(float(self.output.mean()), 2),
            "output_median": float(np.median(self.output)),
            "output_max": int(self.output.max()),
        }

    # Transformations -------------------------------------------------------------------------------------------------
    def window(self, start: float = 0.0, duration: float | None = None, rate_scale: float = 1.0) -> Workload:
        """The part that arrives in ``[start, start + duration)``, re-timed to begin at 0 and ``rate_scale`` times as fast."""
        check_real(start, "start", minimum=0.0)
        check_real(rate_scale, "rate_scale", minimum=0.0, inclusive=False)
        duration = self.duration - start + 1e-9 if duration is None else check_real(duration, "duration", minimum=0.0)
        keep = (self.arrival >= start) & (self.arrival < start + duration)
        if not keep.any():
            raise ValueError(
                f"start: expected a window with requests, got none in [{start}, {start + duration}) of {self.name}"
            )
        return Workload(
            (self.arrival[keep] - start) / rate_scale, self.adapter[keep], self.prompt[keep], self.output[keep],
            self.ranks, self.name, self.origin, duration / rate_scale, 0, self.default_rank,
        )  # fmt: skip

    def with_adapters(self, n_adapters: int, alpha: float = 1.0, seed: int = 0) -> Workload:
        """Adapters 1..n drawn independently with probability proportional to ``rank ** -alpha``, popularity shuffled."""
        check_int(n_adapters, "n_adapters", minimum=1)
        check_real(alpha, "alpha", minimum=0.0)
        generator = rng(seed, "felps", "adapters")
        popularity = np.arange(1, n_adapters + 1, dtype=float) ** -alpha
        ids = generator.permutation(n_adapters) + 1
        adapter = ids[generator.choice(n_adapters, size=len(self), p=popularity / popularity.sum())]
        return Workload(
            self.arrival, adapter, self.prompt, self.output, {}, self.name, self.origin, self.duration, self.dropped
        )

    # Sources ---------------------------------------------------------------------------------------------------------
    @classmethod
    def from_azure_csv(
        cls,
        path: str | os.PathLike[str],
        n_adapters: int = 32,
        popularity: str = "zipf",
        alpha: float = 1.0,
        seed: int = 0,
        start: float = 0.0,
        duration: float | None = None,
        rate_scale: float = 1.0,
    ) -> Workload:
        """Azure LLM inference trace (columns TIMESTAMP, ContextTokens, GeneratedTokens)."""
        check_choice(popularity, "popularity", ("zipf", "uniform"))
        columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
        times, prompt, output, dropped = _read_csv(Path(path), columns, (_timestamp, _tokens, _tokens))
        workload = cls(
            np.array(times) - min(times), np.ones(len(times)), np.array(prompt), np.array(output),
            name=Path(path).stem, origin="real", dropped=dropped,
        )  # fmt: skip
        if start or duration is not None or rate_scale != 1.0:
            workload = workload.window(start, duration, rate_scale)
        return workload.with_adapters(n_adapters, alpha if popularity == "zipf" else 0.0, seed)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], rate_scale: float = 1.0, base: str | None = None) -> Workload:
        """Plain CSV with the columns arrival_s, adapter, prompt_tokens, output_tokens (the arena trace has this form).

        Adapter labels of any kind become ids 1..A in order of first appearance in sorted label order; ``base`` names the
        label that means the bare base model (id 0).
        """
        parsers = (_seconds, str, _tokens, _tokens)
        times, labels, prompt, output, dropped = _read_csv(Path(path), ARENA_COLUMNS, parsers)
        names = sorted(
            {x for x in labels if x != base}, key=lambda x: (not x.isdigit(), int(x) if x.isdigit() else 0, x)
        )
        ids = {label: i + 1 for i, label in enumerate(names)}
        if base is not None:
            ids[base] = 0
        columns = [np.array(c) for c in (times, [ids[x] for x in labels], prompt, output)]
        workload = cls(*columns, name=Path(path).stem, origin="real", dropped=dropped)
        return workload if rate_scale == 1.0 else workload.window(0.0, None, rate_scale)

    from_arena_csv = from_csv

    @classmethod
    def from_jsonl(
        cls, path: str | os.PathLike[str], n_adapters: int = 32, alpha: float = 1.0, seed: int = 0
    ) -> Workload:
        """Mooncake trace: one object a line with timestamp (ms), input_length, output_length."""
        path = Path(path)
        rows, dropped = [], 0
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.strip():
                try:
                    item = json.loads(line)
                    row = (
                        _seconds(item["timestamp"]) / 1000.0, _tokens(item["input_length"]), _tokens(item["output_length"])
                    )  # fmt: skip
                except (ValueError, KeyError, TypeError) as error:
                    raise TraceError(
                        f"{path}: line {number}: expected timestamp, input_length, output_length ({error})"
                    ) from None
                if min(row[1:]) < 1:
                    dropped += 1
                else:
                    rows.append(row)
        if not rows:
            raise TraceError(f"{path}: expected at least one usable request, got none ({dropped} dropped)")
        if dropped:
            warnings.warn(f"{path.name}: {dropped} rows with zero lengths were dropped", stacklevel=2)
        times, prompt, output = (np.array(c) for c in zip(*rows))
        workload = cls(times, np.ones(len(rows)), prompt, output, name=path.stem, origin="real", dropped=dropped)
        return workload.with_adapters(n_adapters, alpha, seed)

    @classmethod
    def synthetic(
        cls,
        n_adapters: int = 16,
        rate: float = 4.0,
        duration: float = 120.0,
        arrivals: str = "poisson",
        alpha: float = 1.0,
        prompt_mean: float = 300.0,
        output_mean: float = 150.0,
        seed: int = 0,
    ) -> Workload:
        """A generated workload, for machines without the traces.

        Args:
            n_adapters: number of adapters, Zipf(``alpha``) popular.
            rate: mean requests per second.
            duration: seconds.
            arrivals: ``poisson``, ``gamma`` (bursty, coefficient of variation 2) or ``onoff`` (30 s on, 30 s off).
            alpha: exponent of popularity.
            prompt_mean: mean of log-normal prompt lengths (sigma 1).
            output_mean: mean of log-normal output lengths (sigma 0.8).
            seed: all draws follow it.
        """
        check_real(rate, "rate", minimum=0.0, inclusive=False)
        check_real(duration, "duration", minimum=0.0, inclusive=False)
        check_real(prompt_mean, "prompt_mean", minimum=1.0)
        check_real(output_mean, "output_mean", minimum=1.0)
        check_choice(arrivals, "arrivals", ("poisson", "gamma", "onoff"))
        generator = rng(seed, "felps", "synthetic")
        count = max(1, int(rate * duration * 2 + 50))
        shape = 0.25 if arrivals == "gamma" else 1.0
        times = np.cumsum(generator.gamma(shape, 1.0 / (rate * shape), size=count))
        if arrivals == "onoff":
            times = times / 2.0  # twice the rate in the on phases
            times = times + 30.0 * np.floor(times / 30.0)
        times = times[times < duration]
        times = times if len(times) else np.zeros(1)

        def lengths(mean: float, sigma: float) -> np.ndarray:
            drawn = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, size=len(times))
            return np.clip(np.rint(drawn), 1, 8 * mean).astype(np.int64)

        prompt, output = lengths(prompt_mean, 1.0), lengths(output_mean, 0.8)
        workload = cls(
            times, np.ones(len(times)), prompt, output, name=f"synthetic-{arrivals}", duration=float(duration)
        )
        return workload.with_adapters(n_adapters, alpha, seed)

    @classmethod
    def from_requests(cls, requests: Iterable[Request], name: str = "requests") -> Workload:
        """From request objects with known output lengths."""
        items = sorted(requests, key=lambda r: r.arrival)
        seen: set[int | str] = set()
        for item in items:
            if item.id in seen:
                raise ValueError(f"requests: expected every id once, got {item.id!r} twice")
            if item.output_tokens is None:
                raise ValueError(f"requests: expected known output lengths, got none for {item.id!r}")
            seen.add(item.id)
        return cls(
            *(np.array([getattr(r, c) for r in items]) for c in ("arrival", "adapter", "prompt_tokens", "output_tokens")),
            name=name,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plain CSV form that ``from_csv`` reads."""
        lines = [",".join(ARENA_COLUMNS)]
        rows = zip(self.arrival, self.adapter, self.prompt, self.output)
        lines += [f"{t:.6f},{a},{n},{m}" for t, a, n, m in rows]
        atomic_write_text(path, "\n".join(lines) + "\n")


def _timestamp(text: str) -> float:
    """Seconds since the epoch of ``2023-11-16 18:17:03.9799600``; any number of fractional digits."""
    whole, _, fraction = text.strip().partition(".")
    seconds = datetime.fromisoformat(whole + "+00:00").timestamp()
    return seconds + (float(f"0.{fraction}") if fraction else 0.0)


def _seconds(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"expected a time of at least 0, got {value!r}")
    return number


def _tokens(value: object) -> int:
    number = float(value)  # type: ignore[arg-type]
    if not (0 <= number < 1e9 and number == int(number)):
        raise ValueError(f"expected a whole number of tokens, at least 0 and below 1e9, got {value!r}")
    return int(number)


def _read_csv(path: Path, columns: tuple[str, ...], parsers: tuple[Callable, ...]) -> tuple:
    """Columns of a CSV file. Rows with zero tokens or NaN are dropped and counted; anything else unreadable is an error."""
    try:
        *out, dropped = _parse_csv(path, columns, parsers)
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: expected a CSV file, got something else ({error})") from None
    if not out[0]:
        raise TraceError(f"{path}: expected at least one usable request, got none ({dropped} dropped)")
    if dropped:
        warnings.warn(f"{path.name}: {dropped} rows with missing or zero lengths were dropped", stacklevel=3)
    return (*out, dropped)


def _parse_csv(path: Path, columns: tuple[str, ...], parsers: tuple[Callable, ...]) -> tuple:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream)
        header = next(reader, None)
        if header is None:
            raise TraceError(f"{path}: expected a header and rows, got an empty file")
        missing = [c for c in columns if c not in header]
        if missing:
            raise TraceError(f"{path}: line 1: expected column {missing[0]!r}, got {', '.join(header)}")
        where = [header.index(c) for c in columns]
        out: list[list] = [[] for _ in columns]
        dropped = 0
        for row in reader:
            if not row:
                continue
            values = []
            for position, column, parse in zip(where, columns, parsers):
                text = row[position].strip() if position < len(row) else ""
                if parse is not str and text.lower() in ("nan", ""):
                    break
                try:
                    value = parse(text)
                except ValueError as error:
                    raise TraceError(f"{path}: line {reader.line_num}: {column}: {error}") from None
                if parse is _tokens and value < 1:
                    break
                values.append(value)
            if len(values) == len(columns):
                for column_values, value in zip(out, values):
                    column_values.append(value)
            else:
                dropped += 1
    return (*out, dropped)

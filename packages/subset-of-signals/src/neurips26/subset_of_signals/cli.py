"""Command line: ``neurips26 subset-of-signals <verb>``."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from neurips26.shared.arrays import check_int
from neurips26.subset_of_signals import bounds
from neurips26.subset_of_signals.regressor import METHODS, SubsetOfSignalsRegressor
from neurips26.subset_of_signals.simulate import NOISE_LAWS, subset_of_signals

__all__ = ["main"]

Method = Literal["auto", "npmle", "lad", "truncation", "trimming", "tukey", "huber"]
Law = Literal["two-level", "uniform-log", "worst-case"]


@dataclass
class Fit:
    """Fit a table with a header; fields separated by commas, semicolons or tabs."""

    csv: Annotated[Path, tyro.conf.Positional]
    """The table."""
    y: str = "y"
    """Name of the response."""
    x: str = ""
    """Names of the columns to use, separated by commas; empty: all but the response (and the groups)."""
    scale: float | Literal["auto"] = "auto"
    """Standard deviation up to which a source is a signal, in units of y."""
    method: Method = "auto"
    """Estimator."""
    groups: str = ""
    """Name of a column whose equal entries share a noise level."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        header, table = _read(self.csv)
        names = [n for n in self.x.split(",") if n] or [n for n in header if n not in (self.y, self.groups)]
        for name in [*names, self.y, *([self.groups] if self.groups else [])]:
            if name not in header:
                raise ValueError(f"{name}: expected one of the columns {', '.join(header)} of {self.csv}")
        if not names:
            raise ValueError(
                f"x: expected at least one column beside the response, got {', '.join(header)} in {self.csv}"
            )
        if self.y in names:
            raise ValueError(f"x: expected columns other than the response, got {self.y}")
        column = {n: table[:, i] for i, n in enumerate(header)}
        model = SubsetOfSignalsRegressor(self.method, signal_scale=self.scale)
        model.fit(
            np.column_stack([_numbers(column[n], n) for n in names]),
            _numbers(column[self.y], self.y),
            groups=column[self.groups] if self.groups else None,
        )
        model.feature_names_in_ = np.array(names, dtype=object)
        if self.json:
            low_high = model.conf_int().tolist()
            row = {
                "coef": dict(zip([*names, "intercept"], [*model.coef_.tolist(), model.intercept_])),
                "interval": dict(zip([*names, "intercept"], low_high)),
                "signal_scale": model.signal_scale_,
                "n_signals": model.n_signals_,
                "method": model.method_,
                "converged": bool(model.converged_),
            }
            print(json.dumps(row))
        else:
            print(model.summary())
        return 0


def _read(path: Path) -> tuple[list[str], np.ndarray]:
    import csv

    if not path.is_file():
        raise ValueError(f"csv: expected a table, got {str(path)!r}, which is no file")
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            first = stream.readline()
            stream.seek(0)
            separator = max(",;\t", key=first.count)
            rows = [row for row in csv.reader(stream, delimiter=separator) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"csv: expected a table in UTF-8, got {path} ({error})") from error
    if len(rows) < 2:
        raise ValueError(f"csv: expected a header and rows, got {len(rows)} lines in {path}")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"csv: expected {len(rows[0])} fields as in the header, got {len(row)} in line {number} of {path}"
            )
    header = [n.strip() for n in rows[0]]
    twice = sorted({n for n in header if header.count(n) > 1})
    if twice:
        raise ValueError(f"csv: expected columns of different names, got {', '.join(twice)} more than once in {path}")
    return header, np.array(rows[1:], dtype=object)


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    numbers = np.full(values.size, np.nan)
    for i, text in enumerate(values):
        with contextlib.suppress(ValueError):
            numbers[i] = float(text)
        if not np.isfinite(numbers[i]):
            raise ValueError(
                f"{name}: expected a column of finite numbers, got {text!r} in row {i + 1} (--x names the columns to use)"
            )
    return numbers


@dataclass
class Simulate:
    """Draw a problem and write it as a table (columns x0, x1, …, y)."""

    out: Annotated[Path, tyro.conf.Positional]
    """File to write."""
    n: int = 2000
    """Sources."""
    m: int = 400
    """Signals."""
    d: int = 4
    """Dimensions."""
    law: Law = "two-level"
    """Law of the bad sources' noise."""
    seed: int = 0
    """Seed."""

    def __call__(self) -> int:
        from neurips26.shared.runs import atomic_path

        s = subset_of_signals(self.n, self.m, self.d, noise=self.law, seed=self.seed)
        with atomic_path(self.out) as temporary:
            header = ",".join([f"x{i}" for i in range(self.d)] + ["y"])
            np.savetxt(temporary, np.column_stack([s.X, s.y]), delimiter=",", header=header, comments="", fmt="%.10g")
        print(f"{self.out}: {self.n} sources, {self.m} signals, true coefficients {np.round(s.beta, 4).tolist()}")
        return 0


@dataclass
class Compare:
    """Errors of every method on drawn problems."""

    n: int = 2000
    """Sources."""
    m: int = 400
    """Signals."""
    d: int = 4
    """Dimensions."""
    law: Law = "two-level"
    """Law of the bad sources' noise."""
    repeats: int = 5
    """Draws."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        from neurips26.subset_of_signals.experiments import FAMILY, error

        check_int(self.repeats, "repeats", minimum=1)
        methods = (*FAMILY, "oracle")
        draws = [subset_of_signals(self.n, self.m, self.d, noise=self.law, seed=s) for s in range(self.repeats)]
        table = {m: float(np.median([error(m, s, i) for i, s in enumerate(draws)])) for m in methods}
        if self.json:
            print(json.dumps(table))
        else:
            print(f"median error over {self.repeats} draws, n {self.n}, m {self.m}, d {self.d}, {self.law}")
            for name, value in sorted(table.items(), key=lambda kv: kv[1]):
                print(f"  {name:<12}{value:>12.4f}")
        return 0


@dataclass
class Scaling:
    """Fit the exponents of LAD's error in m, n and d."""

    repeats: int = 20
    """Draws a size."""
    work: Path | None = None
    """Folder for finished draws: an interrupted run continues from it, a larger --repeats adds to it."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        from neurips26.shared.runs import Cells
        from neurips26.subset_of_signals import effects
        from neurips26.subset_of_signals.experiments import error

        check_int(self.repeats, "repeats", minimum=2)
        kept = None if self.work is None else Cells(self.work)
        sweeps = {
            "m": [(4000, m, 4) for m in (400, 700, 1200)],
            "n": [(n, 800, 4) for n in (1500, 3000, 6000)],
            "d": [(4000, 1000, d) for d in (2, 6, 12)],
        }

        def once(n: int, m: int, d: int, seed: int) -> float:
            def draw() -> float:
                return error("lad", subset_of_signals(n, m, d, bad=1e6, seed=seed))

            return draw() if kept is None else kept.get(f"n {n}, m {m}, d {d}, seed {seed}", draw)

        out = {}
        for factor, sizes in sweeps.items():
            cells = [
                {"factors": {"n": n, "m": m, "d": d}, "method": "lad", "seed": seed, "value": once(n, m, d, seed)}
                for n, m, d in sizes
                for seed in range(self.repeats)
            ]
            out[factor] = dict(zip(("exponent", "low", "high"), getattr(effects, f"slope_in_{factor}")(cells, 0.95)))
        if self.json:
            print(json.dumps(out))
        else:
            for factor, v in out.items():
                print(f"error ~ {factor}^{v['exponent']:.3f}   95% [{v['low']:.3f}, {v['high']:.3f}]")
        return 0


@dataclass
class Phase:
    """Where recovery sets in: the threshold and the bounds for a size."""

    n: int = 10_000
    """Sources."""
    d: int = 4
    """Dimensions."""
    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        start = max(self.d, round(bounds.threshold(self.n, self.d)))
        ms = sorted({min(self.n, round(start * f)) for f in (1, 2, 4, 8, 16)})
        rows = [
            {
                "m": m,
                "asymptotic_error": bounds.asymptotic_error(self.n, self.d, m),
                "certified_error": bounds.recovery_error(self.n, self.d, m),
                "order_of_the_lower_bound": bounds.lower_bound(self.n, m),
            }
            for m in ms
        ]
        if self.json:
            safe = [{k: (v if np.isfinite(v) else None) for k, v in r.items()} for r in rows]
            print(json.dumps({"threshold": bounds.threshold(self.n, self.d), "rows": safe}))
        else:
            print(f"threshold sqrt(n d) = {bounds.threshold(self.n, self.d):.0f} of {self.n} sources")
            for r in rows:
                print(
                    f"  m {r['m']:>8}: expected {r['asymptotic_error']:.3f}, certified at 95% {r['certified_error']:.3f}, "
                    f"no method below the order of {r['order_of_the_lower_bound']:.3f} (d = 1)"
                )
        return 0


def main(argv: list[str]) -> int:
    """Run one verb; returns the exit status."""
    verbs = {"fit": Fit, "simulate": Simulate, "compare": Compare, "scaling": Scaling, "phase": Phase}
    assert set(METHODS) == set(Method.__args__) and set(NOISE_LAWS) == set(Law.__args__)  # type: ignore[attr-defined]
    command = tyro.extras.subcommand_cli_from_dict(verbs, args=argv, prog="neurips26 subset-of-signals")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        return command()

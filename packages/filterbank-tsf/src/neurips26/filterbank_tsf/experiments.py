"""The measurements behind the claims: each function depends on its arguments alone and returns JSON values."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from neurips26.shared.context import Context
from neurips26.shared.seeding import rng as stream

from .alignment import (
    AlignmentCurve,
    alignment_curve,
    bank_kernel,
    cka,
    feature_alignment,
    learning_curve_gd,
    metric_alignment,
    phase_randomised,
    steps_to_learn,
    tangent_metric,
    time_shuffled,
)
from .bank import fit_bank
from .nn import DeepFilterBank, FilterBank
from .peers import make_peer
from .protocol import LTSFData, block_errors, load_ltsf, runs_of_windows
from .rank import rank_curve
from .regression import RidgePath
from .selection import candidates, choose_on_validation, chosen_forecaster, chosen_rule, rehearse
from .stats import WindowStats
from .tables import bank_forecaster
from .training import TrainConfig, TrainResult, Windows, score, train

# Published MSE of FITS after its evaluation was corrected (arXiv 2307.03756, authors' table): nothing here is ours.
FITS_PUBLISHED: dict[str, dict[int, float]] = {
    "ETTh1": {96: 0.375, 192: 0.407, 336: 0.430, 720: 0.427},
    "ETTh2": {96: 0.271, 192: 0.331, 336: 0.354, 720: 0.378},
}
# The bars of the table, fixed before the run.
BARS: dict[str, dict[int, float]] = {
    "ETTh1": {96: 0.364, 192: 0.402, 336: 0.416, 720: 0.420},
    "ETTh2": {96: 0.267, 192: 0.328, 336: 0.354, 720: 0.378},
}


@dataclass(frozen=True)
class Recipe:
    """How a peer is trained: batch, schedule and rates after its paper or its code, passes as two cores allow.

    Attributes:
        rates: learning rates tried in tuning; the first is the paper's.
        epochs: at most this many passes over every training window; the papers allow ``published`` of them.
        published: passes that the paper allows.
        batch: windows a step.
        schedule: of :class:`TrainConfig`.
        patience: passes without a better validation error.
        lookbacks: tried in tuning.
    """

    rates: tuple[float, float]
    epochs: int
    published: int
    batch: int
    schedule: Literal["cosine", "halve", "decay"]
    patience: int = 3
    lookbacks: tuple[int, int] = (336, 720)


RECIPES: dict[str, Recipe] = {
    "dlinear": Recipe((5e-3, 5e-2), 10, 10, 32, "halve"),
    "fits": Recipe((5e-4, 5e-3), 6, 50, 64, "cosine"),
    "sparsetsf": Recipe((2e-2, 5e-3), 8, 30, 256, "decay"),
    "cyclenet": Recipe((1e-2, 2e-3), 6, 30, 256, "decay"),
    "timebase": Recipe((2e-2, 1e-1), 8, 30, 256, "decay"),
    "olinear": Recipe((5e-4, 2e-3), 4, 50, 128, "cosine"),
    "rootpurge": Recipe((1e-3, 1e-2), 6, 50, 128, "cosine"),
}
TRAINED: tuple[str, ...] = tuple(RECIPES)
TUNING_EPOCHS = 2
# Test windows of a data set are cut into so many runs; the mean log error of a run over all horizons is one unit of an
# interval. Horizons of one run share their rows; neighbouring runs share little unless H is long.
TEST_RUNS = 5
# The deep stack: every fourth training window (neighbours overlap in all but four steps).
DEEP_STRIDE, DEEP_BATCH = 4, 32
# The bank whose tangent kernel is looked at: from cosine filters and a random core to where the validation error stays.
BANK_RATE, BANK_EPOCHS = 1e-2, 10
# Runs of training rows that the number of directions is counted on, and how far above the smallest validation error a rank
# may be to count as saturated.
TRAINING_RUNS, SATURATED = 5, 1.01
# Every so many training windows are enough for the moments of a few hundred features.
FEATURE_STRIDE = 8
# Steps of gradient descent at which learning curves are drawn.
DRAWN_STEPS = np.unique(np.geomspace(1, 1e6, 121).astype(int))

_loaded: dict[str, LTSFData] = {}


def dataset(name: str) -> LTSFData:
    """A benchmark, read once a process."""
    if name not in _loaded:
        _loaded[name] = load_ltsf(name)
    return _loaded[name]


def main_sets(ctx: Context) -> list[str]:
    """What stands for the benchmark on this machine: the ETT pair, ETTh1 in the quick tier, else a shipped series."""
    if ctx.data("ETTh1.csv") is None:
        return ["co2"]
    return ["ETTh1"] if ctx.tier == "quick" or ctx.data("ETTh2.csv") is None else ["ETTh1", "ETTh2"]


def horizons(name: str) -> tuple[int, ...]:
    """The horizons reported on a data set."""
    return dataset(name).spec.horizons


def tuned() -> dict[str, dict[str, Any]]:
    """Settings chosen by the tuning grids, as the tune record has them."""
    return json.loads((Path(__file__).parent / "tuned.json").read_text("utf-8"))


def rehearsal_cell(name: str, horizon: int) -> list[dict[str, Any]]:
    """Every rule of choice on training and validation rows; see :func:`neurips26.filterbank_tsf.selection.rehearse`."""
    return rehearse(dataset(name), horizon, dataset(name).spec.lookbacks)


# -- rank and alignment -----------------------------------------------------------------------------------------------


def rank_cell(name: str, horizon: int, lookback: int) -> dict[str, Any]:
    """Losses against rank, the penalty of every rank chosen on validation."""
    data = dataset(name)
    grid = candidates(data, lookback, horizon)
    train_stats = data.stats("train", lookback, horizon).normalised("mean")
    test = data.stats("test", lookback, horizon).normalised("mean")
    rows = grid.losses(by_blocks=False).argmin(0)
    forecasters = [grid.low_rank(int(i), r) for i, r in zip(rows, grid.ranks)]
    ridge, twelve = grid.ridge(int(np.argmin(grid.val_full))), grid.ranks.index(min(12, grid.ranks[-1]))
    low, full = [f.weight for f in forecasters], ridge.weight
    runs = [block_errors(f, data, lookback, horizon, TEST_RUNS).tolist() for f in (forecasters[twelve], ridge)]
    curve = alignment_curve(train_stats)
    data.forget()
    return {
        "ranks": list(grid.ranks),
        "train": [train_stats.mse(w) for w in low],
        "val": grid.losses(by_blocks=False).min(0).tolist(),
        "test": [test.mse(w) for w in low],
        "full": {"train": train_stats.mse(full), "val": float(np.min(grid.val_full)), "test": test.mse(full)},
        "runs": {"rank 12": runs[0], "full": runs[1]},
        "k95": curve.k_at(0.95),
    }


def alignment_cell(name: str, horizon: int, lookback: int, norm: str) -> dict[str, float]:
    """Alignment on the training windows and what linear forecasters reach on the test windows."""
    data = dataset(name)
    train_stats, test = (data.stats(p, lookback, horizon).normalised(norm) for p in ("train", "test"))
    curve, path = alignment_curve(train_stats), RidgePath(train_stats)
    energy = float(np.trace(test.target)) / (test.count * test.horizon)
    full = test.mse(path.weight(1e-2))
    result = {
        "p12": float(curve.cumulative[min(12, len(curve.power)) - 1]),
        "r2_train": curve.r_squared,
        "k95": curve.k_at(0.95),
        "cka": cka(train_stats),
        "r2_test": 1.0 - full / energy,
        "gap12": test.mse(path.reduced_rank(1e-2, min(12, horizon)).weight) / full,
        "gap4": test.mse(path.reduced_rank(1e-2, 4).weight) / full,
    }
    data.forget()
    return result


def surrogate_cell(name: str, seed: int, lookback: int = 336, horizon: int = 96) -> dict[str, float]:
    """Alignment of the training rows, of a phase-randomised and of a time-shuffled copy."""
    rows = dataset(name).rows("train", 0)
    out = {}
    for label, z in (
        ("original", rows),
        ("phases", phase_randomised(rows, stream(seed, "phases"))),
        ("shuffled", time_shuffled(rows, stream(seed, "shuffle"))),
    ):
        curve = alignment_curve(WindowStats.from_series(z, lookback, horizon).normalised("mean"))
        out[f"p12_{label}"], out[f"r2_{label}"] = float(curve.cumulative[11]), curve.r_squared
    return out


def directions_cell(name: str, run: int, horizon: int, lookback: int) -> dict[str, float]:
    """How many directions matter on one of ``TRAINING_RUNS`` disjoint runs of training rows: of the data's kernel, of the
    tangent kernel of the global bank fitted there (for the same share of the target), and the rank at which the error on
    the validation rows saturates.
    """
    data = dataset(name)
    rows = data.rows("train", 0)
    start, stop = np.linspace(0, len(rows), TRAINING_RUNS + 1).astype(int)[run : run + 2]
    stats = WindowStats.from_series(rows[start:stop], lookback, horizon).normalised("mean")
    ranks = rank_curve(stats, {"val": data.stats("val", lookback, horizon).normalised("mean")})
    errors = ranks.along("val")
    rank = ranks.ranks[int(np.argmax(errors <= SATURATED * errors.min()))]
    alpha = ranks.alphas[int(ranks.losses["val"][:, ranks.ranks.index(rank)].argmin())]
    bank = RidgePath(stats).reduced_rank(alpha, rank).balanced()
    curve = alignment_curve(stats)
    tangent = metric_alignment(
        stats, np.asarray(bank_kernel(bank.analysis, bank.synthesis, np.eye(lookback), trace=True))
    )
    data.forget()
    return {"k95": curve.k_at(), "rank": rank, "k95 of the bank": tangent.k_at(of=curve.r_squared)}


def tangent_cell(name: str, horizon: int, lookback: int, seed: int) -> dict[str, Any]:
    """The tangent kernel of a strided bank before and after training, and the data's kernel, on all training windows."""
    data = dataset(name)
    stats, val_stats = (data.stats(p, lookback, horizon).normalised("mean") for p in ("train", "val"))
    bank = FilterBank(lookback, horizon, 8, data.spec.period, rank=12, seed=seed)
    curves = {
        "data's kernel": alignment_curve(stats),
        "bank before training": metric_alignment(stats, tangent_metric(bank)),
    }
    windows = Windows(data.rows("train", lookback), lookback, horizon, 0, DEEP_STRIDE)
    val = Windows(data.rows("val", lookback), lookback, horizon, data.train_end - lookback)
    history = train(bank, windows, val, TrainConfig(BANK_RATE, BANK_EPOCHS, BANK_EPOCHS, DEEP_BATCH, seed=seed))
    curves["trained bank"] = metric_alignment(stats, tangent_metric(bank))
    closed = fit_bank(stats, 8, data.spec.period, rank=12, alpha=1e-2)
    data.forget()
    explained = curves["data's kernel"].r_squared
    return {
        "kernels": {label: _shown(curve, explained) for label, curve in curves.items()},
        "val": history.best, "val_start": history.val[0], "val_closed": val_stats.mse(closed.double_map().numpy()),
    }  # fmt: skip


def deep_features_cell(name: str, horizon: int, lookback: int, lr: float, seed: int, epochs: int) -> dict[str, Any]:
    """The alignment of what the last layers of a trained deep stack read."""
    data = dataset(name)
    model, _ = trained_stack(name, horizon, lookback, lr, seed, epochs)
    windows = Windows(data.rows("train", lookback), lookback, horizon, 0, FEATURE_STRIDE)
    x, y, _ = windows.batch(torch.arange(len(windows)))
    with torch.no_grad():
        features, targets = model.features(x), y - model.norm.level(x)
    curve = feature_alignment(features.flatten(0, 1).double().numpy(), targets.flatten(0, 1).double().numpy())
    explained = alignment_curve(data.stats("train", lookback, horizon).normalised("mean")).r_squared
    data.forget()
    return _shown(curve, explained) | {"features": len(curve.power)}


def _shown(curve: AlignmentCurve, explained: float) -> dict[str, Any]:
    """What pictures and claims read of a curve; ``k95`` is for 95 % of the share ``explained`` of the target."""
    learnt = 1.0 - learning_curve_gd(curve, DRAWN_STEPS, curve.count / curve.eigenvalues[0]) / curve.target_energy
    return {
        "k95": curve.k_at(of=explained), "r2": curve.r_squared, "steps": steps_to_learn(curve),
        "cumulative": curve.cumulative.round(5).tolist(), "learnt": learnt.round(5).tolist(),
    }  # fmt: skip


# -- cost -------------------------------------------------------------------------------------------------------------

BANKS: tuple[tuple[int, float, int], ...] = (
    (2, 0.5, 4), (2, 0.5, 8), (3, 0.5, 8), (4, 0.5, 6), (4, 0.5, 8), (4, 0.5, 12), (6, 0.5, 12), (4, 1.0, 8),
    (6, 1.0, 8), (8, 1.0, 8), (8, 1.0, 12), (12, 1.0, 16),
)  # fmt: skip


def pareto_cell(name: str, horizon: int, lookback: int) -> list[dict[str, Any]]:
    """Multiply-adds and errors of strided and global banks beside full-rank ridge at one look-back."""
    data = dataset(name)
    grid = candidates(data, lookback, horizon)
    train_stats = data.stats("train", lookback, horizon).normalised("mean")
    val, test = (data.stats(p, lookback, horizon).normalised("mean") for p in ("val", "test"))
    assert grid.val is not None and grid.val_full is not None
    row = int(grid.val_full.argmin())
    points = [{"kind": "linear (ridge)", "macs": lookback * horizon, "setting": f"alpha {grid.alphas[row]:g}",
               "val": float(grid.val_full.min()), "test": test.mse(grid.ridge(row).weight)}]  # fmt: skip
    for j, rank in enumerate(grid.ranks):
        if rank <= 32:
            weight = grid.low_rank(int(grid.val[:, j].argmin()), rank).weight
            points.append({"kind": "global bank", "macs": rank * (lookback + horizon), "setting": f"r{rank}",
                           "val": val.mse(weight), "test": test.mse(weight)})  # fmt: skip
    for filters, share, rank in BANKS:
        size = max(2, round(data.spec.period * share))
        best = None
        for alpha in (1e-4, 1e-3, 1e-2, 1e-1):
            bank = fit_bank(train_stats, min(filters, size), size, rank=rank, alpha=alpha, path=grid.path)
            forecaster = bank_forecaster(bank)
            loss = val.mse(forecaster.weight)
            if best is None or loss < best["val"]:
                best = {"kind": "strided bank", "macs": bank.macs(), "setting": f"K{filters} P{size} r{rank}",
                        "val": loss, "test": test.mse(forecaster.weight)}  # fmt: skip
        points.append(best)
    data.forget()
    return points


def low_rank_errors(name: str, horizon: int) -> dict[str, Any]:
    """Reduced rank, one look-back, smallest validation error: test error, whole and by run of windows."""
    data = dataset(name)
    grids = [candidates(data, n, horizon) for n in data.spec.lookbacks]
    choice = choose_on_validation(grids)
    longest = max(data.spec.lookbacks)
    out = {
        "mse": choice.forecaster.mse(data.stats("test", longest, horizon)),
        "runs": block_errors(choice.forecaster, data, longest, horizon, TEST_RUNS).tolist(),
        "setting": choice.setting,
    }
    data.forget()
    return out


def forward_pairs(repeats: int, batch: int = 8192, overlapping: bool = True) -> dict[str, list[float]]:
    """CPU time of three banks (one frame, frames side by side, overlapping frames) relative to ``nn.Linear(720, 720)`` on
    the same batch, pair by pair, one thread.
    """
    from neurips26.shared import bench

    x = torch.randn(batch, 720, generator=torch.Generator().manual_seed(0))
    linear = torch.nn.Linear(720, 720)
    rng = np.random.default_rng(0)
    banks = {
        "global r12": FilterBank.from_factors(rng.normal(size=(720, 12)), rng.normal(size=(12, 720))),
        "K8 P24 r12": FilterBank(720, 720, 8, 24, rank=12),
    }
    if overlapping:
        banks["K4 P24 S12 r8"] = FilterBank(720, 720, 4, 24, 12, rank=8)
    out = {}
    with torch.inference_mode():
        for label, bank in banks.items():
            bank.eval()
            out[label] = list(bench.ratio(lambda b=bank: b(x), lambda: linear(x), repeats).pairs)
    return out


# -- laws -------------------------------------------------------------------------------------------------------------

LAW_SETTINGS: tuple[tuple[int, ...], ...] = (
    (4, 24, 24, 24, 24),
    (6, 12, 12, 24, 24),
    (4, 12, 6, 12, 12),
    (2, 24, 8, 24, 12),
    (3, 24, 12, 16, 16),
)  # fmt: skip  K, P, S, Q, hop


def rank_law_cell(index: int, seed: int) -> dict[str, int]:
    """Numerical rank of a bank with random parameters after a few random gradient steps, and the law's value."""
    filters, size, stride, synthesis, hop = LAW_SETTINGS[index // 4]
    core = ("dense", "lowrank", "depthwise", "shared")[index % 4]
    bank = FilterBank(
        96, 48, filters, size, stride, filters, synthesis, hop, 5 if core == "lowrank" else None, core,
        init="random", seed=seed,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        x, y = torch.randn(64, 96, generator=generator), torch.randn(64, 48, generator=generator)
        parameters = list(bank.parameters())
        gradients = torch.autograd.grad((bank(x) - y).square().mean(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter -= 1e-2 * gradient
    return {"rank": bank.effective_rank(), "law": bank.rank_bound, "macs": bank.macs()}


# -- trained models ---------------------------------------------------------------------------------------------------


def peer_config(peer: str, lr: float | None = None, epochs: int | None = None, seed: int = 0) -> TrainConfig:
    """Training of a peer by its recipe; rate and passes default to those of its paper (RLinear's are DLinear's)."""
    recipe = RECIPES.get(peer, RECIPES["dlinear"])
    return TrainConfig(
        recipe.rates[0] if lr is None else lr, recipe.published if epochs is None else epochs, recipe.patience,
        recipe.batch, clip=math.inf, seed=seed, schedule=recipe.schedule,
    )  # fmt: skip


def peer_cell(
    name: str,
    horizon: int,
    peer: str,
    lookback: int,
    lr: float,
    seed: int,
    epochs: int | None = None,
    test: bool = True,
) -> dict[str, Any]:
    """One peer trained by its recipe on every training window: validation error, test errors on every window (unless
    tuning), passes made, CPU seconds, cost.
    """
    data, recipe = dataset(name), RECIPES[peer]
    lookback = _fit_lookback(peer, lookback, horizon, data.spec.period)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch announces complex modules as new
        stats = data.stats("train", lookback, horizon) if peer == "olinear" else None
        model = make_peer(peer, lookback, horizon, data.values.shape[1], data.spec.period, stats, seed)
    windows = Windows(data.rows("train", lookback), lookback, horizon)
    val = Windows(data.rows("val", lookback), lookback, horizon, data.train_end - lookback)
    history = train(model, windows, val, peer_config(peer, lr, epochs or recipe.epochs, seed))
    out: dict[str, Any] = {
        "val": history.best, "passes": len(history.train), "seconds": time.process_time() - started,
    }  # fmt: skip
    if test:
        held = Windows(data.rows("test", lookback), lookback, horizon, data.val_end - lookback)
        mse, mae = score(model, held)
        runs = [score(model, held, among=run)[0] for run in runs_of_windows(len(held), TEST_RUNS)]
        out |= {"mse": mse, "mae": mae, "runs": runs, "windows": len(held), "macs": model.macs()}
        out["lookback"] = lookback
    data.forget()
    return out


def _fit_lookback(peer: str, lookback: int, horizon: int, period: int) -> int:
    return lookback // period * period if peer in ("sparsetsf", "timebase") else lookback


def deep_cell(name: str, horizon: int, lookback: int, lr: float, seed: int, epochs: int, test: bool = True) -> dict:
    """The deep stack from its closed-form start: validation before and after, test of both."""
    data = dataset(name)
    start = untrained_stack(name, horizon, lookback, seed)
    val_stats = data.stats("val", lookback, horizon).normalised("mean")
    closed_val = val_stats.mse(start.blocks[0].bank.double_map().numpy())
    model, history = trained_stack(name, horizon, lookback, lr, seed, epochs)
    out = {"val_closed": closed_val, "val_start": history.val[0], "val": history.best, "epochs": len(history.train)}
    if test:
        held = Windows(data.rows("test", lookback), lookback, horizon, data.val_end - lookback)
        out |= {"test_closed": score(start, held)[0], "test": score(model, held)[0]}
    data.forget()
    return out


def untrained_stack(name: str, horizon: int, lookback: int, seed: int) -> DeepFilterBank:
    """The deep stack at its closed-form start."""
    data = dataset(name)
    train_stats = data.stats("train", lookback, horizon).normalised("mean")
    bank = fit_bank(train_stats, 8, data.spec.period, rank=12, alpha=1e-2)
    return DeepFilterBank(lookback, horizon, bank, 3, hidden=32, period=data.spec.period, seed=seed)


@functools.cache
def trained_stack(
    name: str, horizon: int, lookback: int, lr: float, seed: int, epochs: int
) -> tuple[DeepFilterBank, TrainResult]:
    """The stack trained from there, once a process: two claims look at it."""
    data, model = dataset(name), untrained_stack(name, horizon, lookback, seed)
    windows = Windows(data.rows("train", lookback), lookback, horizon, 0, DEEP_STRIDE)
    val = Windows(data.rows("val", lookback), lookback, horizon, data.train_end - lookback)
    return model, train(model, windows, val, TrainConfig(lr, epochs, patience=2, batch=DEEP_BATCH, seed=seed))


# -- speed and memory -------------------------------------------------------------------------------------------------


def statistics_pairs(repeats: int, channels: int = 7) -> list[float]:
    """CPU time of the displacement recursion relative to blocked float64 accumulation, ETTh1-size, L=512, H=96."""
    from neurips26.shared import bench

    z = np.random.default_rng(0).normal(size=(8640, channels))
    return list(
        bench.ratio(
            lambda: WindowStats.from_series(z, 512, 96, method="displacement"),
            lambda: WindowStats.from_series(z, 512, 96, method="blocked"),
            repeats,
        ).pairs
    )


def closed_form_seconds(name: str, lookbacks: Sequence[int], on_validation: bool = False) -> float:
    """CPU seconds for the whole closed-form table: all horizons and look-backs, all penalties and ranks that the rule of
    the main table tries (or, ``on_validation``, the whole grid and the smallest validation error), exact test error.
    """
    data, judge = dataset(name), on_validation or not chosen_rule().by_blocks
    data.forget()
    started = time.process_time()
    for horizon in data.spec.horizons:
        grids = [candidates(data, lookback, horizon, judge=judge) for lookback in lookbacks]
        choice = choose_on_validation(grids) if on_validation else chosen_forecaster(data, horizon, grids)
        choice.forecaster.mse(data.stats("test", max(lookbacks), horizon))
    seconds = time.process_time() - started
    data.forget()
    return seconds


def dlinear_pass_seconds(name: str, lookback: int, seed: int) -> list[float]:
    """CPU seconds for one pass of DLinear by Adam over all training windows, with validation, at every horizon."""
    data, recipe, out = dataset(name), RECIPES["dlinear"], []
    for horizon in data.spec.horizons:
        model = make_peer("dlinear", lookback, horizon, data.values.shape[1], data.spec.period, seed=seed)
        windows = Windows(data.rows("train", lookback), lookback, horizon)
        val = Windows(data.rows("val", lookback), lookback, horizon)
        started = time.process_time()
        train(model, windows, val, TrainConfig(recipe.rates[0], 1, batch=recipe.batch, clip=math.inf, seed=seed))
        out.append(time.process_time() - started)
    return out


_MEMORY = """
import sys, time
import numpy as np
from neurips26.filterbank_tsf.stats import WindowStats
from neurips26.filterbank_tsf.regression import RidgePath, grid_losses
rows, channels, lookback, horizon, solve = map(int, sys.argv[1:])
z = np.random.default_rng(0).standard_normal((rows, channels))
def field(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) / 1024
try:
    open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew, without that of the imports
except OSError:
    pass  # then what the imports needed for a moment counts as ours
before, started = field("VmRSS"), time.process_time()
stats = WindowStats.from_series(z, lookback, horizon).normalised("mean")
if solve:
    for _ in grid_losses(RidgePath(stats), [stats], (1e-2,), (12,)):
        pass
print(field("VmHWM") - before, field("VmHWM"), time.process_time() - started)
"""


def memory(rows: int, channels: int, lookback: int, horizon: int, solve: bool) -> dict[str, float]:
    """Peak memory in MiB (above the imports and the data, and in all) and CPU seconds, in a process of its own.

    The kernel's high-water mark of that process' own address space; ``ru_maxrss`` would be inherited from this one.
    """
    if not Path("/proc/self/status").exists():
        raise OSError("memory is read from /proc, which this system does not have")
    arguments = [str(int(v)) for v in (rows, channels, lookback, horizon, solve)]
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, *arguments], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    above, peak, seconds = map(float, done.stdout.split())
    return {"above": above, "peak": peak, "seconds": seconds}

"""What the claims share: the checkpoint and its gates, robots and exposure of a tier, the cells of the tables of returns.

Gains of a policy that does not pass its gates (see `gates`) would be training continued, not adaptation. While the
card of a checkpoint says that a gate failed, the claims about gains run nothing: they stand as not testable, and the
failed gate is the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jax
import numpy as np

from neurips26.shared.claims import DataUse, Measurement, Series
from neurips26.shared.context import Context
from neurips26.shared.record import NotTestable

from .. import checkpoint, critic, shifts
from ..adaptation import method_config
from ..evaluate import TABLE, Rollout, rollout
from ..memory import ScoreMemory, probabilities

CHECKPOINT = "go1-joystick"
PASSED = "walks; gates passed"
ONBOARD = [DataUse("MuJoCo Playground Go1 model", "from a dependency")]
CONDITIONS = ("nominal", *shifts.SHIFTS)
INFORMED = ("friction", "payload")  # shifts of the ground and the body, whose effect a critic can learn
SEVERITY = 3
WARMUP = 32  # observations before the first update, for every method: equally many updates
BIN = 25  # ticks that a point of the return over time averages
GROUPS = 8  # of robots, whose means are the record's cells
VALUES = np.linspace(-0.1, 1.4, 31)  # bins of the replayed values; a step earns at most 0.04, so Q <= 1.33
NO_TABLE = "none: the abstract gives no table"

#: Robots, ticks and episodes of a tier. Learning goes on from one episode to the next; a fall ends an episode, so that
#: many short ones give a robot under a severe shift the updates that one long one would not. `few` robots run where an
#: effect is large enough for them.
SIZES = {
    "quick": {"robots": 5, "few": 5, "ticks": 100, "episodes": 1},
    "tune": {"robots": 8, "few": 8, "ticks": 200, "episodes": 2},
    "cpu": {"robots": 24, "few": 8, "ticks": 200, "episodes": 10},
    "gpu": {"robots": 64, "few": 64, "ticks": 1000, "episodes": 4},
}
FIRST_ROBOT = {"cpu": 300}  # robots of the CPU tier begin after all that any earlier look at a claim has seen


# -- the policy and its gates ------------------------------------------------------------------------------------------
def _meta(name: str) -> dict[str, Any] | None:
    """What the header of a shipped checkpoint says, without reading its weights."""
    path = checkpoint.available().get(name)
    if path is None:
        return None
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return json.loads(header["__metadata__"]["meta"])


def failed_gates(name: str = CHECKPOINT) -> str:
    """Why no gain of this checkpoint would mean anything; empty where all gates passed."""
    meta = _meta(name)
    if meta is None:
        return f"no checkpoint {name} comes with the package"
    if meta["status"] == PASSED:
        return ""
    gates = meta["card"].get("gates")
    if gates is None:
        return f"{name} has not been through its gates"
    k1, k2, k3, k4 = (gates[k] for k in ("K1", "K2", "K3", "K4"))
    said = {
        "K1": f"K1 (tracking {k1['tracking']:.2f}, return {k1['return']:.1f} against {k1['standing']:.1f} standing still, "
        f"falls {100 * k1['falls']:.1f} %)",
        "K2": f"K2 (correlation {k2['pearson']:.2f}, bias {100 * k2['bias']:+.0f} %)",
        "K3": f"K3 (climbing the critic raises Q by {100 * k3['rise']:.1f} %)",
        "K4": f"K4 (the shifts cost {100 * min(k4.values()):.0f} to {100 * max(k4.values()):.0f} %)",
    }
    return f"{name} fails " + " and ".join(said[k] for k, ok in gates["passed"].items() if not ok)


def withhold(*names: str) -> None:
    """No figure of adaptation for policies whose gates failed."""
    why = "; ".join(filter(None, map(failed_gates, names or (CHECKPOINT,))))
    if why:
        raise NotTestable(f"not run: {why}")


@lru_cache(maxsize=4)
def shipped(name: str = CHECKPOINT) -> checkpoint.Checkpoint:
    """A checkpoint of the package, once a process."""
    return checkpoint.load(name)


@lru_cache(maxsize=4)
def informed(shift: str) -> checkpoint.Checkpoint:
    """Go1's checkpoint with critics that know a shift."""
    return critic.refit(shipped(), condition(shift, SEVERITY))


def _policy(name: str) -> checkpoint.Checkpoint:
    """A shipped checkpoint, or Go1's with informed critics ("go1-joystick informed of payload")."""
    first, _, shift = name.partition(" informed of ")
    return informed(shift) if shift else shipped(first)


def condition(name: str, severity: int) -> shifts.Shift:
    """A named condition of Go1."""
    if name == "rough+sensing":  # where the frozen policy nearly fails
        return shifts.Combined((shifts.RoughTerrain(0.12), shifts.Sensing(3, 0.2, 0.05, 0.1, 1)))
    return shifts.of_severity("go1", name, severity or SEVERITY)


# -- settings and robots -----------------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def _chosen_settings() -> dict[str, dict[str, Any]]:
    grids = json.loads(files("neurips26.tempo").joinpath("chosen.json").read_text("utf-8"))
    return {method: settings for grid in grids.values() for method, settings in grid.items()}


def chosen(method: str) -> dict[str, Any]:
    """The settings that the tune tier chose (`chosen.json`, written from its record); none where nothing is tuned."""
    return dict(_chosen_settings().get(method, {}))


def robots(ctx: Context, n: int | None = None) -> list[int]:
    """Seeds of the first `n` robots of a tier, of all by default."""
    n, first = SIZES[ctx.tier]["robots"] if n is None else n, FIRST_ROBOT.get(ctx.tier, 0)
    return ctx.seeds(first + n)[first:]


def few(ctx: Context) -> int:
    """How many robots suffice for a large effect."""
    return SIZES[ctx.tier]["few"]


# -- cells -------------------------------------------------------------------------------------------------------------
_MEASURED: dict[str, Any] = {}


def _once(key: dict[str, Any], fn: Callable[[], Any]) -> Any:
    """Claims that need the same cell share it within a run."""
    name = json.dumps(key, sort_keys=True)
    if name not in _MEASURED:
        _MEASURED[name] = fn()
    return _MEASURED[name]


def returns(
    ctx: Context,
    name: str,
    method: str,
    severity: int = SEVERITY,
    policy: str = CHECKPOINT,
    n: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Returns per 1000 ticks, one a robot, of `method` with `settings`, and what the pictures need; cached by cell."""
    size = {k: SIZES[ctx.tier][k] for k in ("ticks", "episodes")}
    severity, seeds = 0 if name == "nominal" else severity, robots(ctx, n)
    key = {"policy": policy, "shift": name, "severity": severity, "method": method, **settings, **size}
    key |= {"first": seeds[0], "robots": len(seeds)}

    def fn() -> dict[str, Any]:
        more = dict(settings)
        if "alpha" in more:
            more["memory"] = ScoreMemory(alpha=more.pop("alpha"))
        if method not in ("none", "q_greedy", "zero"):
            more["warmup"] = WARMUP
        alpha = 0.0 if method == "zero" else method_config(method, **more).memory.alpha
        return measured(rollout(_policy(policy), method, condition(name, severity), seeds, **size, **more), alpha)

    return ctx.cell(key, lambda: _once({"tier": ctx.tier, **key}, fn))


_shares = jax.jit(jax.vmap(probabilities, in_axes=(0, 0, None)))  # of the draws, one a robot and entry


def measured(run: Rollout, alpha: float) -> dict[str, Any]:
    """What the record keeps of a run whose memory had priorities of sharpness `alpha`."""
    real = run.realised(horizon=100)
    q, alive = run.q[:, : real.shape[1]], run.alive[:, : real.shape[1]]
    pairs = np.stack([q[alive], real[alive]], 1)[:: max(1, int(alive.sum()) // 150)]
    episodes, ticks, n = run.reward.shape
    bins = run.reward.reshape(episodes * ticks // BIN, BIN, n).mean(1)
    filled = ~np.isnan(run.scores)
    shares = _shares(np.nan_to_num(run.scores), filled, alpha)
    values = np.clip(np.nan_to_num(run.scores), VALUES[0], VALUES[-1])
    return {
        "returns": np.round(run.returns().astype(float), 4),
        "falls": float(run.fallen.mean()),
        "seconds": round(0.02 * float(run.alive.sum(1).mean()), 2),
        "updates": round(float(run.updates.mean()), 1),
        "tracking": float(run.tracking[run.alive].mean()),
        "gap": float((q - real)[alive].mean()) if alive.any() else 0.0,
        "drift": float(run.drift.mean()),
        "curve": np.round(bins.mean(1).astype(float), 6),
        "spread": np.round(bins.std(1).astype(float), 6),
        "pairs": np.round(pairs.astype(float), 3),
        "replayed": np.round(np.histogram(values, VALUES, weights=np.asarray(shares))[0] / n, 4),
    }


def rows(ctx: Context, values: Any, method: str, **factors: Any) -> list[dict[str, Any]]:
    """Cells of the record: means over groups of robots, under the seed of a group's first; the series of a claim have
    every robot."""
    seeds = robots(ctx, len(values))
    groups = np.array_split(np.arange(len(seeds)), min(GROUPS, len(seeds)))
    return [
        {
            "factors": factors,
            "seed": seeds[g[0]],
            "method": method,
            "value": round(float(np.mean(np.asarray(values)[g])), 4),
        }
        for g in groups
    ]


# -- tables ------------------------------------------------------------------------------------------------------------
Returns = dict[tuple[str, str], dict[str, Any]]


def table(ctx: Context, names: tuple[str, ...], **options: Any) -> tuple[Returns, list[dict[str, Any]]]:
    """Every method of `TABLE` at its chosen settings under every condition, and the cells."""
    found: Returns = {}
    cells = []
    for name in ctx.track(names, "conditions"):
        for method in TABLE:
            found[name, method] = result = returns(ctx, name, method, **chosen(method), **options)
            cells += rows(ctx, result["returns"], method, shift=name)
    return found, cells


def over_shifts(found: Returns, method: str, names: tuple[str, ...] = tuple(shifts.SHIFTS)) -> np.ndarray:
    """Means over conditions, one a robot."""
    return np.mean([found[name, method]["returns"] for name in names], axis=0)


def series(found: Returns, method: str, names: tuple[str, ...] = tuple(shifts.SHIFTS), **more: Any) -> Series:
    """The same as a series of the record, which names the method's settings."""
    setting = {"method": method, **chosen(method), **more}
    return Series(setting, list(np.round(over_shifts(found, method, names), 4)))


def gain(found: Returns, name: str, method: str) -> float:
    """Relative gain over frozen under one condition, %."""
    frozen = float(np.mean(found[name, "none"]["returns"]))
    return 100 * (float(np.mean(found[name, method]["returns"])) / frozen - 1)


def said(found: Returns, methods: tuple[str, ...] = ("tempo", "naive", "q_greedy", "zero")) -> str:
    """Gains under every condition of a table, and how much life and learning stand behind them."""
    parts = []
    for n in dict.fromkeys(name for name, _ in found):
        row = found[n, "tempo"]
        gains = ", ".join(f"{m} {gain(found, n, m):+.1f} %" for m in methods)
        parts.append(
            f"{n}: frozen {np.mean(found[n, 'none']['returns']):.1f}, {gains} "
            f"({row['seconds']:.1f} s an episode, {row['updates']:.0f} updates)"
        )
    return "; ".join(parts)


def gain_measurement(
    ctx: Context, found: Returns, cells: list[dict[str, Any]], figures: list[Any] | None = None
) -> Measurement:
    """TEMPO against the frozen policy over the four shifts, all other methods beside it."""
    return Measurement(
        series(found, "tempo"),
        {m: series(found, m) for m in TABLE if m != "tempo"},
        "none",
        robots(ctx, len(found["nominal", "tempo"]["returns"])),
        cells,
        ONBOARD,
        figures or [],
        reason=f"{said(found)}; where the critic goes wrong is the row critic-ranks-actors",
        tuned_by="settings",
    )

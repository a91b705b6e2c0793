"""The grids behind the settings: robots that no claim sees, as many settings tried for every method."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from neurips26.shared.claims import Tuning, tunes
from neurips26.shared.context import Context

from .cells import CHECKPOINT, INFORMED, SEVERITY, chosen, failed_gates, returns, rows

LRS = (1e-5, 3e-5, 1e-4, 3e-4)
ENTROPIES = (0.0, 0.03, 0.1, 0.3, 1.0)
#: A method with an entropy term tries 4 x 5 settings; one without tries 20 step sizes of the same range.
JOINT = [{"lr": lr, "entropy_coef": h} for lr, h in product(LRS, ENTROPIES)]
FINE = [{"lr": float(f"{lr:.2g}")} for lr in np.geomspace(LRS[0], LRS[-1], len(JOINT))]
GRIDS = {"naive": FINE, "uniform": FINE, "tempo": JOINT, "easy-first": JOINT}
TUNED_ON = ("nominal", "payload", "sensing")


def _searched(
    ctx: Context, methods: dict[str, str], names: tuple[str, ...], severity: int, oracle: bool = False
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Every setting of every method (by label) under every condition; the one of the highest mean return is chosen."""
    cells, best = [], {}
    for label, method in ctx.track(tuple(methods.items()), "methods"):
        score = []
        for settings in GRIDS[method]:
            values = []
            for name in names:
                policy = f"{CHECKPOINT} informed of {name}" if oracle else CHECKPOINT
                result = returns(ctx, name, method, severity, policy, **settings)
                values.append(float(np.mean(result["returns"])))
                cells += rows(ctx, result["returns"], label, shift=name, **settings)
            score.append(float(np.mean(values)))
        best[label] = GRIDS[method][int(np.argmax(score))]
    return cells, best


def _not_run(methods: dict[str, str]) -> Tuning:
    kept = {label: chosen(label) for label in methods}
    return Tuning([], kept, note=f"no grid was run: {failed_gates()}; the settings are those of before")


@tunes(
    id="settings",
    statement="Step size, and the entropy's weight where a method has one: 20 settings a method, nominal and two shifts, "
    "robots the evaluation never sees",
)
def tune_settings(ctx: Context) -> Tuning:
    """Chosen by the mean return over the nominal condition and two moderate shifts."""
    methods = {m: m for m in GRIDS}
    if failed_gates():
        return _not_run(methods)
    cells = []
    for name in TUNED_ON:
        for method in ("none", "q_greedy", "zero"):
            cells += rows(ctx, returns(ctx, name, method, severity=2)["returns"], method, shift=name)
    searched, best = _searched(ctx, methods, TUNED_ON, severity=2)
    return Tuning(cells + searched, best)


@tunes(
    id="informed",
    statement="The same with critics that were fitted under the shift: what suits a poor critic need not suit a good one",
)
def tune_informed(ctx: Context) -> Tuning:
    """Chosen by the mean return under the shifts that the critics know."""
    methods = {f"{m}, informed": m for m in ("naive", "tempo")}
    if failed_gates():
        return _not_run(methods)
    cells = []
    for name in INFORMED:
        for label, policy in (("", CHECKPOINT), (", informed", f"{CHECKPOINT} informed of {name}")):
            for method in ("q_greedy",) if label else ("none", "q_greedy", "zero"):
                result = returns(ctx, name, method, SEVERITY, policy)
                cells += rows(ctx, result["returns"], method + label, shift=name)
    searched, best = _searched(ctx, methods, INFORMED, SEVERITY, oracle=True)
    return Tuning(cells + searched, best)

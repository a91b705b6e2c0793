"""C2 and C3: what the entropy term, the memory and its order are good for."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context

from .. import pictures, shifts
from ..evaluate import TABLE
from .cells import CONDITIONS, NO_TABLE, ONBOARD, VALUES, chosen, few, returns, robots, rows, series, table, withhold

RATES = (1e-5, 1e-4, 1e-3, 3e-3)  # up to where every method fails
ENTROPIES = (0.0, 0.1, 1.0)  # of the picture over step sizes and weights of the entropy
SEVERE = ("payload", "sensing")


@measures(
    Claim(
        id="stabilises-severe-shift",
        statement="Entropy and memory at least halve the worst loss of the naive update over step sizes",
        paper_value=NO_TABLE,
        scope="scaled down",
        metric="worst loss against frozen over step sizes, against half of naive's",
        unit="1",
        direction="lower",
        criterion=Criterion("difference", at_most=0.0),
    ),
    tiers=("cpu", "gpu"),
)
def stabilises_severe_shift(ctx: Context) -> Measurement:
    """C2: the worst step size of each method, at severity 3; judged on fresh seeds."""
    withhold()
    n, conditions = few(ctx), ("nominal", *SEVERE)
    frozen = {name: returns(ctx, name, "none", n=n) for name in conditions}
    weight = {"entropy_coef": chosen("tempo")["entropy_coef"]}
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "naive": ("naive", {}),
        "entropy": ("entropy", weight),
        "memory": ("memory", {}),
        "tempo": ("tempo", weight),
        "tempo, roll-back": ("tempo", weight | {"restore_on_fall": True}),
    }
    swept = {h: ("tempo", {"entropy_coef": h}) if h else ("memory", {}) for h in ENTROPIES}
    cells: list[dict[str, Any]] = []
    lost: dict[tuple[str, float, str], np.ndarray] = {}  # by method, step size and condition, one a robot
    gap: dict[str, float] = {}
    named = variants | {f"lambda_H {h:g}": v for h, v in swept.items()}
    for (label, (method, settings)), lr in ctx.track(tuple(product(named.items(), RATES)), "step sizes"):
        found = {name: returns(ctx, name, method, n=n, lr=lr, **settings) for name in conditions}
        for name, row in found.items():
            lost[label, lr, name] = np.asarray(frozen[name]["returns"]) - np.asarray(row["returns"])
            cells += rows(ctx, lost[label, lr, name], label, shift=name, lr=lr)
        gap[label] = float(np.mean([found[name]["gap"] for name in SEVERE]))  # of the largest rate, which comes last
    for method, name in product(TABLE, conditions):
        by = np.asarray(frozen[name]["returns"]) - np.asarray(
            returns(ctx, name, method, n=n, **chosen(method))["returns"]
        )
        cells += rows(ctx, by, f"{method}, as tuned", shift=name)
    loss = {(m, lr): np.mean([lost[m, lr, name] for name in SEVERE], 0) for m in named for lr in RATES}
    worst = {m: max(RATES, key=lambda lr, m=m: float(loss[m, lr].mean())) for m in variants}
    grid = {m: np.array([loss[m, lr].mean() for lr in RATES]) for m in variants}
    surface = {  # the table of the picture: gain under the shifts, and the loss under the worst condition
        h: [
            (
                -float(loss[f"lambda_H {h:g}", lr].mean()),
                max(float(lost[f"lambda_H {h:g}", lr, c].mean()) for c in conditions),
            )
            for lr in RATES
        ]
        for h in ENTROPIES
    }
    kept = float(np.mean([np.mean(frozen[name]["returns"]) for name in SEVERE]))
    losses = ", ".join(f"{m} {' '.join(f'{v:.2f}' for v in grid[m])}" for m in grid)
    over = ", ".join(f"{m} {gap[m]:+.2f}" for m in variants)
    return Measurement(
        Series({"method": "tempo", "lr": worst["tempo"], **weight}, list(np.round(loss["tempo", worst["tempo"]], 4))),
        {
            f"half of {m}": Series(
                {"method": m, "lr": worst[m], **variants[m][1]}, list(np.round(loss[m, worst[m]] / 2, 4))
            )
            for m in variants
            if m != "tempo"
        },
        "half of naive",
        robots(ctx, n),
        cells,
        ONBOARD,
        [
            pictures.stability(grid, RATES, ctx.figure("worst-loss.png")),
            pictures.settings(surface, RATES, ctx.figure("step-size-and-entropy.png")),
        ],
        reason=f"the frozen policy has {kept:.2f} to lose; losses at step sizes {', '.join(f'{r:g}' for r in RATES)}: {losses}; "
        f"Q over the realised return at the largest step: {over}",
        tuned_by=None,
    )


@measures(
    Claim(
        id="hard-first",
        statement="Replaying low-value observations first is better than replaying easy ones first",
        paper_value=NO_TABLE,
        scope="scaled down",
        metric="return per 1000 ticks, mean over the four shifts",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.0),
    ),
    tiers=("cpu", "gpu"),
)
def hard_first(ctx: Context) -> Measurement:
    """C3: hard-first against easy-first, uniform beside them, at equal updates; judged on fresh seeds."""
    withhold()
    found, cells = table(ctx, CONDITIONS)
    sets = {m: series(found, m) for m in TABLE}
    for alpha in (0.3, 1.0):
        label = f"tempo, alpha {alpha:g}"
        for name in shifts.SHIFTS:
            found[name, label] = row = returns(ctx, name, "tempo", alpha=alpha, **chosen("tempo"))
            cells += rows(ctx, row["returns"], label, shift=name)
        sets[label] = series(found, label, alpha=alpha, **chosen("tempo"))
    order = ", ".join(f"{m} {np.mean(row.values):.2f}" for m, row in sets.items())
    shares = {
        m: np.mean([found[n, m]["replayed"] for n in shifts.SHIFTS], 0) for m in ("tempo", "uniform", "easy-first")
    }
    return Measurement(
        sets.pop("tempo"),
        sets,
        "easy-first",
        robots(ctx),
        cells,
        ONBOARD,
        [pictures.replayed(shares, VALUES, ctx.figure("replayed-values.png"))],
        reason=f"mean over the shifts: {order}",
        tuned_by="settings",
    )

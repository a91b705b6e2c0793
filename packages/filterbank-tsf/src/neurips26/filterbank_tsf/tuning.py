"""The tuning grids: the rule of choice, the peers' rates and look-backs, the deep stack's rate; no test row is read."""

from __future__ import annotations

import numpy as np

from neurips26.shared.claims import Tuning, tunes
from neurips26.shared.context import Context

from . import experiments as ex
from .selection import decide


@tunes(id="rule", statement="how look-back, rank and any average are chosen, from training and validation rows alone")
def tune_rule(ctx: Context) -> Tuning:
    """Every ordered pair of four blocks plays validation and test; fewest members within one standard error of the best.

    One rule for all data sets and horizons, so that the decision rests on all of them.
    """
    rehearsals: dict[tuple[str, int], list[dict]] = {}
    for name in ex.main_sets(ctx):
        for horizon in ctx.track(ex.horizons(name), f"rehearsal {name}"):
            key = {"data": name, "horizon": horizon}
            rehearsals[name, horizon] = ctx.cell(key, lambda k=key: ex.rehearsal_cell(k["data"], k["horizon"]))
    rule, means = decide(rehearsals)
    cells = [
        {"factors": {"data": name, "horizon": horizon, "test block": block}, "seed": 0, "method": method,
         "value": float(np.mean([p["loss"][method] for p in pairs if p["test"] == block]))}
        for (name, horizon), pairs in rehearsals.items() for block in sorted({p["test"] for p in pairs}) for method in means
    ]  # fmt: skip
    logs = ", ".join(f"{method} {100 * value:+.2f}" for method, value in means.items())
    return Tuning(cells, {"ours": {"rule": rule.name}},
                  "fewest members within one standard error of the smallest error over data sets and blocks; percent against "
                  f"the first rule: {logs}")  # fmt: skip


@tunes(id="peers", statement="learning rate and look-back of every trained peer, chosen on validation rows at H = 96")
def tune_peers(ctx: Context) -> Tuning:
    """The same grid and budget for every peer: two look-backs, two learning rates (one the paper's), per data set."""
    cells, chosen = [], {}
    names, seed = ex.main_sets(ctx), ctx.seeds(1)[0]
    for peer in ctx.track(ex.TRAINED, "peers"):
        recipe = ex.RECIPES[peer]
        for name in names:
            rows = []
            for lookback in recipe.lookbacks:
                for lr in recipe.rates:
                    key = {"data": name, "peer": peer, "lookback": lookback, "lr": lr}
                    value = ctx.cell(
                        key,
                        lambda k=key: ex.peer_cell(
                            k["data"], 96, k["peer"], k["lookback"], k["lr"], seed, ex.TUNING_EPOCHS, test=False
                        ),
                    )["val"]
                    rows.append((value, lookback, lr))
                    cells.append({"factors": key, "seed": seed, "method": peer, "value": value})
            value, lookback, lr = min(rows)
            chosen[f"{peer}/{name}"] = {"lookback": lookback, "lr": lr, "val": value}
    return Tuning(cells, chosen, f"validation MSE after {ex.TUNING_EPOCHS} passes over every training window")


@tunes(id="deep", statement="learning rate of the deep stack, chosen on validation rows at H = 96")
def tune_deep(ctx: Context) -> Tuning:
    """Two learning rates per data set."""
    cells, chosen = [], {}
    seed = ctx.seeds(1)[0]
    for name in ex.main_sets(ctx):
        rows = []
        for lr in (1e-4, 1e-3):
            key = {"data": name, "lr": lr}
            value = ctx.cell(key, lambda k=key: ex.deep_cell(k["data"], 96, 336, k["lr"], seed, 2, test=False))["val"]
            rows.append((value, lr))
            cells.append({"factors": key, "seed": seed, "method": "ours", "value": value})
        chosen[f"ours/{name}"] = {"lr": min(rows)[1], "val": min(rows)[0]}
    return Tuning(cells, chosen)

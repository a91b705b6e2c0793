"""Multiply-adds and time against error (C3)."""

from __future__ import annotations

import numpy as np

from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context

from .. import experiments as ex
from .. import pictures
from .units import NONE, uses


def _cheapest(points: list[dict]) -> dict:
    """The cheapest bank within 1 % of full-rank ridge."""
    full = next(p for p in points if p["kind"].startswith("linear"))
    near = [p for p in points if p is not full and p["test"] <= 1.01 * full["test"]] or [full]
    return min(near, key=lambda p: p["macs"])


def _front(ctx: Context, name: str, horizon: int) -> tuple[int, int, list[dict]]:
    """Look-back, horizon and the points of cost and error of one data set (weekly CO2 has horizons of its own)."""
    lookback = 512
    if name == "co2":
        lookback, horizon = 208, 52 if horizon == 96 else 104
    key = {"data": name, "horizon": horizon, "lookback": lookback}
    return lookback, horizon, ctx.cell(key, lambda: ex.pareto_cell(name, horizon, lookback))


def _cheapest_on_validation(points: list[dict]) -> dict:
    """The cheapest bank within 1 % of full-rank ridge on the validation rows."""
    full = points[0]
    return min((p for p in points[1:] if p["val"] <= 1.01 * full["val"]), key=lambda p: p["macs"], default=full)


def _cost(ctx: Context, horizon: int) -> Measurement:
    names = ex.main_sets(ctx)
    fronts, ratios, cells = {}, [], []
    for name in names:
        lookback, steps, points = _front(ctx, name, horizon)
        fronts[f"{name} H={steps}"] = points
        best, full, by_val = _cheapest(points), points[0], _cheapest_on_validation(points)
        ratios.append(lookback * steps / best["macs"])
        ctx.note(
            f"{name}: cheapest within 1 % is {best['kind']} {best['setting']} with {best['macs']} multiply-adds, "
            f"{best['test']:.4f} against {full['test']:.4f}; the cheapest within 1 % on validation is {by_val['kind']} "
            f"{by_val['setting']}: {by_val['macs']} multiply-adds, test {by_val['test']:.4f}"
        )
        cells += [{"factors": {"data": name, "kind": p["kind"], "setting": p["setting"], "macs": p["macs"]}, "seed": 0,
                   "method": p["kind"], "value": p["test"]} for p in points]  # fmt: skip
    picture = ctx.figure(f"pareto-{horizon}-{ctx.tier}.png")
    pictures.pareto(picture, fronts, {})
    return Measurement(
        Series({"within": "1 % of full-rank ridge, same look-back"}, ratios), seeds=[0], cells=cells, data=uses(names),
        figures=[picture],
    )  # fmt: skip


@measures(Claim(
    id="cost-96",
    statement="There is a bank within 1 % of the full-rank test error with at least six times fewer multiply-adds at H = 96 "
              "(read off the test errors)",
    paper_value=NONE, scope="paper setting", metric="L·H / multiply-adds of the cheapest such bank", unit="times",
    direction="higher", criterion=Criterion("bound", at_least=6, deterministic=True),
))  # fmt: skip
def cost_short(ctx: Context) -> Measurement:
    """Existence on the front of cost against test error; the claim ``cost-on-validation`` is about picking one."""
    return _cost(ctx, 96)


@measures(Claim(
    id="cost-720",
    statement="There is a bank within 1 % of the full-rank test error with at least twenty times fewer multiply-adds at "
              "H = 720 (read off the test errors)",
    paper_value=NONE, scope="paper setting", metric="L·H / multiply-adds of the cheapest such bank", unit="times",
    direction="higher", criterion=Criterion("bound", at_least=20, deterministic=True),
), tiers=("cpu",))  # fmt: skip
def cost_long(ctx: Context) -> Measurement:
    """As at H = 96."""
    return _cost(ctx, 720)


@measures(Claim(
    id="cost-on-validation",
    statement="The cheapest bank within 1 % of full-rank ridge on the validation rows is within 1 % of it on the test rows too",
    paper_value=NONE, scope="paper setting", metric="its test MSE / that of full-rank ridge, mean of H = 96 and 720",
    unit="1", direction="lower", criterion=Criterion("bound", at_most=1.01, deterministic=True),
), tiers=("cpu",))  # fmt: skip
def cost_on_validation(ctx: Context) -> Measurement:
    """What a user gets who has no test errors to read the bank off."""
    names, cells = ex.main_sets(ctx), []
    for name in names:
        for horizon in (96, 720):
            lookback, steps, points = _front(ctx, name, horizon)
            full, pick = points[0], _cheapest_on_validation(points)
            ratio, saved = pick["test"] / full["test"], lookback * steps / pick["macs"]
            cells.append({"factors": {"data": name, "horizon": steps, "pick": f"{pick['kind']} {pick['setting']}",
                                      "times fewer": saved}, "seed": 0, "method": "ours", "value": ratio})  # fmt: skip
            ctx.note(f"{name} H={steps}: {pick['kind']} {pick['setting']}, {saved:.1f} times fewer multiply-adds, "
                     f"{100 * (ratio - 1):+.1f} %")  # fmt: skip
    return Measurement(Series({"within": "1 % on validation"}, [float(np.mean([c["value"] for c in cells]))]), seeds=[0],
                       cells=cells, data=uses(names),
                       reason="validation does not order the banks as the test part does, ETTh1's least")  # fmt: skip


@measures(Claim(
    id="forward-time",
    statement="Banks with ten times fewer multiply-adds run in at most 0.35 of the time of nn.Linear(720, 720)",
    paper_value=NONE, scope="proxy", metric="CPU time of the slower bank / nn.Linear, batch 8192, one thread", unit="1",
    direction="lower", criterion=Criterion("bound", at_most=0.35), rerun_tolerance=None,
))  # fmt: skip
def forward_time(ctx: Context) -> Measurement:
    """The slower of the global bank of rank 12 and of K8 P24 r12, pair by pair; an overlapping bank is in the cells."""
    repeats = 5 if ctx.tier == "quick" else 7
    pairs = ctx.cell("forward", lambda: ex.forward_pairs(repeats, overlapping=ctx.tier != "quick"))
    slower = [max(a, b) for a, b in zip(pairs["global r12"], pairs["K8 P24 r12"])]
    ctx.note("medians: " + ", ".join(f"{k} {np.median(v):.3f}" for k, v in pairs.items()))
    cells = [
        {"factors": {"bank": k}, "seed": i, "method": k, "value": v}
        for k, vs in pairs.items()
        for i, v in enumerate(vs)
    ]
    return Measurement(Series({"batch": 8192}, slower), seeds=list(range(repeats)), cells=cells,
                       data=[DataUse("random", "generated")])  # fmt: skip

"""Why C1 comes out as it does: is the critic right under a shift, and does following it help where it is?"""

from __future__ import annotations

from typing import Any

import numpy as np

from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context

from .. import pictures, shifts
from ..diagnose import diagnose
from ..evaluate import TABLE
from .cells import (
    CHECKPOINT,
    CONDITIONS,
    INFORMED,
    ONBOARD,
    SEVERITY,
    chosen,
    gain,
    informed,
    returns,
    robots,
    rows,
    series,
    shipped,
    table,
    withhold,
)


@measures(
    Claim(
        id="gain-with-informed-critic",
        statement="With critics fitted under the shift, which no robot has, the same updates raise the return",
        paper_value="not a claim of the paper: the upper bound of its surrogate",
        scope="proxy",
        metric="return per 1000 ticks, mean over slippery ground and payload",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=1.05),
    ),
    tiers=("cpu", "gpu"),
)
def gain_with_informed_critic(ctx: Context) -> Measurement:
    """Is it the frozen critic that fails, or following a critic? The oracle, at settings of its own, says which; judged
    on fresh seeds."""
    withhold()
    found, cells = table(ctx, ("nominal", *INFORMED))
    for name in ctx.track(INFORMED, "informed critics"):
        for method in ("naive", "tempo", "q_greedy"):
            label = f"{method}, informed"
            policy = f"{CHECKPOINT} informed of {name}"
            found[name, label] = row = returns(ctx, name, method, policy=policy, **chosen(label))
            cells += rows(ctx, row["returns"], label, shift=name)
    others = ("naive, informed", "q_greedy, informed")
    return Measurement(
        series(found, "tempo, informed", INFORMED),
        {m: series(found, m, INFORMED) for m in (*TABLE, *others)},
        "none",
        robots(ctx),
        cells,
        ONBOARD,
        reason="; ".join(
            f"{n}: " + ", ".join(f"{m} {gain(found, n, m):+.1f} %" for m in ("tempo", "tempo, informed", *others))
            for n in INFORMED
        ),
        tuned_by="informed",
    )


@measures(
    Claim(
        id="critic-ranks-actors",
        statement="Under a shift the frozen critic ranks changed actors as their returns do",
        paper_value="the premise of the method; no figure",
        scope="proxy",
        metric="rank correlation of the critic's value with the return over 12 actors, mean over the four shifts",
        unit="1",
        direction="higher",
        criterion=Criterion("bound", at_least=0.5),
    ),
    tiers=("cpu", "gpu"),
)
def critic_ranks_actors(ctx: Context) -> Measurement:
    """The nominal condition, where the critic passes its gates, and critics that know the shift are the positive
    controls; judged on fresh seeds."""
    withhold()
    seeds, ticks = robots(ctx, 12), 250
    _, cells = table(ctx, CONDITIONS)
    found = {}
    for name in ctx.track(CONDITIONS, "conditions"):
        key = {"condition": name, "severity": SEVERITY, "first": seeds[0], "robots": len(seeds), "ticks": ticks}

        def fn(name: str = name) -> dict[str, Any]:
            control = informed(name) if name in INFORMED else None
            return _rounded(diagnose(shipped(), name, seeds, SEVERITY, ticks=ticks, control=control))

        found[name] = row = ctx.cell(key, fn)
        means = {"critic": np.mean(row["value"], 0), "return": np.mean(row["returns"], 0)}
        cells += [
            {"factors": {"shift": name, "actor": actor}, "seed": seeds[0], "method": kind, "value": round(float(v), 4)}
            for kind, values in means.items()
            for actor, v in zip(row["actors"], values, strict=True)
        ]
    ranks = np.round(np.mean([found[n]["rank"] for n in shifts.SHIFTS], 0), 4)
    controls = np.round(np.mean([found[n]["control_rank"] for n in INFORMED], 0), 4)
    return Measurement(
        Series({"condition": "shifts", "severity": SEVERITY}, list(ranks)),
        {
            "nominal": Series({"condition": "nominal"}, list(found["nominal"]["rank"])),
            "informed critics": Series({"condition": ", ".join(INFORMED)}, list(controls)),
        },
        None,
        [seeds[k] for k in range(0, len(seeds), len(seeds) // len(ranks))],
        cells,
        ONBOARD,
        [pictures.ranking(found, ctx.figure("critic-against-return.png"))],
        reason=_told(found),
    )


def _told(found: dict[str, dict[str, Any]]) -> str:
    """What each condition's diagnosis says."""
    conditions = "; ".join(
        f"{n}: rank {np.mean(r['rank']):+.2f}, Q against the realised return {r['pearson']:.2f} with bias "
        f"{100 * r['bias']:+.0f} %, Q can rise {100 * r['rise']:.1f} %, the actor that the critic prefers earns "
        f"{r['climb']:+.0f} %, the one chosen by return {r['best']:+.0f} %"
        for n, r in found.items()
    )
    controls = ", ".join(
        f"{n} rank {np.mean(found[n]['control_rank']):+.2f}, Q against the realised return {found[n]['control_pearson']:.2f} "
        f"with bias {100 * found[n]['control_bias']:+.0f} %"
        for n in INFORMED
    )
    steps = ", ".join(
        f"{n} {_changed(r, 'up 1e-4'):+.0f} % against {_changed(r, 'random as up 1e-4'):+.0f} %"
        for n, r in found.items()
    )
    return (
        f"{conditions}; critics that know the shift: {controls}; the actor after 50 steps of 1e-4 up the critic against one "
        f"as far away in a random direction: {steps}"
    )


def _changed(row: dict[str, Any], actor: str) -> float:
    """Gain of a changed actor over the frozen one, which comes first, in %."""
    earned = np.mean(row["returns"], 0)
    return float(100 * (earned[row["actors"].index(actor)] / earned[0] - 1))


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v if k == "actors" else np.round(v, 4) for k, v in row.items()}

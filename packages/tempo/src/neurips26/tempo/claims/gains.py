"""C1, C4 and C5: does adaptation raise the return, is that adaptation, where, and with which networks?"""

from __future__ import annotations

import numpy as np

from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context

from .. import pictures, shifts
from ..evaluate import TABLE
from .cells import (
    BIN,
    CHECKPOINT,
    CONDITIONS,
    NO_TABLE,
    ONBOARD,
    SEVERITY,
    SIZES,
    chosen,
    few,
    gain_measurement,
    over_shifts,
    robots,
    said,
    shipped,
    table,
    withhold,
)


@measures(
    Claim(
        id="gain-under-shift",
        statement="Adapting the actor by a frozen critic, without rewards, raises the return under shifts",
        paper_value=NO_TABLE,
        scope="scaled down",
        metric="return per 1000 ticks, mean over the four shifts",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=1.05),
    ),
    tiers=("quick", "cpu", "gpu"),
)
def gain_under_shift(ctx: Context) -> Measurement:
    """C1: TEMPO against the frozen policy at severity 3; judged on fresh seeds."""
    withhold()
    found, cells = table(ctx, CONDITIONS)
    if ctx.tier == "quick":
        return gain_measurement(ctx, found, cells, [pictures.gains({SEVERITY: found}, TABLE, ctx.figure("gains.png"))])
    condition, film = shifts.of_severity("go1", "payload", SEVERITY), ctx.figure("frozen-and-adapted.png")
    figures = [
        pictures.curves(found, ctx.figure("return-over-time.png"), BIN, SIZES[ctx.tier]["ticks"]),
        pictures.overestimation(found, ctx.figure("over-estimation.png")),
        pictures.animation(shipped(), condition, film, seed=robots(ctx, 1)[0], **chosen("tempo")),
    ]
    return gain_measurement(ctx, found, cells, figures)


@measures(
    Claim(
        id="gain-under-moderate-shift",
        statement="The return rises under the same shifts at moderate size, too",
        paper_value=NO_TABLE,
        scope="scaled down",
        metric="return per 1000 ticks, mean over the four shifts at severity 2",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=1.05),
    ),
    tiers=("cpu", "gpu"),
)
def gain_under_moderate_shift(ctx: Context) -> Measurement:
    """C1 at severity 2, where a robot is on its legs for longer; judged on fresh seeds."""
    withhold()
    found, cells = table(ctx, CONDITIONS, severity=2, n=few(ctx))
    return gain_measurement(ctx, found, cells)


@measures(
    Claim(
        id="gain-under-mild-shift",
        statement="The return rises under mild shifts, under which the frozen policy keeps walking",
        paper_value=NO_TABLE,
        scope="scaled down",
        metric="return per 1000 ticks, mean over the four shifts at severity 1",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=1.05),
    ),
    tiers=("cpu", "gpu"),
)
def gain_under_mild_shift(ctx: Context) -> Measurement:
    """C1 at severity 1, where a robot lives through every episode; judged on fresh seeds. Its picture has all severities."""
    withhold()
    found, cells = table(ctx, CONDITIONS, severity=1, n=few(ctx))
    others = {s: table(ctx, CONDITIONS, severity=s, n=n)[0] for s, n in ((2, few(ctx)), (SEVERITY, None))}
    return gain_measurement(ctx, found, cells, [pictures.gains({1: found, **others}, TABLE, ctx.figure("gains.png"))])


@measures(
    Claim(
        id="gain-is-adaptation",
        statement="The gain under shift is larger than the gain of the same updates without a shift",
        paper_value=NO_TABLE,
        scope="scaled down",
        metric="relative gain over frozen, shifts against nominal",
        unit="%",
        direction="higher",
        criterion=Criterion("difference", at_least=0.0),
    ),
    tiers=("cpu", "gpu"),
)
def gain_is_adaptation(ctx: Context) -> Measurement:
    """C1, difference in difference; judged on fresh seeds."""
    withhold()
    found, cells = table(ctx, CONDITIONS)

    def relative(method: str, names: tuple[str, ...]) -> list[float]:
        mine, frozen = (over_shifts(found, m, names) for m in (method, "none"))
        return list(np.round(100 * (mine - frozen) / np.mean(frozen), 3))

    conditions = {"shifts": tuple(shifts.SHIFTS), "nominal": ("nominal",)}
    gains = {
        (m, c): Series({"method": m, "condition": c, **chosen(m)}, relative(m, names))
        for m in TABLE
        if m != "none"
        for c, names in conditions.items()
    }
    ours, without = gains.pop(("tempo", "shifts")), gains.pop(("tempo", "nominal"))
    return Measurement(
        ours,
        {"nominal": without, **{f"{m}, {c}": s for (m, c), s in gains.items()}},
        "nominal",
        robots(ctx),
        cells,
        ONBOARD,
        reason=f"updates change the return by {np.mean(without.values):+.1f} % without a shift and "
        f"{np.mean(ours.values):+.1f} % with one",
        tuned_by="settings",
    )


@measures(
    Claim(
        id="near-failure-gain",
        statement="Where the frozen policy nearly fails, adaptation on one device gains a great deal",
        paper_value="up to 80 % (setting not stated in the abstract)",
        scope="scaled down",
        metric="relative gain over the frozen mean, rough 0.12 m with noise x3",
        unit="%",
        direction="higher",
        criterion=Criterion("bound", at_least=30.0),
    ),
    tiers=("cpu", "gpu"),
)
def near_failure_gain(ctx: Context) -> Measurement:
    """C5: one shift, chosen before the run; judged on fresh seeds."""
    withhold()
    found, cells = table(ctx, ("nominal", "rough+sensing"))
    frozen = over_shifts(found, "none", ("rough+sensing",))
    rows = {}
    for method in TABLE:
        gains = 100 * (over_shifts(found, method, ("rough+sensing",)) - frozen) / frozen.mean()
        setting = {"method": method, "frozen mean": round(float(frozen.mean()), 4), **chosen(method)}
        rows[method] = Series(setting, list(np.round(gains, 3)))
    return Measurement(
        rows.pop("tempo"), rows, None, robots(ctx), cells, ONBOARD, reason=said(found), tuned_by="settings"
    )


@measures(
    Claim(
        id="several-architectures",
        statement="The gain has the same sign for MLP, Simba and SimbaV2 networks",
        paper_value=NO_TABLE,
        scope="scaled down",
        metric="return per 1000 ticks, mean over the four shifts, worst architecture",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.0),
    ),
    tiers=("cpu", "gpu"),
)
def several_architectures(ctx: Context) -> Measurement:
    """C4: the architecture with the smallest gain stands for all. The MLP's robots are the first of its own tables."""
    names = {"mlp": CHECKPOINT, "simba": f"{CHECKPOINT}-simba", "simbav2": f"{CHECKPOINT}-simbav2"}
    withhold(*names.values())
    n = few(ctx)
    means, cells = {}, []
    for arch, name in names.items():
        found, rows = table(ctx, CONDITIONS, policy=name, n=None if arch == "mlp" else n)
        cells += [row | {"factors": {"arch": arch, **row["factors"]}} for row in rows]
        means[arch] = {method: over_shifts(found, method)[:n] for method in TABLE}
    change = {arch: v["tempo"] - v["none"] for arch, v in means.items()}
    worst = min(change, key=lambda a: float(change[a].mean()))
    return Measurement(
        Series({"arch": worst, "method": "tempo", **chosen("tempo")}, list(np.round(means[worst]["tempo"], 4))),
        {
            m: Series({"arch": worst, "method": m, **chosen(m)}, list(np.round(v, 4)))
            for m, v in means[worst].items()
            if m != "tempo"
        },
        "none",
        robots(ctx, n),
        cells,
        ONBOARD,
        reason="change of the return by TEMPO: " + ", ".join(f"{a} {v.mean():+.2f}" for a, v in change.items()),
        tuned_by="settings",
    )

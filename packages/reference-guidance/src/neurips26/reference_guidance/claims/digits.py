"""Control of digits, composition and the two clocks, on a small flow over scikit-learn's digits."""

from __future__ import annotations

from functools import cache
from typing import Any

from neurips26.reference_guidance import digit_experiments, pictures
from neurips26.reference_guidance.claims.common import (
    COMPOSITION_RANK,
    DIGITS,
    NO_TABLE,
    TUNED,
    control_row,
    fresh_seeds,
    not_copied,
    note_judge,
    once,
    seed_rows,
    settings_tuning,
    share_cells,
)
from neurips26.reference_guidance.control import SHORT_CURVE
from neurips26.reference_guidance.flows import VectorFlow
from neurips26.shared.claims import Claim, Criterion, Measurement, Series, Tuning, measures, tunes
from neurips26.shared.context import Context

AVERAGE_DOES_IT = (
    "likely, and not measured apart: at small t, where the quadratic schedule is strong, the released distance weighs all "
    "references of a set alike: the "
    "posterior mean is the plain average there; the two part on sets of more than one kind (claim composition-error)"
)


# Digits --------------------------------------------------------------------------------------------------------------
def _flow(ctx: Context, seed: int) -> VectorFlow:
    """The base flow: quick runs share one short training of a narrow network, records train one a seed."""
    if ctx.tier == "quick":
        return digit_experiments.digit_flow(
            ctx.seeds(1)[0], digit_experiments.QUICK_STEPS, digit_experiments.QUICK_WIDTH
        )
    return digit_experiments.digit_flow(seed)


def _digits(ctx: Context) -> dict[int, Any]:
    size = (8, 4, False) if ctx.tier == "quick" else (12, 5, True)
    note_judge(ctx, digit_experiments.digit_judge().accuracy)
    return seed_rows(ctx, fresh_seeds(ctx, 10), lambda s: _rows(_flow(ctx, s), s, *size))


@cache
def _rows(flow: VectorFlow, seed: int, per_class: int, classes: int, whole: bool) -> dict[str, Any]:
    curve = None if whole else SHORT_CURVE
    return digit_experiments.digit_control(flow, seed, per_class, classes, curve)


@measures(
    Claim(
        "digits-control", "Twenty examples of a digit make a frozen, unconditional flow draw that digit", NO_TABLE,
        "scaled down", "share of samples of the wanted digit minus unguided", "1", "higher",
        Criterion("difference", at_least=0.6),
    )
)  # fmt: skip
def digits_control(ctx: Context) -> Measurement:
    """Quadratic schedule, strength 2, top 4 of 20, released distance."""
    rows = _digits(ctx)
    paths = [ctx.figure("digits-contact-sheet.png"), ctx.figure("digits-steps.png"), ctx.figure("digits-strength.png")]
    first = next(iter(rows))
    pictures.digit_sheets(paths[0], paths[1], _flow(ctx, first), first)
    pictures.strength_curve(paths[2], rows, "share of the wanted digit")
    m = control_row(rows, "quadratic 2", DIGITS, "digits")
    m.figures = paths
    return m


@measures(
    Claim(
        "digits-not-copied", "Controlled digits lie about as far from the references as real digits of the class do",
        NO_TABLE, "scaled down", "distance to nearest reference relative to held-out real digits", "1", "higher",
        Criterion("ratio", at_least=0.85),
    )
)  # fmt: skip
def digits_not_copied(ctx: Context) -> Measurement:
    """Copy check of the same samples."""
    return not_copied(_digits(ctx), DIGITS, "digits")


@measures(
    Claim(
        "digits-over-average", "The posterior mean controls the digit at least as well as the plain average of the set",
        "none: our check", "scaled down", "share of samples of the wanted digit minus latent averaging", "1", "higher",
        Criterion("difference", at_least=0.0),
    )
)  # fmt: skip
def digits_over_average(ctx: Context) -> Measurement:
    """Against latent averaging at the strength tuned for it."""
    m = control_row(_digits(ctx), "quadratic 2", DIGITS, "digits", AVERAGE_DOES_IT)
    m.compared_to = "latent average"
    return m


@tunes("digits-settings", TUNED + "digits, whose strength of guidance all other data take over")
def tune_digits(ctx: Context) -> Tuning:
    """One tuning seed, ten digits."""
    return settings_tuning(
        ctx,
        lambda s, curve, how: digit_experiments.digit_control(digit_experiments.digit_flow(s), s, 8, 10, curve, how),
        ours=True,
    )


@measures(
    Claim(
        "composition", "Samples follow the share of ones among zeros and ones in the set, monotonically",
        "figure without numbers (zebra and giraffe, shares 0, .25, .5, .75, 1)", "scaled down",
        "rank correlation of share in set and in samples", "1", "higher",
        Criterion("monotone", at_least=0.9, effect=COMPOSITION_RANK),
    )
)  # fmt: skip
def composition(ctx: Context) -> Measurement:
    """Exact posterior, top 4; the released distance with all references and the plain average are kept beside it."""
    rows = _composition(ctx)
    cells = share_cells({s: r["sum"] for s, r in rows.items()})
    for name in ("mean", "latent average"):
        cells += share_cells({s: r[name] for s, r in rows.items()}, name if name != "mean" else "metric mean")
    path = ctx.figure("composition.png")
    first = next(iter(rows))
    pictures.composition_strip(path, _flow(ctx, first), first)
    return Measurement(cells=cells, seeds=list(rows), data=[DIGITS], figures=[path])


def _composition(ctx: Context) -> dict[int, Any]:
    n = 30 if ctx.tier == "quick" else 100
    return seed_rows(
        ctx, fresh_seeds(ctx, 10), lambda s: once(digit_experiments.digit_composition, _flow(ctx, s), s, n)
    )


@measures(
    Claim(
        "composition-error", "The posterior mean keeps the shares of a mixed set; the plain average of the set does not",
        "none: our check", "scaled down", "mean error of the share among samples, ours minus latent averaging", "1",
        "lower", Criterion("difference", at_most=0.0),
    )
)  # fmt: skip
def composition_error(ctx: Context) -> Measurement:
    """Mean absolute difference of the share of ones among samples and in the set, over five shares."""
    rows = _composition(ctx)

    def error(name: str) -> list[float]:
        return [sum(abs(float(k) - v) for k, v in r[name].items()) / len(r[name]) for r in rows.values()]

    base = {k: Series({"method": k}, error(k)) for k in ("latent average", "mean")}
    cells = [
        {"factors": {"share": float(k)}, "seed": s, "method": name, "value": v}
        for s, r in rows.items() for name, row in r.items() for k, v in row.items()
    ]  # fmt: skip
    return Measurement(
        ours=Series({"metric": "sum", "topk": 4}, error("sum")), baselines=base, compared_to="latent average",
        seeds=list(rows), cells=cells, data=[DIGITS],
    )  # fmt: skip


@measures(
    Claim(
        "true-time", "With the true time the released strength controls at least as well as with the released clock",
        "none: the released code uses step / (N - 1) under a shifted schedule", "scaled down",
        "share of the wanted digit, true time minus released", "1", "higher", Criterion("difference", at_least=0.0),
    )
)  # fmt: skip
def true_time(ctx: Context) -> Measurement:
    """Strength 0.5 quadratic, window .15-.95, schedule shifted by 3."""
    size = (8, 3.0, 3) if ctx.tier == "quick" else (20, 3.0, 5)
    seeds = fresh_seeds(ctx, 10)
    rows = seed_rows(ctx, seeds, lambda s: once(digit_experiments.released_and_true_time, _flow(ctx, s), s, *size))
    m = control_row(rows, "true time", DIGITS)
    m.compared_to = "released"
    return m

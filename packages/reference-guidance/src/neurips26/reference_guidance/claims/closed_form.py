"""Exactness, two moons and sparse labels: points in a plane and flows in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neurips26.reference_guidance import closed_form, pictures
from neurips26.reference_guidance.claims.common import (
    COMPOSITION_RANK,
    DIGITS,
    MOONS,
    control_row,
    fresh_seeds,
    once,
    seed_rows,
    share_cells,
)
from neurips26.shared.claims import Claim, Criterion, Measurement, Series, measures
from neurips26.shared.context import Context

LATE_LABELS = (
    "an explanation that no row measures: "
    "the kernel of the soft labels is flat at small t, where trajectories choose their class; the true labels choose it "
    "from the start. The authors' standardised pixels, grid of times and judge are used; their accuracy is a figure only"
)


# Identities ----------------------------------------------------------------------------------------------------------
@measures(
    Claim(
        "mean-is-velocity", "Guiding the flow of set A towards set B with beta 1 gives exactly the flow of B",
        "an identity of the paper (shift the mean, shift the flow)", "identity", "largest deviation of a trajectory", "1",
        "lower", Criterion("bound", at_most=1e-5, deterministic=True), rerun_tolerance=None,
    )
)  # fmt: skip
def mean_is_velocity(ctx: Context) -> Measurement:
    """Trajectories on digits through the guided scheduler, and guidance of A towards A itself."""
    rows = seed_rows(ctx, ctx.seeds(5), closed_form.exactness)
    values = [max(r["drift"], r["idle"]) for r in rows.values()]
    cells = [{"factors": {}, "seed": s, "method": k, "value": v} for s, r in rows.items() for k, v in r.items()]
    return Measurement(ours=Series({"beta": 1, "references": 60}, values), seeds=list(rows), cells=cells, data=[DIGITS])


# Two moons -----------------------------------------------------------------------------------------------------------
@measures(
    Claim(
        "moons-composition", "On two moons the samples of the closed-form flow of a reference set follow its composition",
        "figure without numbers: database composition", "paper setting", "rank correlation of share in set and in samples",
        "1", "higher", Criterion("monotone", at_least=0.9, effect=COMPOSITION_RANK),
    )
)  # fmt: skip
def moons_composition(ctx: Context) -> Measurement:
    """Five shares of moon 1 among 40 references."""
    rows = seed_rows(ctx, ctx.seeds(10), lambda s: once(closed_form.moons_composition, s))
    path = ctx.figure("moons-fields.png")
    pictures.moon_fields(path, ctx.seeds(1)[0])
    return Measurement(cells=share_cells(rows), seeds=list(rows), data=[MOONS], figures=[path])


@measures(
    Claim(
        "moons-control", "A set of one moon steers a learned, frozen flow of both to that moon", "figure without numbers",
        "paper setting", "share of samples on the set's moon", "1", "higher", Criterion("bound", at_least=0.95),
    ),
    tiers=("cpu",),
)  # fmt: skip
def moons_control(ctx: Context) -> Measurement:
    """Twenty points of a moon, bell schedule of strength 1; the other schedules and the plain average beside it.

    The flow of the set alone ends on points of the set, whatever they are: that identity is a unit test.
    """
    from neurips26.reference_guidance.moons_control import moons_control as measure

    ctx.note("the schedule was chosen on a tuning seed, on which quadratic ones fade too early for points in a plane")
    rows = seed_rows(ctx, fresh_seeds(ctx, 10), measure)
    return control_row(rows, "bell 1", MOONS)


# Sparse labels -------------------------------------------------------------------------------------------------------
def _sparse(ctx: Context, source: Callable[..., Any], m: str, against: str, reason: str = "") -> Measurement:
    numbers = (5,) if ctx.tier == "quick" else (1, 2, 5, 10, 20, 50)
    rows = seed_rows(ctx, fresh_seeds(ctx, 10), lambda s: once(source, s, numbers))
    cells = [
        {"factors": {"M": int(k)}, "seed": s, "method": rule, "value": v}
        for s, row in rows.items() for k, found in row.items() for rule, v in found.items()
    ]  # fmt: skip
    rules = next(iter(rows.values()))[m]
    by = {rule: Series({"rule": rule, "M": m}, [r[m][rule] for r in rows.values()]) for rule in rules}
    return Measurement(
        ours=by.pop("soft"), baselines=by, compared_to=against, seeds=list(rows), cells=cells,
        data=[MOONS if source is closed_form.moons_labels else DIGITS], reason=reason,
    )  # fmt: skip


@measures(
    Claim(
        "sparse-labels-five", "Five labels a class steer the flow of an unlabelled database (digits 0 and 1)",
        "figure without numbers (MNIST 0 and 1)", "scaled down", "accuracy gained over no labels", "1", "higher",
        Criterion("difference", at_least=0.3),
    )
)  # fmt: skip
def sparse_labels_five(ctx: Context) -> Measurement:
    """Soft labels against none at M = 5."""
    return _sparse(ctx, closed_form.sparse_labels, "5", "none", LATE_LABELS)


@measures(
    Claim(
        "sparse-labels-fifty", "With fifty labels a class the soft labels do as well as the true ones (digits 0 and 1)",
        "figure without numbers (MNIST 0 and 1)", "scaled down", "accuracy minus that of the hard filter", "1", "higher",
        Criterion("difference", at_least=-0.05),
    ),
    tiers=("cpu",),
)  # fmt: skip
def sparse_labels_fifty(ctx: Context) -> Measurement:
    """Soft labels against the true labels at M = 50."""
    return _sparse(ctx, closed_form.sparse_labels, "50", "hard", LATE_LABELS)


@measures(
    Claim(
        "sparse-labels-moons-five", "Five labels a moon steer what is drawn from a database of two moons",
        "figure without numbers", "paper setting", "accuracy gained over no labels", "1", "higher",
        Criterion("difference", at_least=0.3),
    )
)  # fmt: skip
def sparse_labels_moons_five(ctx: Context) -> Measurement:
    """The authors' weighted draw at M = 5; along a flow (their rule for MNIST) beside it."""
    return _sparse(ctx, closed_form.moons_labels, "5", "none")


@measures(
    Claim(
        "sparse-labels-moons", "With fifty labels a class the soft labels do as well as the true ones on two moons",
        "figure without numbers", "paper setting", "accuracy minus that of the hard filter", "1", "higher",
        Criterion("difference", at_least=-0.05),
    ),
    tiers=("cpu",),
)  # fmt: skip
def sparse_labels_moons(ctx: Context) -> Measurement:
    """The authors' weighted draw at M = 50; along a flow (their rule for MNIST) beside it."""
    return _sparse(ctx, closed_form.moons_labels, "50", "hard")

"""What the claims of this paper share: data, seeds, rows of finished cells, and measurements made of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from neurips26.reference_guidance.baselines import RIVAL_GRID, RIVALS, Rivals
from neurips26.reference_guidance.control import STRENGTH_GRID, Curve, settings_grid, strength_of
from neurips26.shared import stats
from neurips26.shared.claims import DataUse, Measurement, Series, Tuning
from neurips26.shared.context import Context

SLUG = "reference-guidance"
NO_TABLE = "none: the abstract claims control of colour, identity, style and structure without a figure"
TUNED = (
    "Strength of guidance, of latent averaging, of classifier guidance and of the prompt, noise level of SDEdit: three "
    "settings each, the highest rate among those at least 0.85 times as far from the references as real images; on "
)
DIGITS = DataUse("scikit-learn digits", "from a dependency")
FACES = DataUse("olivetti_faces_64.npz", "real")
COMPOSITION_RANK = "neurips26.reference_guidance.claims:composition_rank"
MOONS = DataUse("two moons", "generated")
ANIMALS = DataUse("cifar10_cat_dog.zip", "real")
ENCODER = DataUse("EfficientNet-Lite0 (ImageNet weights)", "from a dependency")


@cache
def once(experiment: Callable[..., Any], *key: Any) -> Any:
    """One computation shared by the claims of a run (each claim keeps its own finished cells on disk)."""
    return experiment(*key)


#: The designs of the rows were settled while the first seeds were looked at; a record reports others.
LOOKED_AT = 200


def fresh_seeds(ctx: Context, n: int, looked_at: int = LOOKED_AT) -> list[int]:
    """Seeds beyond the first ``looked_at``, which were seen while the row was settled; a quick run takes its first five."""
    if ctx.tier != "cpu":
        return ctx.seeds(5)
    ctx.note(
        f"the row was settled while seeds below {ctx.seeds(1)[0] + looked_at} were looked at; they are not reported"
    )
    return ctx.seeds(looked_at + n)[looked_at:]


#: Frozen flows of the face and animal rows; the seeds of a row take them in turn.
FLOWS = 3


def flows_in_turn(ctx: Context, n: int, looked_at: int = LOOKED_AT) -> tuple[list[int], Callable[[int], int]]:
    """Seeds of sets and noise, and the seed of the frozen flow that each of them meets."""
    seeds = fresh_seeds(ctx, n, looked_at)
    ctx.note(f"{FLOWS} frozen flows take turns; a seed draws the set and the noise")
    return seeds, lambda s: seeds[(s - seeds[0]) % FLOWS]


def note_judge(ctx: Context, accuracy: float) -> None:
    """Say in the record how far the judge of a row can be trusted."""
    ctx.note(f"the judge is right on {accuracy:.3f} of the real images it was not fitted to")


def seed_rows(ctx: Context, seeds: list[int], fn: Callable[[int], Any]) -> dict[int, Any]:
    """``fn`` of every seed; what is finished is read from disk."""
    return {s: ctx.cell({"seed": s}, lambda s=s: fn(s)) for s in ctx.track(seeds, ctx.claim)}


def cells_of(rows: dict[int, dict[str, Any]], metric: str = "rate") -> list[dict[str, Any]]:
    """The cells of a record: every metric of every method at every seed."""
    return [
        {"factors": {"metric": m}, "seed": s, "method": name, "value": float(value)}
        for s, row in rows.items() for name, found in row.items() for m, value in found.items()
    ]  # fmt: skip


def series_of(rows: dict[int, dict[str, Any]], name: str, metric: str = "rate", tuned: str = "") -> Series:
    """One metric of one method, one value a seed; ``tuned`` names the data set its setting was chosen on."""
    how = {"method": name, "metric": metric} | (RIVALS[tuned].of(name) if tuned else {})
    if tuned and strength_of(name) is not None:
        how["strength"] = strength_of(name)
    return Series(how, [row[name][metric] for row in rows.values()])


def _listed(used: DataUse | list[DataUse]) -> list[DataUse]:
    return used if isinstance(used, list) else [used]


def control_row(
    rows: dict[int, Any], ours: str, used: DataUse | list[DataUse], tuned: str = "", reason: str = ""
) -> Measurement:
    """A control claim: ours beside everything else that was measured, compared to the unguided rate."""
    others = [k for k in next(iter(rows.values())) if k != ours]
    return Measurement(
        ours=series_of(rows, ours, "rate", tuned), baselines={k: series_of(rows, k, "rate", tuned) for k in others},
        seeds=list(rows), cells=cells_of(rows), data=_listed(used), reason=reason, compared_to="unguided",
        tuned_by=f"{tuned}-settings" if tuned else None,
    )  # fmt: skip


def composition_rank(cells: list[dict[str, Any]], level: float) -> tuple[float, float, float]:
    """Spearman rank correlation of the share in the set and the share among the samples, over all seeds."""
    ours = [c for c in cells if c["method"] == "ours"]
    return stats.spearman([c["factors"]["share"] for c in ours], [c["value"] for c in ours], level)


def share_cells(rows: dict[int, dict[str, float]], method: str = "ours") -> list[dict[str, Any]]:
    """The cells of a composition: one a share in the set."""
    return [
        {"factors": {"share": float(k)}, "seed": s, "method": method, "value": v}
        for s, row in rows.items() for k, v in row.items()
    ]  # fmt: skip


def not_copied(
    rows: dict[int, Any], used: DataUse | list[DataUse], tuned: str, reason: str = "", ours: str = "quadratic 2"
) -> Measurement:
    """A copy check: distances to the nearest reference, compared to those of held-out real images."""
    rivals = ("held out", "unguided", "latent average", "SDEdit", "classifier guidance", "prompt")
    base = {k: series_of(rows, k, "copy", tuned) for k in rivals if k in next(iter(rows.values()))}
    return Measurement(
        ours=series_of(rows, ours, "copy", tuned), baselines=base, compared_to="held out", seeds=list(rows),
        cells=cells_of(rows), data=_listed(used), reason=reason, tuned_by=f"{tuned}-settings",
    )  # fmt: skip


#: The bar of distance: relative to held-out real images, to the nearest reference.
APART = 0.85


def settings_tuning(
    ctx: Context, measure: Callable[[int, Curve, Rivals], dict[str, Any]], ours: bool = False,
    strengths: tuple[float, ...] = STRENGTH_GRID, wanted: float | None = None,
) -> Tuning:  # fmt: skip
    """The best of three settings of every method on one tuning seed of the data.

    Best is the highest rate among those at least 0.85 times as far from the references as held-out real images, or of all
    where none is.

    Args:
        ctx: the run.
        measure: a control experiment.
        ours: also choose the strength of guidance, which data sets without a choice of their own take over.
        strengths: of ours.
        wanted: the bar of the rate; where it is given, the strength of ours is the one furthest beyond both bars, that is
            the one whose smaller of rate / ``wanted`` and distance / 0.85 is largest.
    """
    seed = ctx.seeds(1)[0]
    found = ctx.cell({"seed": seed}, lambda: settings_grid(lambda curve, how: measure(seed, curve, how), strengths))
    methods = [m for m in ("ours", "latent average", "SDEdit", "classifier guidance", "prompt") if m in found["0"]]
    cells, chosen = [], {}
    for name in methods:
        rows = [found[str(i)] for i in range(len(RIVAL_GRID))]
        settings = [r.of(name) or {"strength": s} for r, s in zip(RIVAL_GRID, strengths)]
        cells += [
            {"factors": {**s, "metric": m}, "seed": seed, "method": name, "value": row[name][m]}
            for s, row in zip(settings, rows) for m in ("rate", "copy")
        ]  # fmt: skip
        if name != "ours":
            chosen[name] = settings[_highest(rows, name)]
        elif wanted is not None:
            chosen[name] = settings[_balanced(rows, name, wanted)]
        elif ours:
            chosen[name] = settings[_highest(rows, name)]
    return Tuning(cells, chosen)


def _distance(row: dict[str, Any], name: str) -> float:
    return row[name]["copy"] / row["held out"]["copy"]


def _highest(rows: list[dict[str, Any]], name: str) -> int:
    """The highest rate among settings that are far enough from the references, or of all where none is."""
    return max(range(len(rows)), key=lambda i: (_distance(rows[i], name) >= APART, rows[i][name]["rate"]))


def _balanced(rows: list[dict[str, Any]], name: str, wanted: float) -> int:
    """The setting furthest beyond (or least short of) both bars."""
    margins = [min(row[name]["rate"] / wanted, _distance(row, name) / APART) for row in rows]
    return max(range(len(rows)), key=lambda i: margins[i])

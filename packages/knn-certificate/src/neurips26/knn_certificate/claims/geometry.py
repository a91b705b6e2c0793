"""Geometry destroyed while memorisation stays: what becomes of generalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neurips26.knn_certificate import experiments, pictures
from neurips26.knn_certificate.claims.cells import DIGITS, EFFECTS, cell
from neurips26.shared.claims import Claim, Criterion, Measurement, Series, Tuning, measures, tunes
from neurips26.shared.context import Context


def _sweep(ctx: Context, seeds: list[int], chosen: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    cells, rows = [], []
    for seed in ctx.track(seeds, "ablation"):
        for name in chosen:
            got = ctx.cell(
                {"condition": name, "seed": seed},
                lambda how=experiments.SWEEP[name], seed=seed: experiments.ablation(*how, seed).figures(),
            )
            rows.append({"intervention": name, **got})
            factors = {"condition": name, "train_accuracy": got["train_accuracy"]}
            names = {
                "test_error": "test error",
                "held_out_error": "held-out decoder",
                "in_sample_error": "in-sample decoder",
                "bound": "certificate",
            }
            cells += [cell(factors, seed, names[k], got[k]) for k in names]
    return cells, rows


@measures(
    Claim(
        id="geometry-tracks-generalization",
        statement="Over interventions that leave memorisation intact, test error follows what is left of class geometry.",
        paper_value="destroying local class geometry removes generalization while memorisation stays (abstract)",
        scope="scaled down",
        metric="rank correlation of held-out 1-NN decoder error and test error, runs with train accuracy >= 0.99",
        unit="1",
        direction="higher",
        criterion=Criterion("monotone", at_least=0.8, effect=f"{EFFECTS}:held_out_rank_correlation"),
    )
)
def geometry_tracks_generalization(ctx: Context) -> Measurement:
    """Every intervention of `experiments.SWEEP`, each seed with its own split and start."""
    quick = ctx.tier == "quick"
    # Judged on fresh seeds: the first five have been looked at.
    seeds, sweep = (
        ctx.seeds(1) if quick else ctx.seeds(15)[5:],
        ("clean", "all labels") if quick else tuple(experiments.SWEEP),
    )
    cells, rows = _sweep(ctx, seeds, sweep)
    picture = ctx.figure("ablation.png")
    pictures.ablation_plot(rows, picture)
    shown = [picture]
    if not quick:
        shown.append(ctx.figure("representation.png"))
        nets = {
            name: experiments.ablation(*experiments.SWEEP[name], seeds[0])
            for name in ("clean", "cross-pairs", "rainbow")
        }
        pictures.representation_plot({name: (a.memory, a.memory_labels) for name, a in nets.items()}, shown[1])
    table = {
        name: {
            what: round(float(np.mean([r[what] for r in rows if r["intervention"] == name])), 3)
            for what in ("train_accuracy", "in_sample_error", "held_out_error", "test_error", "bound")
        }
        for name in sweep
    }
    ctx.note(f"means over seeds: {table}")
    return Measurement(
        cells=cells,
        seeds=seeds,
        data=[DIGITS],
        figures=shown,
        reason="one draw of two conditions; the tier cpu has ten of the whole sweep"
        if quick
        else "see the note: rainbow groups leave hardly a training point a neighbour of its class and still generalise, so "
        "the in-sample decoder misleads; the same-class control keeps both",
    )


@measures(
    Claim(
        id="destroyed-geometry-hurts",
        statement="A representation trained on random labels and frozen costs generalization even when a new head memorises "
        "the true labels.",
        paper_value="destroying local class geometry removes generalization while memorisation stays (abstract)",
        scope="scaled down",
        metric="test error with destroyed geometry / test error of plain training, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=2.0),
    ),
    tiers=("cpu",),
)
def destroyed_geometry_hurts(ctx: Context) -> Measurement:
    """The backbone memorises random labels, a new head the true ones."""
    seeds = ctx.seeds(10)
    cells, rows = _sweep(ctx, seeds, ("clean", "frozen random"))
    ours, plain = _errors(ctx, rows, "frozen random")
    return Measurement(
        ours=ours,
        baselines={"plain training": plain},
        seeds=seeds,
        cells=cells,
        data=[DIGITS],
        reason="the backbone memorises the random labels and still a 1-NN decoder reads the true classes from it (its error is "
        "in the note): two layers on digits move their input too little for geometry to be lost. Narrower networks, more points "
        "and longer training do not change that; standardised inputs let it move further, and still the error is less than "
        'twice that of plain training (grid "random-labels" of the tune record). Removal of generalization is left to the scale '
        "of CIFAR-10",
    )


def _errors(ctx: Context, rows: list[dict[str, Any]], destroyed: str) -> tuple[Series, Series]:
    """Test errors of an intervention and of plain training; a note on what was memorised and what is left of geometry."""
    by = {name: [r for r in rows if r["intervention"] == name] for name in (destroyed, "clean")}
    memorised = min(r["train_accuracy"] for r in rows)
    left = {
        name: {w: round(float(np.mean([r[w] for r in mine])), 3) for w in ("in_sample_error", "held_out_error")}
        for name, mine in by.items()
    }
    ctx.note(f"smallest train accuracy {memorised:.3f}; 1-NN errors of the representation: {left}")
    ours, plain = (Series({}, [r["test_error"] for r in mine]) for mine in by.values())
    return ours, plain


@measures(
    Claim(
        id="cross-pairs-hurt",
        statement="Pulling points of different classes together in pairs costs generalization while memorisation stays.",
        paper_value="destroying local class geometry removes generalization while memorisation stays (abstract)",
        scope="scaled down",
        metric="test error with cross-class pairs of weight 1 / test error of plain training, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("ratio", at_least=3.0),
    ),
    tiers=("cpu",),
)
def cross_pairs_hurt(ctx: Context) -> Measurement:
    """The loss that pulls foreign points together, at weight 1."""
    seeds = ctx.seeds(10)[5:]
    cells, rows = _sweep(ctx, seeds, ("clean", "cross-pairs"))
    ours, plain = _errors(ctx, rows, "cross-pairs")
    return Measurement(
        ours=ours,
        baselines={"plain training": plain},
        seeds=seeds,
        cells=cells,
        data=[DIGITS],
        reason="nearest neighbours in the sample are all foreign, yet new points are not paired and find their class: the "
        "held-out decoder error, not the in-sample one, says what is lost. 400 points and 2,000 steps in place of 240 and 500 "
        "gave about the same ratio on a tuning split",
    )


@tunes(
    id="random-labels",
    statement="How far memorising random labels moves a representation: held-out 1-NN error on the true labels.",
)
def tune_random_labels(ctx: Context) -> Tuning:
    """Five sizes of network, data and training."""
    cells, table = [], {}
    for kept, hidden, steps, lr, standardised in (
        (240, 384, 500, 2e-3, False),
        (240, 96, 1_500, 1e-2, False),
        (600, 96, 2_500, 1e-2, False),
        (600, 64, 3_000, 1e-2, False),
        (240, 128, 800, 2e-3, True),
    ):
        factors = {"points": kept, "width": hidden, "steps": steps, "step size": lr, "standardised": standardised}
        for seed, kind in [(s, k) for s in ctx.seeds(2) for k in (("frozen", "none") if standardised else ("frozen",))]:
            got = ctx.cell(
                {**factors, "kind": kind, "seed": seed},
                lambda a=(kept, hidden, steps, lr, standardised), k=kind, s=seed: experiments.ablation(
                    k, 1.0, s, *a
                ).figures(),
            )
            names = ("train_accuracy", "held_out_error", "test_error")
            cells += [cell({**factors, "kind": kind}, seed, what, got[what]) for what in names]
            table[f"{kind} {factors}"] = {what: round(got[what], 3) for what in names}
    return Tuning(cells, {}, note=f"the claim keeps the first setting; last seed: {table}")


@tunes(
    id="rainbow",
    statement="From which weight on the rainbow groups leave no training point a neighbour of its class.",
)
def tune_rainbow(ctx: Context) -> Tuning:
    """Three weights."""
    cells, means = [], {}
    for strength in (3.0, 5.0, 10.0):
        errors = []
        for seed in ctx.seeds(2):
            got = ctx.cell(
                {"strength": strength, "seed": seed},
                lambda w=strength, s=seed: experiments.ablation("rainbow", w, s).figures(),
            )
            errors.append(got["in_sample_error"])
            for what in ("train_accuracy", "in_sample_error", "held_out_error"):
                cells.append(cell({"strength": strength}, seed, what, got[what]))
        means[strength] = round(float(np.mean(errors)), 4)
    chosen = max(means, key=lambda w: means[w])
    return Tuning(
        cells, {"rainbow": {"strength": chosen}}, note=f"in-sample 1-NN error: {means}; test error was not looked at"
    )

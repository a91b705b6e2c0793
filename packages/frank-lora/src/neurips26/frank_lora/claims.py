"""The headline claims, each beside the baseline that it is claimed against."""

from __future__ import annotations

import numpy as np

from neurips26.frank_lora.shrinkage import shrink
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context
from neurips26.shared.seeding import rng

#: Means a problem, and problems a seed.
D, PROBLEMS = 20, 200


def _errors(seed: int) -> dict[str, float]:
    stream = rng(seed, "problems")
    means = stream.normal(size=(PROBLEMS, D))
    x = means + stream.normal(size=(PROBLEMS, D))
    ours = np.stack([shrink(row, 1.0) for row in x])
    return {"ours": float(((ours - means) ** 2).mean()), "plain mean": float(((x - means) ** 2).mean())}


@measures(
    Claim(
        id="frank-lora-error",
        statement="Shrinkage has a lower squared error than the plain mean",
        paper_value="none: abstract only",
        scope="scaled down",
        metric="mean squared error",
        unit="1",
        direction="lower",
        criterion=Criterion(kind="ratio", at_most=0.9),
    )
)
def error(ctx: Context) -> Measurement:
    """Squared error on problems drawn a seed."""
    seeds = ctx.seeds(10)
    rows = [ctx.cell({"seed": seed}, lambda s=seed: _errors(s)) for seed in ctx.track(seeds, "error")]
    return Measurement(
        ours=Series({}, [row["ours"] for row in rows]),
        baselines={"plain mean": Series({}, [row["plain mean"] for row in rows])},
        compared_to="plain mean",
        seeds=seeds,
        data=[DataUse("normal means", "generated")],
    )

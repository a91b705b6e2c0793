"""What needs a GPU: costs beside a klein-sized transformer, FLUX.2 and AFHQv2."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from neurips26.reference_guidance import gpu_check
from neurips26.reference_guidance.claims.common import ANIMALS, NO_TABLE, seed_rows
from neurips26.shared.claims import Claim, Criterion, DataUse, Measurement, Series, measures
from neurips26.shared.context import Context

#: The released experiments of klein that have a reference prompt to be judged by.
KLEIN = (
    "pink-elephant", "blue-elephant", "cat-van-gogh", "house-forest-sketch", "savanna-giraffe", "savanna-zebra",
)  # fmt: skip


def _on_gpu(
    id: str,
    statement: str,
    paper: str,
    metric: str,
    criterion: Criterion,
    scope: Any = "paper setting",
    lower: bool = False,
) -> Claim:
    return Claim(
        id, statement, paper, scope, metric, "1", "lower" if lower else "higher", criterion, needs=("gpu",),
        rerun_tolerance=None,
    )  # fmt: skip


@measures(
    _on_gpu(
        "gpu-overhead", "With 1000 references guidance adds little to a step of a klein-sized transformer at 768x768",
        "none: our bar", "time of one correction over one forward pass", Criterion("bound", at_most=0.03), "proxy", True,
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_overhead(ctx: Context) -> Measurement:
    """Random weights in bfloat16, one sample; 20 references are kept beside."""
    found = ctx.cell("overhead", lambda: gpu_check.guidance_overhead(gpu_check.full_scale()))
    cells = [
        {"factors": {"references": int(m)}, "seed": i, "method": "ours", "value": v}
        for m, values in found.items() for i, v in enumerate(values)
    ]  # fmt: skip
    used = [DataUse("random tensors", "generated")]
    seeds = list(range(len(found["1000"])))
    return Measurement(ours=Series({"references": 1000}, found["1000"]), seeds=seeds, cells=cells, data=used)


@measures(
    _on_gpu(
        "gpu-spg-parity", "At the authors' sizes SPG's loss is as low as the DiT's after 500 steps on cats and dogs",
        "none: our bar", "loss of SPG over that of the DiT", Criterion("ratio", at_most=1.05), "scaled down", True,
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def gpu_spg_parity(ctx: Context) -> Measurement:
    """CIFAR-10 enlarged to 64x64 and folded to 48x16x16, bfloat16, batch 64; steps a second are kept beside."""
    path = ctx.data("cifar10_cat_dog.zip")
    if path is None:
        ctx.note(gpu_check.NO_PHOTOGRAPHS)
    run = lambda s: gpu_check.spg_parity(gpu_check.full_scale(), path, s)  # noqa: E731
    rows = seed_rows(ctx, ctx.seeds(5), run)
    cells = [{"factors": {}, "seed": s, "method": k, "value": v} for s, row in rows.items() for k, v in row.items()]
    loss = {k: Series({"steps": 500}, [r[f"{k} loss"] for r in rows.values()]) for k in ("SPG", "DiT")}
    used = [ANIMALS if path else DataUse("random tensors", "generated")]
    return Measurement(ours=loss["SPG"], baselines={"DiT": loss["DiT"]}, seeds=list(rows), cells=cells, data=used)


@measures(
    _on_gpu(
        "klein-control", "Reference sets control colour, style and the kind of animal of FLUX.2-klein-4B", NO_TABLE,
        "CLIP similarity to the reference prompt, guided minus unguided", Criterion("difference", at_least=0.0),
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def klein_control(ctx: Context) -> Measurement:
    """The released experiments with a reference prompt, five seeds each, beside every rival that klein offers.

    Rivals: the reference prompt in words, a copied reference, the plain average of the set, klein's own image conditioning on
    four references, and image-to-image of one. The distance of each to its nearest reference is kept in the cells. Needs
    the hub (or its cache) as well.
    """
    from PIL import Image
    from transformers import CLIPModel, CLIPProcessor

    from neurips26.reference_guidance import reproduce
    from neurips26.reference_guidance.author_runs import released
    from neurips26.reference_guidance.image_metrics import clip_scores

    clip = "openai/clip-vit-base-patch32"
    judge, processor = CLIPModel.from_pretrained(clip), CLIPProcessor.from_pretrained(clip)
    pipe = reproduce.load_pipeline(released(KLEIN[0])["model"], torch.bfloat16).to("cuda")

    def scores(seed: int) -> dict[str, dict[str, float]]:
        found: list[dict[str, tuple[float, float]]] = []
        for name in KLEIN:
            out = ctx.directory / "klein" / name / str(seed)
            row = reproduce.run_released(name, pipe, out, seed=seed, with_rivals=True)["rows"][0]
            drawn = {
                "guided": {"picture": row["picture"], "distance": row["distance"]},
                "unguided": {"picture": row["base"], "distance": row["base distance"]},
            } | row["rivals"]
            images = [Image.open(out / d["picture"]) for d in drawn.values()]
            text = released(name)["reference_prompt"]
            likeness = clip_scores(images, text, judge, processor)
            found.append({k: (s, drawn[k]["distance"]) for k, s in zip(drawn, likeness)})
        return {
            method: dict(zip(("CLIP", "distance"), np.mean([f[method] for f in found], 0).tolist()))
            for method in found[0]
        }

    rows = seed_rows(ctx, ctx.seeds(5), scores)
    methods = next(iter(rows.values()))
    series = {k: Series({}, [r[k]["CLIP"] for r in rows.values()]) for k in methods}
    cells = [
        {"factors": {"measure": measure}, "seed": s, "method": k, "value": v}
        for s, row in rows.items() for k, values in row.items() for measure, v in values.items()
    ]  # fmt: skip
    return Measurement(
        ours=series.pop("guided"), baselines=series, compared_to="unguided", seeds=list(rows), cells=cells,
        data=[DataUse("FLUX.2-klein-4B", "real")],
    )  # fmt: skip


@measures(
    _on_gpu(
        "afhq-quality", "SPG matches the FID of an unconditional DiT-B/4 on AFHQv2 with a swappable set",
        "matches (no figure could be read)", "FID of SPG over that of DiT", Criterion("ratio", at_most=1.05), lower=True,
    ),
    tiers=("cpu", "gpu"),
)  # fmt: skip
def afhq_quality(ctx: Context) -> Measurement:
    """10,000 steps on 4 GPUs, 50,000 samples with clean-fid: reads the two figures that such a run leaves behind."""
    path = ctx.directory / "afhq.json"
    if not path.exists():
        raise RuntimeError(
            f"afhq-quality: expected {path} with lists of FIDs under SPG and DiT, one a run: those that `neurips26 "
            "reference-guidance reproduce afhq-spg` and `afhq-dit` print for the set of both species"
        )
    found = json.loads(path.read_text("utf-8"))
    series = {k: Series({"steps": 10_000}, found[k]) for k in ("SPG", "DiT")}
    return Measurement(
        ours=series["SPG"], baselines={"DiT": series["DiT"]}, seeds=list(range(len(found["SPG"]))),
        data=[DataUse("AFHQv2", "real")],
    )  # fmt: skip

"""The authors' released FLUX.2 experiments, resolved from their configuration and run on any pipeline that takes prompts.

Each draws the base picture and guided ones from the same noise, builds its references with the pipeline itself (or from
a folder), and keeps, beside the pictures, what guidance did in every step and the nearest reference.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.schedulers import guide
from neurips26.shared import runs
from neurips26.shared.arrays import check_choice

__all__ = ["CONFIGS", "clip_scores", "load_pipeline", "released", "run_grid", "run_released"]

CONFIGS = Path(__file__).parent / "configs" / "released.toml"


def released(name: str = "") -> dict[str, Any]:
    """Settings of one released experiment, or the names of all."""
    configs = tomllib.loads(CONFIGS.read_text("utf-8"))
    defaults = configs.pop("defaults")
    if not name:
        return {"experiments": sorted(configs)}
    check_choice(name, "name", configs)
    return defaults | configs[name]


def load_pipeline(name: str, dtype: torch.dtype | None = None) -> Any:
    """A pipeline by folder, hub id or ``tiny:NAME`` (random weights, nothing downloaded).

    Raises:
        ValueError: it is neither in a folder nor in the hub's cache, and the hub cannot be reached.
    """
    if name.startswith("tiny:"):
        from neurips26.reference_guidance.tiny import tiny_pipeline

        return tiny_pipeline(name.removeprefix("tiny:"))
    from diffusers import DiffusionPipeline

    try:
        return DiffusionPipeline.from_pretrained(name, torch_dtype=dtype)
    except (OSError, ValueError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"pipe: cannot load {name!r}: no such folder with a model_index.json, not in the hub's cache, and the hub "
            f"gave no answer ({first})"
        ) from error


def run_released(
    name: str, pipe: Any, out: Path, *, size: int = 0, steps: int = 0, references: int = 0, seed: int | None = None
) -> dict[str, Any]:
    """Run a released experiment.

    Args:
        name: of the experiment.
        pipe: a pipeline that takes prompts.
        out: folder of the run; what is finished there is not made again.
        size, steps, references: smaller values than the released ones, for a rehearsal; 0 keeps them.
        seed: of the noise; the released one by default.

    Returns:
        one row a picture: its file, settings, distance to and name of the nearest reference.
    """
    how = released(name)
    how |= {k: v for k, v in {"height": size, "width": size, "steps": steps, "references": references}.items() if v}
    how["seed"] = how["seed"] if seed is None else seed
    bank = _bank(pipe, how, out, "reference_prompt") if "fractions" not in how else None
    grid: list[dict[str, Any]] = []
    if bank is None:
        source, target = (_bank(pipe, how, out, k) for k in ("source_prompt", "target_prompt"))
        grid = [{"fraction": f, "bank": source.mix(target, f)} for f in how["fractions"]]
    elif "schedules" in how:
        grid = [{"schedule": a, "strength": b} for a, b in itertools.product(how["schedules"], how["strengths"])]
    elif "steps_values" in how:
        values = [steps] if steps else how["steps_values"]
        grid = [{"steps": a, "strength": b} for a, b in itertools.product(values, how["strengths"])]
    elif "sizes" in how:
        grid = [{"bank": bank.subset(list(range(m))), "references": m} for m in how["sizes"] if m <= len(bank)]
    return run_grid(pipe, how | ({"bank": bank} if bank else {}), grid or [{}], out)


def run_grid(pipe: Any, how: dict[str, Any], grid: list[dict[str, Any]], out: Path) -> dict[str, Any]:
    """One guided picture a row of the grid, beside the unguided one of the same noise.

    Args:
        pipe: the pipeline.
        how: settings common to all rows: bank, strength, schedule, window, topk, mode, steps, seed, height, width, prompt,
            guidance_scale (or ``call``, the arguments that replace both).
        grid: what each row changes.
        out: folder; finished rows are kept, rows made with other settings are refused.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for change in grid:
        row = how | change
        label = "-".join(f"{k}-{v}" for k, v in change.items() if k != "bank") or "guided"
        asked = {k: v for k, v in row.items() if k not in ("bank", "call")} | {"names": row["bank"].names}
        asked = json.loads(json.dumps(asked, default=str))
        done = out / f"{label}.json"
        if not done.exists():
            runs.atomic_write_json(done, {"asked": asked} | _one(pipe, row, label, out))
        found = json.loads(done.read_text("utf-8"))
        if found.pop("asked") != asked:
            raise ValueError(f"out: {done} was made with other settings; choose another folder")
        rows.append(found)
    runs.atomic_write_json(out / "run.json", {"rows": rows})
    return {"out": str(out), "rows": [{k: v for k, v in r.items() if k != "history"} for r in rows]}


def _one(pipe: Any, row: dict[str, Any], label: str, out: Path) -> dict[str, Any]:
    """Draw one guided picture, and the unguided one where it is not there yet."""
    base = out / f"base-{row['steps']}.png"
    if not base.exists():
        _draw(pipe, row).save(base)
    guidance = ReferenceMeanGuidance(
        row["bank"], row["strength"], row["schedule"], tuple(row["window"]), row["topk"], mode=row["mode"]
    )
    with guide(pipe, guidance):
        picture = _draw(pipe, row)
    picture.save(out / f"{label}.png")
    index, distance = row["bank"].nearest(_encode(pipe, picture, row))
    nearest = int(index[0])
    files = {"picture": f"{label}.png", "base": base.name}
    if row["bank"].thumbnails is not None:
        files["nearest picture"] = f"{label}-nearest.png"
        Image.fromarray(row["bank"].thumbnails[nearest].numpy()).save(out / files["nearest picture"])
    return files | {
        "settings": guidance.settings() | {"steps": row["steps"], "seed": row["seed"]},
        "nearest": row["bank"].names[nearest],
        "distance": float(distance[0]),
        "history": [h.to_json() for h in guidance.history],
    }


def _bank(pipe: Any, how: dict[str, Any], out: Path, key: str) -> ReferenceBank:
    """The references of an experiment, made once and kept in the run's folder."""
    path = out / f"{key}.safetensors"
    if path.exists():
        return ReferenceBank.load(path)
    size = {"height": how["height"], "width": how["width"]}
    if "reference_images" in how:
        bank = ReferenceBank.from_images(pipe, Path(how["reference_images"]), **size)
    else:
        prompts = [how.get(key, how.get("prompt", "an elephant in a jungle"))] * how["references"]
        bank = ReferenceBank.from_prompts(pipe, prompts, how["seed"], num_inference_steps=how["steps"], **size)
    bank.save(path)
    return bank


def _draw(pipe: Any, row: dict[str, Any]) -> Image.Image:
    call = {k: row[k] for k in ("height", "width")} | {"num_inference_steps": row["steps"]}
    call |= row.get("call") or {"prompt": row.get("prompt", ""), "guidance_scale": row["guidance_scale"]}
    return pipe(**call, generator=torch.Generator().manual_seed(row["seed"])).images[0]


def _encode(pipe: Any, picture: Image.Image, row: dict[str, Any]) -> torch.Tensor:
    return ReferenceBank.from_images(pipe, [picture], row["height"], row["width"], fit="stretch").latents.float()


def _batches(images: list[Image.Image], n: int = 16) -> Iterator[list[Image.Image]]:
    for i in range(0, len(images), n):
        yield images[i : i + n]


@torch.no_grad()
def clip_scores(images: list[Image.Image], text: str, model: Any, processor: Any) -> list[float]:
    """Cosine similarity of images and a text under a CLIP of transformers."""
    scores = []
    for batch in _batches(images):
        inputs = processor(text=[text], images=batch, return_tensors="pt", padding=True).to(model.device)
        found = model(**inputs)
        a, b = (v / v.norm(dim=-1, keepdim=True) for v in (found.image_embeds, found.text_embeds))
        scores += (a @ b.T)[:, 0].float().cpu().tolist()
    return [float(s) for s in np.asarray(scores)]

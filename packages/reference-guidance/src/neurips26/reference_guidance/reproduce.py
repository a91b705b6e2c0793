"""The authors' released FLUX.2 experiments, resolved from their configuration and run on any pipeline that takes prompts.

Each draws the base picture and guided ones from the same noise, builds its references with the pipeline itself (or from
a folder), and keeps, beside the pictures, what guidance did in every step and the nearest reference.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.layouts import layout_for, module_digest
from neurips26.reference_guidance.schedulers import guide
from neurips26.shared import runs
from neurips26.shared.arrays import check_choice

__all__ = ["CONFIGS", "clip_scores", "load_pipeline", "pipe_identity", "released", "run_grid", "run_released"]

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
    # their noise is seeded with seed + 7 and their references with reference_seed + 1000 + i
    how["seed"] = (how["seed"] if seed is None else seed) + 7
    grid: list[dict[str, Any]] = [{}]
    if "fractions" in how:
        source, target = (_bank(pipe, how, out, how[k]) for k in ("source_prompt", "target_prompt"))
        grid = [{"fraction": f, "bank": source.mix(target, f)} for f in how["fractions"]]
    elif "prompts" in how:
        banks = {r: _bank(pipe, how, out, r) for r in how["reference_prompts"]}
        grid = [{"prompt": p, "reference": r, "bank": banks[r]} for p, r in itertools.product(how["prompts"], banks)]
    else:
        how["bank"] = bank = _bank(pipe, how, out, how.get("reference_prompt", ""))
        if "schedules" in how:
            grid = [{"schedule": a, "strength": b} for a, b in itertools.product(how["schedules"], how["strengths"])]
        elif "steps_values" in how:
            values = [steps] if steps else how["steps_values"]
            grid = [{"steps": a, "strength": b} for a, b in itertools.product(values, how["strengths"])]
        elif "sizes" in how:
            grid = [{"bank": bank.subset(list(range(m))), "references": m} for m in how["sizes"] if m <= len(bank)]
    return run_grid(pipe, how, grid, out)


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
    rows, model = [], pipe_identity(pipe)
    for change in grid:
        row = how | change
        label = _label(change)
        asked = {k: v for k, v in row.items() if k not in ("bank", "call")}
        asked |= {"bank": row["bank"].digest, "call": _digest(row.get("call")), "pipe": model}
        done = out / f"{label}.json"
        _claim(done, asked, lambda row=row, label=label: _one(pipe, row, label, out, model))
        rows.append({k: v for k, v in json.loads(done.read_text("utf-8")).items() if k != "asked"})
    runs.atomic_write_json(out / "run.json", {"rows": rows})
    return {"out": str(out), "rows": [{k: v for k, v in r.items() if k != "history"} for r in rows]}


def _label(change: dict[str, Any]) -> str:
    """File name of a row: what it changes; words in short."""
    parts = (f"{k}-{v}" for k, v in change.items() if k != "bank")
    return "-".join(p.replace(" ", "_").replace("/", "_") for p in parts) or "guided"


def _claim(done: Path, asked: dict[str, Any], make: Callable[[], dict[str, Any]]) -> None:
    """Make what ``done`` describes unless it is there; refuse what was made from anything else.

    Raises:
        ValueError: the folder holds the work of other settings.
    """
    asked = json.loads(json.dumps(asked, default=str))
    if not done.exists():
        runs.atomic_write_json(done, {"asked": asked} | make())
    elif (theirs := json.loads(done.read_text("utf-8"))["asked"]) != asked:
        other = sorted(k for k in asked.keys() | theirs.keys() if asked.get(k) != theirs.get(k))
        raise ValueError(f"out: {done} was made with other settings ({', '.join(other)}); choose another folder")


def pipe_identity(pipe: Any) -> dict[str, Any]:
    """What tells one pipeline from another: class, latent space, weights of its network, noise schedule."""
    network = getattr(pipe, "transformer", None) or getattr(pipe, "unet", None)
    schedule = {k: v for k, v in dict(pipe.scheduler.config).items() if not k.startswith("_")}
    return {
        "class": type(pipe).__name__, "space": layout_for(pipe).fingerprint(pipe),
        "network": module_digest(network) if network is not None else "", "schedule": _digest(schedule),
    }  # fmt: skip


def _digest(value: Any) -> str:
    """Digest of settings that may hold tensors."""
    found = hashlib.sha256()
    if isinstance(value, torch.Tensor):
        found.update(value.detach().float().cpu().numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value):
            found.update(f"{key}:{_digest(value[key])}".encode())
    elif isinstance(value, (list, tuple)):
        for part in value:
            found.update(_digest(part).encode())
    else:
        found.update(repr(value).encode())
    return found.hexdigest()[:32]


def _one(pipe: Any, row: dict[str, Any], label: str, out: Path, model: dict[str, Any]) -> dict[str, Any]:
    """Draw one guided picture, and the unguided one of the same noise where it is not there yet."""
    names = ("prompt", "seed", "guidance_scale", "steps", "height", "width")
    asked = {k: row[k] for k in names if k in row} | {"call": _digest(row.get("call")), "pipe": model}
    base = out / f"base-{_digest(asked)[:12]}.png"
    _claim(base.with_suffix(".json"), asked, lambda: {"picture": _draw(pipe, row).save(base) or base.name})
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


def _bank(pipe: Any, how: dict[str, Any], out: Path, prompt: str) -> ReferenceBank:
    """The references of an experiment, drawn from one prompt or read from its folder, made once and kept with the run."""
    size = {"height": how["height"], "width": how["width"]}
    folder = how.get("reference_images", "")
    asked = size | {"prompt": prompt, "images": folder, "pipe": pipe_identity(pipe)}
    if not folder:
        asked |= {"references": how["references"], "seed": how["reference_seed"], "steps": how["steps"]}
    path = out / f"references-{_digest(asked)[:12]}.safetensors"

    def make() -> dict[str, Any]:
        if folder:
            bank = ReferenceBank.from_images(pipe, Path(folder), **size)
        else:
            call = {"num_inference_steps": how["steps"], "guidance_scale": how["guidance_scale"]}
            bank = ReferenceBank.from_prompts(pipe, [prompt] * how["references"], how["reference_seed"], **call, **size)
        bank.save(path)
        return {"references": len(bank)}

    out.mkdir(parents=True, exist_ok=True)
    _claim(path.with_suffix(".json"), asked, make)
    return ReferenceBank.load(path)


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

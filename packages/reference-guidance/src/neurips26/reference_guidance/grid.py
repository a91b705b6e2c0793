"""Guided pictures over a grid of settings, each beside the unguided picture of its noise and, if asked, its rivals.

Everything drawn stays in the folder of the run beside the settings it was drawn with. A run that was stopped goes on
there; what was drawn with other settings, from another bank or by another model is never taken for one's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from neurips26.reference_guidance import rivals
from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
from neurips26.reference_guidance.layouts import layout_for, module_digest
from neurips26.reference_guidance.schedulers import guide
from neurips26.shared import runs

__all__ = ["claim", "digest_of", "pipe_identity", "run_grid"]

#: What the unguided picture of a row depends on, beside the model.
_BASE = ("prompt", "seed", "guidance_scale", "steps", "height", "width")


def run_grid(
    pipe: Any, how: dict[str, Any], grid: list[dict[str, Any]], out: Path, with_rivals: bool = False
) -> dict[str, Any]:
    """One guided picture a row of the grid, beside the unguided one of the same noise.

    Args:
        pipe: the pipeline.
        how: settings common to all rows: bank, strength, schedule, window, topk, mode, steps, seed, height, width, prompt,
            guidance_scale (or ``call``, the arguments that replace both), and reference_prompt where there is one.
        grid: what each row changes.
        out: folder; finished rows are kept, rows made with other settings are refused.
        with_rivals: also draw what each row competes with (:func:`draw_rivals`).
    """
    out.mkdir(parents=True, exist_ok=True)
    rows, model = [], pipe_identity(pipe)
    for change in grid:
        row = how | change
        label = _label(change)
        asked = {k: v for k, v in row.items() if k not in ("bank", "call")}
        asked |= {"bank": row["bank"].digest, "call": digest_of(row.get("call")), "pipe": model}
        done = out / f"{label}.json"
        claim(done, asked, lambda row=row, label=label: _one(pipe, row, label, out, model))
        rows.append({k: v for k, v in json.loads(done.read_text("utf-8")).items() if k != "asked"})
        if with_rivals:
            rows[-1]["rivals"] = draw_rivals(pipe, row, out, model)
    runs.atomic_write_json(out / "run.json", {"rows": rows})
    return {"out": str(out), "rows": [{k: v for k, v in r.items() if k != "history"} for r in rows]}


def _one(pipe: Any, row: dict[str, Any], label: str, out: Path, model: dict[str, Any]) -> dict[str, Any]:
    """Draw one guided picture, and the unguided one of the same noise where it is not there yet."""
    base = _drawn(pipe, row, out, "base", _asked(row, model), lambda: _draw(pipe, row))
    guidance = _guidance(row)
    with guide(pipe, guidance):
        picture = _draw(pipe, row)
    picture.save(out / f"{label}.png")
    nearest, distance = _nearest(pipe, picture, row)
    files = {"picture": f"{label}.png", "base": base["picture"]}
    if row["bank"].thumbnails is not None:
        files["nearest picture"] = f"{label}-nearest.png"
        Image.fromarray(row["bank"].thumbnails[nearest].numpy()).save(out / files["nearest picture"])
    return files | {
        "settings": guidance.settings() | {"steps": row["steps"], "seed": row["seed"]},
        "nearest": row["bank"].names[nearest],
        "distance": distance,
        "base distance": base["distance"],
        "guided steps": len(guidance.history),
        "history": [h.to_json() for h in guidance.history],
    }


def draw_rivals(pipe: Any, row: dict[str, Any], out: Path, model: dict[str, Any]) -> dict[str, Any]:
    """What the guided picture of a row competes with; by name the picture and its distance to the nearest reference.

    ``words`` (the reference prompt added to the prompt), ``latent average`` (guidance by the plain mean of the set), ``copy``
    (a reference itself), ``image conditioning`` (up to four references shown to the pipeline) and ``image to image`` (SDEdit
    of a reference). A rival that the pipeline does not offer is left out.
    """
    bank: ReferenceBank = row["bank"]
    picked = [(row["seed"] + i) % len(bank) for i in range(min(4, len(bank)))]
    pictures = [rivals.reference_picture(pipe, bank, i) for i in picked]
    makers: dict[str, Callable[[], Image.Image]] = {"copy": lambda: pictures[0]}
    if row.get("reference_prompt") and row.get("prompt"):
        said = row | {"prompt": f"{row['prompt']}, {row['reference_prompt']}"}
        makers["words"] = lambda: _draw(pipe, said)
    makers["latent average"] = lambda: _averaged(pipe, row)
    if rivals.takes_pictures(pipe):
        makers["image conditioning"] = lambda: rivals.conditioned(pipe, pictures, **_call(row))
    if type(pipe).__name__ in rivals.IMAGE_TO_IMAGE:
        for s in rivals.STRENGTHS:
            makers[f"image to image {s:g}"] = lambda s=s: rivals.image_to_image(pipe, pictures[0], s, **_call(row))
    asked = _asked(row, model) | {"bank": bank.digest}
    asked |= {k: row[k] for k in ("strength", "schedule", "window", "mode", "reference_prompt") if k in row}
    found = {}
    for name, make in makers.items():
        found[name] = _drawn(pipe, row, out, name.replace(" ", "-"), asked | {"rival": name}, make)
    return found


def _drawn(
    pipe: Any, row: dict[str, Any], out: Path, name: str, asked: dict[str, Any], make: Callable[[], Image.Image]
) -> dict[str, Any]:
    """A picture of this name and its distance to the bank of the row; drawn once for what it depends on."""
    path = out / f"{name}-{digest_of(asked)[:12]}.png"
    claim(path.with_suffix(".json"), asked, lambda: {"picture": make().save(path) or path.name})
    return {"picture": path.name, "distance": _nearest(pipe, Image.open(path), row)[1]}


def _asked(row: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    return {k: row[k] for k in _BASE if k in row} | {"call": digest_of(row.get("call")), "pipe": model}


def _guidance(row: dict[str, Any], **other: Any) -> ReferenceMeanGuidance:
    options = {"topk": row["topk"], "mode": row["mode"]} | other
    return ReferenceMeanGuidance(row["bank"], row["strength"], row["schedule"], tuple(row["window"]), **options)


def _averaged(pipe: Any, row: dict[str, Any]) -> Image.Image:
    with guide(pipe, _guidance(row, topk=None, temperature=1e12)):
        return _draw(pipe, row)


def _call(row: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call of the pipeline; its noise is seeded anew each time."""
    call = {k: row[k] for k in ("height", "width")} | {"num_inference_steps": row["steps"]}
    call |= row.get("call") or {"prompt": row.get("prompt", ""), "guidance_scale": row["guidance_scale"]}
    return call | {"generator": torch.Generator().manual_seed(row["seed"])}


def _draw(pipe: Any, row: dict[str, Any]) -> Image.Image:
    return pipe(**_call(row)).images[0]


def _nearest(pipe: Any, picture: Image.Image, row: dict[str, Any]) -> tuple[int, float]:
    """Index of and distance to the reference nearest to a picture, in latents."""
    one = ReferenceBank.from_images(pipe, [picture], row["height"], row["width"], fit="stretch")
    index, distance = row["bank"].nearest(one.latents.float())
    return int(index[0]), float(distance[0])


def _label(change: dict[str, Any]) -> str:
    """File name of a row: what it changes; words in short."""
    parts = (f"{k}-{v}" for k, v in change.items() if k != "bank")
    return "-".join(p.replace(" ", "_").replace("/", "_") for p in parts) or "guided"


def claim(done: Path, asked: dict[str, Any], make: Callable[[], dict[str, Any]]) -> None:
    """Make what ``done`` describes unless it is there; refuse what was made from anything else.

    Raises:
        ValueError: the folder holds the work of other settings.
    """
    asked = json.loads(json.dumps(asked, default=str))
    found = _recorded(done) if done.exists() else None
    if found is not None and (theirs := found["asked"]) != asked:
        other = sorted(k for k in asked.keys() | theirs.keys() if asked.get(k) != theirs.get(k))
        raise ValueError(f"out: {done} was made with other settings ({', '.join(other)}); choose another folder")
    files = [] if found is None else [found[k] for k in ("picture", "base", "nearest picture", "file") if k in found]
    if found is None or not all((done.parent / f).exists() for f in files):
        runs.atomic_write_json(done, {"asked": asked} | make())


def _recorded(done: Path) -> dict[str, Any]:
    """What a finished row says of itself."""
    try:
        found = json.loads(done.read_text("utf-8"))
        if isinstance(found["asked"], dict):
            return found
    except (ValueError, TypeError, KeyError):
        pass
    raise ValueError(f"out: {done} is damaged; delete it, and it is made again")


def pipe_identity(pipe: Any) -> dict[str, Any]:
    """What tells one pipeline from another: class, latent space, weights of its networks, noise schedule."""
    parts = {k: v for k, v in pipe.components.items() if isinstance(v, torch.nn.Module) and k != "vae"}
    schedule = {k: v for k, v in dict(pipe.scheduler.config).items() if not k.startswith("_")}
    return {
        "class": type(pipe).__name__, "space": layout_for(pipe).fingerprint(pipe),
        "networks": {name: module_digest(part) for name, part in sorted(parts.items())}, "schedule": digest_of(schedule),
    }  # fmt: skip


def digest_of(value: Any) -> str:
    """Digest of settings that may hold tensors."""
    found = hashlib.sha256()
    if isinstance(value, torch.Tensor):
        found.update(value.detach().float().cpu().numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value):
            found.update(f"{key}:{digest_of(value[key])}".encode())
    elif isinstance(value, (list, tuple)):
        for part in value:
            found.update(digest_of(part).encode())
    else:
        found.update(repr(value).encode())
    return found.hexdigest()[:32]

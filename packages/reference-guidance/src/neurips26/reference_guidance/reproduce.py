"""The authors' released FLUX.2 experiments, resolved from their configuration and run on any pipeline that takes prompts.

Each draws the base picture and guided ones from the same noise, builds its references with the pipeline itself (or from
a folder), and keeps, beside the pictures, what guidance did in every step and the nearest reference.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from neurips26.reference_guidance.author_runs import released
from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.grid import claim, digest_of, pipe_identity, run_grid
from neurips26.shared.arrays import check_choice, check_int

__all__ = ["load_pipeline", "run_released"]


def load_pipeline(name: str, dtype: torch.dtype | None = None) -> Any:
    """A pipeline by folder, hub id or ``tiny:NAME`` (random weights, nothing downloaded).

    Raises:
        ValueError: it is neither in a folder nor in the hub's cache, and the hub cannot be reached.
    """
    if name.startswith("tiny:"):
        from neurips26.reference_guidance.tiny import TINY, tiny_pipeline

        check_choice(name, "pipe", [f"tiny:{known}" for known in TINY])
        return tiny_pipeline(name.removeprefix("tiny:"))
    from diffusers import DiffusionPipeline

    try:
        return DiffusionPipeline.from_pretrained(name, torch_dtype=dtype)
    except (OSError, ValueError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0][:200]
        raise ValueError(
            f"pipe: cannot load {name!r}: no such folder with a model_index.json, not in the hub's cache, and the hub "
            f"gave no answer ({first})"
        ) from error


def run_released(
    name: str,
    pipe: Any,
    out: Path,
    *,
    size: int = 0,
    steps: int = 0,
    references: int = 0,
    seed: int | None = None,
    with_rivals: bool = False,
) -> dict[str, Any]:
    """Run a released experiment.

    Args:
        name: of the experiment.
        pipe: a pipeline that takes prompts.
        out: folder of the run; what is finished there is not made again.
        size, steps, references: smaller values than the released ones, for a rehearsal; 0 keeps them.
        seed: of the noise; the released one by default.
        with_rivals: also draw what the set competes with.

    Returns:
        one row a picture: its file, settings, distance to and name of the nearest reference.
    """
    how = released(name)
    for key, value in {"size": size, "steps": steps, "references": references}.items():
        check_int(value, key, minimum=0)
    how |= {k: v for k, v in {"height": size, "width": size, "steps": steps, "references": references}.items() if v}
    # their noise is seeded with seed + 7 and their references with reference_seed + 1000 + i
    how["seed"] = (how["seed"] if seed is None else seed) + 7
    grid: list[dict[str, Any]] = [{}]
    if "fractions" in how:
        source, target = (_bank(pipe, how, out, how[k]) for k in ("source_prompt", "target_prompt"))
        grid = [{"fraction": f, "bank": source.mix(target, f)} for f in how["fractions"]]
    elif "prompts" in how:
        banks = {r: _bank(pipe, how, out, r) for r in how["reference_prompts"]}
        pairs = itertools.product(how["prompts"], banks)
        grid = [{"prompt": p, "reference_prompt": r, "bank": banks[r]} for p, r in pairs]
    else:
        how["bank"] = bank = _bank(pipe, how, out, how.get("reference_prompt", ""))
        if "schedules" in how:
            grid = [{"schedule": a, "strength": b} for a, b in itertools.product(how["schedules"], how["strengths"])]
        elif "steps_values" in how:
            values = [steps] if steps else how["steps_values"]
            grid = [{"steps": a, "strength": b} for a, b in itertools.product(values, how["strengths"])]
        elif "sizes" in how:
            grid = [{"bank": bank.subset(list(range(m))), "references": m} for m in how["sizes"] if m <= len(bank)]
    return run_grid(pipe, how, grid, out, with_rivals)


def _bank(pipe: Any, how: dict[str, Any], out: Path, prompt: str) -> ReferenceBank:
    """The references of an experiment, drawn from one prompt or read from its folder, made once and kept with the run."""
    size = {"height": how["height"], "width": how["width"]}
    folder = how.get("reference_images", "")
    asked = size | {"prompt": prompt, "images": folder, "pipe": pipe_identity(pipe)}
    if not folder:
        asked |= {"references": how["references"], "seed": how["reference_seed"], "steps": how["steps"]}
    path = out / f"references-{digest_of(asked)[:12]}.safetensors"

    def make() -> dict[str, Any]:
        if folder:
            bank = ReferenceBank.from_images(pipe, Path(folder), **size)
        else:
            call = {"num_inference_steps": how["steps"], "guidance_scale": how["guidance_scale"]}
            bank = ReferenceBank.from_prompts(pipe, [prompt] * how["references"], how["reference_seed"], **call, **size)
        bank.save(path)
        return {"file": path.name, "references": len(bank)}

    out.mkdir(parents=True, exist_ok=True)
    claim(path.with_suffix(".json"), asked, make)
    return ReferenceBank.load(path)

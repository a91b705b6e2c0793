"""The authors' AFHQv2 runs: photographs become latents of a bare VAE, SPG or its DiT is trained on them and sampled.

Everything a run makes stays in its folder, and a run that was stopped goes on there: latents of each species, the
checkpoint, the model, the pictures of each set, and the decoded photographs that the pictures are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from neurips26.reference_guidance import afhq_report
from neurips26.reference_guidance.author_runs import afhq
from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.bridge import euler_sample
from neurips26.reference_guidance.images import list_images
from neurips26.reference_guidance.layouts import LatentSpace
from neurips26.shared import runs

__all__ = ["run_afhq"]

#: Pictures drawn and decoded at a time.
_BATCH = 50


def run_afhq(
    name: str, images: Path, out: Path, device: str = "cpu", download: bool = False, **smaller: Any
) -> dict[str, Any]:
    """Train, sample and measure.

    Args:
        name: of the run.
        images: folder with the folders ``cat`` and ``dog`` of photographs.
        out: folder of the run; runs of one model share it.
        device: of VAE and model.
        download: fetch what the measures need (Inception, AlexNet) where it is not on this machine.
        smaller: other values than the released ones, for a rehearsal; 0 and "" keep them.

    Returns:
        by set the folder of its pictures, FID, KID and LPIPS diversity, and the nearest references of its first samples.
    """
    how = afhq(name) | {k: v for k, v in smaller.items() if v}
    for species in ("cat", "dog"):
        if not list_images(Path(images) / species):
            raise ValueError(f"images: expected photographs in {Path(images) / species}, got none")
    space = LatentSpace(_vae(how["vae"]).to(device).eval(), how["scaling"])
    banks = {species: _latents(space, Path(images) / species, out, how["side"]) for species in ("cat", "dog")}
    both = banks["cat"].concat(banks["dog"])
    model = _trained(both, out, device, how)
    photographs = out / "photographs"
    _write(photographs, len(both), lambda i, n: _decoded(space, both.latents[i : i + n], device))
    sets, sample = _sets(how, banks, both), _sampler(model, how, device)
    folders = {label: out / how["model"] / f"pictures-{label}" for label in sets}
    rows = {label: afhq_report.rows_of(bank, both) for label, bank in sets.items()}
    for label, bank in sets.items():
        _write(folders[label], how["samples"], lambda i, n, bank=bank: _decoded(space, sample(bank, i, n), device))
    measures, features = afhq_report.measures(folders, photographs, rows, device, download)
    files, nearest = list_images(photographs), {}
    for label, bank in sets.items():
        first = sample(bank, 0, min(_BATCH, how["samples"]))[: afhq_report.SHOWN].cpu()
        pair = (features[label], features["photographs"][rows[label]]) if label in features else None
        of_set, path = [files[i] for i in rows[label]], out / how["model"] / f"nearest-{label}.png"
        nearest[label] = afhq_report.nearest_sheet(path, first, folders[label], bank, of_set, pair)
    shown = {"photographs": str(photographs)} | {label: str(folder) for label, folder in folders.items()}
    found = {"folders": shown, "measures": measures, "nearest": nearest}
    runs.atomic_write_json(out / f"{name}.json", {"settings": how} | found)
    return found


def _sampler(model: Any, how: dict[str, Any], device: str) -> Callable[[ReferenceBank, int, int], Tensor]:
    """Latents ``start`` to ``start + n`` under a set: each block has noise of its own seed, the same for every set."""
    from neurips26.reference_guidance.spg_pipeline import SPGPipeline

    pipe = None if how["model"] == "dit" else SPGPipeline(model)

    def sample(bank: ReferenceBank, start: int, n: int) -> Tensor:
        g = torch.Generator().manual_seed(how["seed"] * 1_000_003 + start)
        noise = torch.randn(n, *bank.latents.shape[1:], generator=g)
        if pipe is not None:
            return pipe(n, bank, how["sampling_steps"], latents=noise)
        return euler_sample(model, noise.to(device), how["sampling_steps"])

    return sample


def _vae(name: str) -> Any:
    from diffusers import AutoencoderKL

    try:
        return AutoencoderKL.from_pretrained(name)
    except (OSError, ValueError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"vae: cannot load {name!r}: no such folder, not in the hub's cache, and the hub gave no answer ({first})"
        ) from error


def _latents(space: LatentSpace, folder: Path, out: Path, side: int) -> ReferenceBank:
    path = out / f"{folder.name}.safetensors"
    if not path.exists():
        bank = ReferenceBank.from_images(space, folder, side, side, "cover", cache=out / "parts")
        bank.save(path)
    bank = ReferenceBank.load(path)
    bank.check_pipe(space)
    return replace(bank, labels=[folder.name] * len(bank))


def _trained(bank: ReferenceBank, out: Path, device: str, how: dict[str, Any]) -> Any:
    """The model of the run, trained to the end."""
    from neurips26.reference_guidance.spg import SPG, DiTMean, SPGConfig
    from neurips26.reference_guidance.spg_train import SPGTrainer, TrainConfig

    folder = out / how["model"]
    kind = SPG if how["model"] == "spg" else DiTMean
    asked = {k: v for k, v in how.items() if k not in ("sets", "balance", "sizes", "samples", "sampling_steps")}
    known = folder / "training.json"
    if not known.exists():
        runs.atomic_write_json(known, asked)
    elif runs.read_json(known) != asked:
        raise ValueError(f"out: {known} was made with other settings; choose another folder")
    if not (folder / "model" / "config.json").exists():
        c, h, w = bank.latents.shape[1:]
        sizes = SPGConfig(c, h, w, how["patch"], how["dim"], how["depth"], how["heads"], how["anchor_heads"])
        torch.manual_seed(how["seed"])
        model = SPG.from_sizes(sizes) if kind is SPG else DiTMean.of_equal_budget(sizes)
        config = TrainConfig(
            how["steps"], how["batch"], 0, how["lr"], ema=how["ema"], dropout=how["dropout"],
            precision=how["precision"] if device.startswith("cuda") else "no", seed=how["seed"],
        )  # fmt: skip
        trainer, checkpoint = SPGTrainer(model.to(device), bank.latents.float(), config), folder / "checkpoint.pt"
        if checkpoint.exists():
            trainer.load(checkpoint)
        trainer.train(save_to=checkpoint, every=500).averaged().save_pretrained(folder / "model")
    return kind.from_pretrained(folder / "model").to(device).eval()


def _sets(how: dict[str, Any], banks: dict[str, ReferenceBank], both: ReferenceBank) -> dict[str, ReferenceBank]:
    """The reference sets of a run by label; a DiT has none and is drawn once."""
    if "balance" in how:
        return {f"cats-{share:g}": banks["dog"].mix(banks["cat"], share) for share in how["balance"]}
    if "sizes" in how:
        sizes = [m for m in how["sizes"] if m <= len(both)]
        return {f"size-{m}": banks["cat"].mix(banks["dog"], 0.5, m) for m in sizes}
    wanted = how.get("sets", {"both": ["cat", "dog"]})
    return {label: both if len(names) > 1 else banks[names[0]] for label, names in wanted.items()}


@torch.no_grad()
def _decoded(space: LatentSpace, latents: Tensor, device: str) -> Tensor:
    return space.decode(latents.to(device, space.vae.dtype)).float().cpu()


def _write(folder: Path, n: int, draw: Any) -> None:
    """``n`` pictures as numbered PNG files, drawn in blocks; blocks that are there already are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for start, size in _blocks(n):
        paths = [folder / f"{i:06d}.png" for i in range(start, start + size)]
        if all(p.exists() for p in paths):
            continue
        pixels = ((draw(start, size).clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
        for path, picture in zip(paths, pixels):
            Image.fromarray(picture).save(path)


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, _BATCH):
        yield start, min(_BATCH, n - start)

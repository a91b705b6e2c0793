"""Verbs of ``neurips26 reference-guidance``: banks, guided pictures, sweeps, released experiments, SPG, demonstrations."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

__all__ = ["main"]


@dataclass(frozen=True)
class BankBuild:
    """Encode a folder of images into a bank for one pipeline; an interrupted build continues."""

    pipe: str
    """Pipeline: a local folder, a hub id, or tiny:NAME (random weights, no download)."""
    images: Path
    """Folder of images."""
    out: Path
    """Bank to write (.safetensors)."""
    height: int = 768
    width: int = 768
    fit: Literal["contain", "cover", "stretch"] = "contain"
    skip_unreadable: bool = False

    def run(self) -> dict[str, Any]:
        """Build and save."""
        from neurips26.reference_guidance.bank import ReferenceBank
        from neurips26.reference_guidance.reproduce import load_pipeline
        from neurips26.shared.progress import track

        if not self.images.is_dir():
            raise ValueError(f"images: expected a folder of images, got {str(self.images)!r}")
        on_error, parts = "skip" if self.skip_unreadable else "raise", self.out.with_suffix(".parts")
        bank = ReferenceBank.from_images(
            load_pipeline(self.pipe), self.images, self.height, self.width, self.fit, on_error=on_error,
            cache=parts, progress=lambda batches: track(batches, "encoding"),
        )  # fmt: skip
        bank.save(self.out)
        if parts.is_dir():  # they served a build that might be interrupted
            for part in parts.glob("part-*"):
                part.unlink()
            if not any(parts.iterdir()):
                parts.rmdir()
        return {"bank": str(self.out), "references": len(bank), "skipped": bank.provenance["skipped"]}


@dataclass(frozen=True)
class BankInfo:
    """What a bank holds; its checksum is compared."""

    bank: Path

    def run(self) -> dict[str, Any]:
        """Describe."""
        from neurips26.reference_guidance.bank import ReferenceBank

        bank = ReferenceBank.load(self.bank)
        shape = list(bank.latents.shape)
        return {"references": len(bank), "shape": shape, "fingerprint": bank.fingerprint, "names": bank.names}


@dataclass(frozen=True)
class BankMix:
    """A bank of which FRACTION comes from the second one."""

    first: Path
    second: Path
    out: Path
    fraction: float = 0.5
    size: int = 0
    """References of the mixed bank; 0 takes the size of the smaller one."""

    def run(self) -> dict[str, Any]:
        """Mix and save."""
        from neurips26.reference_guidance.bank import ReferenceBank

        first, second = ReferenceBank.load(self.first), ReferenceBank.load(self.second)
        bank = first.mix(second, self.fraction, self.size or None)
        theirs = round(self.fraction * len(bank))
        counts = {"of the first": len(bank) - theirs, "of the second": theirs}
        return {"bank": str(bank.save(self.out)), "references": len(bank)} | counts


@dataclass(frozen=True)
class Drawing:
    """What pictures of one bank have in common."""

    pipe: str
    bank: Path
    out: Path
    prompt: str = ""
    topk: int = 4
    mode: Literal["in_step", "released", "released_first"] = "in_step"
    steps: int = 50
    guidance_scale: float = 3.5
    """Of the pipeline (classifier-free guidance); distilled models ignore it."""
    seed: int = 0
    device: str = "cpu"
    rivals: bool = False
    """Also draw what the references compete with: a copy, their plain average, and the pipeline's own use of pictures."""


@dataclass(frozen=True)
class Generate(Drawing):
    """One picture without and one with the references, from the same noise, with what guidance did in every step."""

    strength: float = 0.5
    schedule: Literal["quadratic", "bell", "constant"] = "quadratic"

    def run(self) -> dict[str, Any]:
        """Generate; finished pictures are kept."""
        return _grid(self, {"strength": self.strength, "schedule": self.schedule}, [{}])


@dataclass(frozen=True)
class Sweep(Drawing):
    """A picture for every combination of strengths, schedules and numbers of steps; finished pictures are kept."""

    strengths: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    schedules: tuple[Literal["quadratic", "bell", "constant"], ...] = ("quadratic",)
    numbers_of_steps: tuple[int, ...] = ()
    """By default the one number of --steps."""
    sizes: tuple[int, ...] = ()
    """Numbers of references, the first of the bank; by default all."""

    def run(self) -> dict[str, Any]:
        """Sweep."""
        values = {
            "strength": self.strengths, "schedule": self.schedules, "steps": self.numbers_of_steps or (self.steps,),
            "references": self.sizes or (0,),
        }  # fmt: skip
        for name in ("strengths", "schedules"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one, got none")
        return _grid(self, {}, [dict(zip(values, row)) for row in itertools.product(*values.values())])


@dataclass(frozen=True)
class Reproduce:
    """Run one of the authors' FLUX.2 experiments, or one of their AFHQv2 runs (see `released`).

    Smaller values make a rehearsal of it; 0 keeps the released ones.
    """

    name: Annotated[str, tyro.conf.Positional]
    out: Path = Path("reproduced")
    pipe: str = ""
    """By default the released model; for AFHQv2 the VAE."""
    size: int = 0
    steps: int = 0
    references: int = 0
    rivals: bool = False
    """FLUX.2: also draw what the references compete with (words, a copy, their average, the pipeline's use of pictures)."""
    images: Path | None = None
    """AFHQv2: folder with the folders cat and dog of photographs."""
    samples: int = 0
    """AFHQv2: pictures a set."""
    batch: int = 0
    """AFHQv2: of the training, as dim and depth."""
    dim: int = 0
    depth: int = 0
    download: bool = False
    """AFHQv2: fetch the networks of the measures (Inception 91 MB, AlexNet 233 MB) where they are not on this machine."""
    device: str = "cpu"

    def run(self) -> dict[str, Any]:
        """Run."""
        import torch

        from neurips26.reference_guidance import reproduce
        from neurips26.reference_guidance.afhq import run_afhq
        from neurips26.reference_guidance.author_runs import released

        if self.name.startswith("afhq"):
            _check_device(self.device)
            if self.images is None:
                raise ValueError("images: expected the folder of AFHQv2's train split (folders cat and dog), got none")
            return run_afhq(
                self.name, self.images, self.out / "afhq", self.device, self.download, vae=self.pipe, side=self.size,
                steps=self.steps, samples=self.samples, batch=self.batch, dim=self.dim, depth=self.depth,
            )  # fmt: skip
        how = released(self.name)
        dtype = torch.bfloat16 if self.device.startswith("cuda") else None
        _check_device(self.device)
        if self.pipe.startswith("tiny:"):
            raise ValueError(
                f"pipe: expected one that takes prompts, got {self.pipe!r}, which has no text encoder "
                "(save_tiny_klein writes a tiny one that has)"
            )
        pipe = reproduce.load_pipeline(self.pipe or how["model"], dtype).to(self.device)
        return reproduce.run_released(
            self.name, pipe, self.out / self.name, size=self.size, steps=self.steps, references=self.references,
            with_rivals=self.rivals,
        )  # fmt: skip


@dataclass(frozen=True)
class Released:
    """The authors' experiments as configurations; with a name, one of them resolved."""

    name: Annotated[str, tyro.conf.Positional] = ""

    def run(self) -> dict[str, Any]:
        """List or show."""
        from neurips26.reference_guidance.author_runs import afhq, released

        if not self.name:
            return {"experiments": released()["experiments"] + afhq()["experiments"]}
        return afhq(self.name) if self.name.startswith("afhq") else released(self.name)


@dataclass(frozen=True)
class SpgTrain:
    """Train a semi-parametric generator, or its DiT baseline, on a bank of latents; a killed run continues."""

    out: Path
    latents: Path | None = None
    """A bank (.safetensors) whose latents (n, c, h, w) are the training set; by default scikit-learn's digits."""
    model: Literal["spg", "dit"] = "spg"
    steps: int = 10_000
    batch: int = 64
    bank: int = 0
    """References drawn a step; 0 takes the whole training set."""
    lr: float = 1e-4
    patch: int = 0
    """Sizes of the model: 0 takes the authors' 2, 768, 11, 12, 8, or 4, 64, 3, 4, 1 for digits."""
    dim: int = 0
    depth: int = 0
    heads: int = 0
    anchor_heads: int = 0
    precision: Literal["no", "bf16", "fp16"] = "no"
    seed: int = 0
    every: int = 500
    """Steps between checkpoints."""

    def run(self) -> dict[str, Any]:
        """Train."""
        import torch

        from neurips26.reference_guidance.bank import ReferenceBank
        from neurips26.reference_guidance.spg import SPG, DiTMean, SPGConfig
        from neurips26.reference_guidance.spg_train import SPGTrainer, TrainConfig
        from neurips26.reference_guidance.toys import digits
        from neurips26.shared.arrays import check_int
        from neurips26.shared.progress import track

        check_int(self.every, "every", minimum=1)
        data = digits().images if self.latents is None else ReferenceBank.load(self.latents).latents
        if data.ndim != 4:
            raise ValueError(f"latents: expected (n, c, h, w), got {tuple(data.shape)}")
        asked = (self.patch, self.dim, self.depth, self.heads, self.anchor_heads)
        usual = (4, 64, 3, 4, 1) if self.latents is None else (2, 768, 11, 12, 8)
        sizes = SPGConfig(*data.shape[1:], *(a or b for a, b in zip(asked, usual)))
        torch.manual_seed(self.seed)
        model = SPG.from_sizes(sizes) if self.model == "spg" else DiTMean.of_equal_budget(sizes)
        config = TrainConfig(self.steps, self.batch, self.bank, self.lr, precision=self.precision, seed=self.seed)
        trainer, checkpoint = SPGTrainer(model, data.float(), config), self.out / "checkpoint.pt"
        if checkpoint.exists():
            trainer.load(checkpoint)
        ends = range(min(trainer.step + self.every, self.steps), self.steps + self.every, self.every)
        for end in track(ends, "training") if trainer.step < self.steps else ():
            trainer.train(min(end, self.steps), save_to=checkpoint)
        trainer.averaged().save_pretrained(self.out / "model")
        last = trainer.losses[-50:]
        return {
            "model": str(self.out / "model"), "steps": trainer.step, "loss": sum(last) / len(last), "skipped": trainer.skipped
        }  # fmt: skip


@dataclass(frozen=True)
class SpgSample:
    """Latents drawn by a trained generator under any reference set, saved as a bank."""

    model: Path
    bank: Path
    out: Path
    n: int = 16
    steps: int = 20
    seed: int = 0

    def run(self) -> dict[str, Any]:
        """Sample."""
        from neurips26.reference_guidance.bank import ReferenceBank

        x = self.draw()
        return {"samples": str(ReferenceBank.from_latents(x).save(self.out)), "n": len(x)}

    def draw(self) -> Any:
        """The samples."""
        import torch

        from neurips26.reference_guidance.bank import ReferenceBank
        from neurips26.reference_guidance.spg import SPG, DiTMean, euler_sample
        from neurips26.reference_guidance.spg_pipeline import SPGPipeline
        from neurips26.shared.arrays import check_int

        for name in ("n", "steps"):
            check_int(getattr(self, name), name, minimum=1)
        bank, generator = ReferenceBank.load(self.bank), torch.Generator().manual_seed(self.seed)
        if self._class_of_model() == "SPG":
            return SPGPipeline(SPG.from_pretrained(self.model).eval())(self.n, bank, self.steps, generator)
        model = DiTMean.from_pretrained(
            self.model
        ).eval()  # draws without a set; the bank is what it is measured against
        shape = tuple(bank.latents.shape[1:])
        trained = tuple(model.config[k] for k in ("channels", "height", "width"))
        if shape != trained:
            raise ValueError(f"bank: expected latents of shape {trained} as the model's, got {shape}")
        return euler_sample(model, torch.randn(self.n, *shape, generator=generator), self.steps)

    def _class_of_model(self) -> str:
        path, found = self.model / "config.json", "no config.json"
        if path.exists():
            found = json.loads(path.read_text("utf-8")).get("_class_name", "a config.json of something else")
        if found not in ("SPG", "DiTMean"):
            raise ValueError(f"model: expected a folder that spg-train wrote, got {str(self.model)!r} ({found})")
        return found


@dataclass(frozen=True)
class SpgEval(SpgSample):
    """Frechet and kernel distance of samples to the reference set, and how close they lie to single references.

    Distances are taken in latent space: none of them is an FID.
    """

    n: int = 500

    def run(self) -> dict[str, Any]:
        """Sample and measure."""
        from neurips26.reference_guidance.bank import ReferenceBank
        from neurips26.reference_guidance.metrics import copy_distance, frechet_distance, kernel_distance
        from neurips26.shared.arrays import check_int

        bank = ReferenceBank.load(self.bank)
        for name, count in (("n", self.n), ("references of the bank", len(bank))):
            check_int(count, name, minimum=2)  # a distance between distributions needs two of either
        x = self.draw()
        ReferenceBank.from_latents(x).save(self.out)
        real = bank.latents.float()
        return {
            "frechet": frechet_distance(real, x), "kernel": kernel_distance(real, x), "nearest": copy_distance(x, bank)
        }  # fmt: skip


@dataclass(frozen=True)
class Demo:
    """Train a small flow on real data and draw what references do to it (moons needs no training)."""

    what: Annotated[Literal["moons", "digits", "faces"], tyro.conf.Positional]
    out: Path = Path("demo")
    seed: int = 0

    def run(self) -> dict[str, Any]:
        """Draw."""
        from neurips26.reference_guidance import pictures
        from neurips26.shared import data

        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.what}.png"
        if self.what == "moons":
            pictures.moon_fields(path, self.seed)
        elif self.what == "digits":
            from neurips26.reference_guidance.digit_experiments import digit_flow

            pictures.digit_sheets(path, self.out / "digits-steps.png", digit_flow(self.seed), self.seed)
        else:
            pictures.face_sheet(path, data.require("reference-guidance", "olivetti_faces_64.npz"), self.seed)
        return {"picture": str(path)}


def _grid(how: Drawing, common: dict[str, Any], grid: list[dict[str, Any]]) -> dict[str, Any]:
    """Pictures of a grid of settings under one bank."""
    from neurips26.reference_guidance.bank import ReferenceBank
    from neurips26.reference_guidance.grid import run_grid
    from neurips26.reference_guidance.reproduce import load_pipeline
    from neurips26.shared.arrays import check_int, check_real

    _check_device(how.device)
    check_real(how.guidance_scale, "guidance-scale")
    check_int(how.seed, "seed", minimum=0, maximum=2**63 - 1)
    if how.pipe.startswith("tiny:") and how.prompt:
        raise ValueError(
            f"prompt: expected none with {how.pipe!r}, which has no text encoder (save_tiny_klein writes a tiny one that has)"
        )
    bank = ReferenceBank.load(how.bank)
    if bank.size is None:
        raise ValueError(f"bank: {how.bank} does not know the size of its pictures; make it with bank-build")
    for row in grid:
        check_int(row.get("steps", how.steps), "steps", minimum=1)
        check_int(row.get("references", 0), "sizes", minimum=0, maximum=len(bank))
    pipe = load_pipeline(how.pipe).to(how.device)
    bank.check_pipe(pipe)
    height, width = bank.size
    row: dict[str, Any] = common | {
        "bank": bank, "window": (0.0, 0.95), "topk": how.topk, "mode": how.mode, "steps": how.steps,
        "guidance_scale": how.guidance_scale, "prompt": how.prompt, "seed": how.seed, "height": height, "width": width,
        "call": _embeddings(how.pipe, how.guidance_scale),
    }  # fmt: skip
    for change in grid:
        m = change.pop("references", 0)
        if m:
            change |= {"references": m, "bank": bank.subset(list(range(m)))}
    return run_grid(pipe, row, grid, how.out, how.rivals)


def _check_device(name: str) -> None:
    """Say it before the model is loaded where the device does not exist."""
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ValueError(f"device: expected cpu, cuda, cuda:N or mps, got {name!r}") from error
    if kind not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device: expected cpu, cuda, cuda:N or mps, got {name!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: expected a device of this machine, got {name!r}: it has no CUDA device")


def _embeddings(pipe: str, guidance_scale: float) -> dict[str, Any] | None:
    """``tiny:NAME`` has no text encoder: it is given embeddings instead of a prompt."""
    if not pipe.startswith("tiny:"):
        return None
    from neurips26.reference_guidance.tiny import tiny_call

    call = tiny_call(pipe.removeprefix("tiny:"), guidance_scale=guidance_scale, output_type="pil")
    return {k: v for k, v in call.items() if k not in ("generator", "num_inference_steps", "height", "width")}


VERBS = {
    "bank-build": BankBuild, "bank-info": BankInfo, "bank-mix": BankMix, "generate": Generate, "sweep": Sweep,
    "released": Released, "reproduce": Reproduce, "spg-train": SpgTrain, "spg-sample": SpgSample, "spg-eval": SpgEval,
    "demo": Demo,
}  # fmt: skip


def main(argv: list[str]) -> int:
    """Run one verb; errors of the package become one line."""
    verb = tyro.extras.subcommand_cli_from_dict(VERBS, args=argv, prog="neurips26 reference-guidance")
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            print(json.dumps(verb.run(), indent=1))
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


def _warn(message: Warning | str, *_args: Any, **_options: Any) -> None:
    """A warning as one line; the source line behind it says nothing to who typed a command."""
    print(f"warning: {message}", file=sys.stderr)

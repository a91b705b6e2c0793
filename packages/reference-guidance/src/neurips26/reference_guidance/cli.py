"""Verbs of ``neurips26 reference-guidance``: build a bank, generate with it, list and resolve the released experiments."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

__all__ = ["main"]

CONFIGS = Path(__file__).parent / "configs" / "released.toml"


@dataclass(frozen=True)
class BankBuild:
    """Encode a folder of images into a bank for one pipeline."""

    pipe: str
    """Pipeline: a local folder, a hub id, or tiny:NAME (random weights, no download)."""
    images: Path
    """Folder of images."""
    out: Path
    """Bank to write (.safetensors)."""
    height: int = 768
    width: int = 768
    skip_unreadable: bool = False

    def run(self) -> dict[str, Any]:
        """Build and save."""
        from neurips26.reference_guidance.bank import ReferenceBank

        on_error = "skip" if self.skip_unreadable else "raise"
        pipe = load_pipeline(self.pipe)
        bank = ReferenceBank.from_images(
            pipe, self.images, self.height, self.width, on_error=on_error, cache=self.out.with_suffix(".parts")
        )
        return {"bank": str(bank.save(self.out)), "references": len(bank), "skipped": bank.provenance["skipped"]}


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
class Generate:
    """One picture without and one with the references, from the same noise, with what guidance did in every step."""

    pipe: str
    bank: Path
    out: Path
    prompt: str = ""
    strength: float = 0.5
    schedule: str = "quadratic"
    topk: int = 4
    mode: str = "in_step"
    steps: int = 50
    seed: int = 0
    device: str = "cpu"

    def run(self) -> dict[str, Any]:
        """Generate; finished pictures are kept."""
        from neurips26.reference_guidance.bank import ReferenceBank
        from neurips26.reference_guidance.guidance import ReferenceMeanGuidance
        from neurips26.reference_guidance.schedulers import guide

        done = self.out / "run.json"
        if done.exists():
            return json.loads(done.read_text())
        import torch

        pipe, bank = load_pipeline(self.pipe).to(self.device), ReferenceBank.load(self.bank)
        guidance = ReferenceMeanGuidance(bank, self.strength, self.schedule, topk=self.topk, mode=self.mode)
        height, width = bank.size or (768, 768)
        call = _call(self.pipe, self.prompt, self.steps, height, width)

        def draw() -> Any:
            return pipe(**call, generator=torch.Generator().manual_seed(self.seed)).images[0]

        self.out.mkdir(parents=True, exist_ok=True)
        draw().save(self.out / "base.png")
        with guide(pipe, guidance):
            draw().save(self.out / "guided.png")
        found = {"settings": guidance.settings(), "steps": [h.to_json() for h in guidance.history]}
        done.write_text(json.dumps(found, indent=1))
        return found


@dataclass(frozen=True)
class Released:
    """The authors' experiments as configurations; with a name, one of them resolved."""

    name: Annotated[str, tyro.conf.Positional] = ""

    def run(self) -> dict[str, Any]:
        """List or show."""
        configs = tomllib.loads(CONFIGS.read_text("utf-8"))
        if not self.name:
            return {"experiments": sorted(k for k in configs if k != "defaults")}
        if self.name not in configs:
            raise ValueError(f"name: expected one of {', '.join(sorted(configs))}, got {self.name!r}")
        return configs["defaults"] | configs[self.name]


def load_pipeline(name: str) -> Any:
    """A pipeline by folder, hub id or ``tiny:NAME``."""
    if name.startswith("tiny:"):
        from neurips26.reference_guidance.tiny import tiny_pipeline

        return tiny_pipeline(name.removeprefix("tiny:"))
    from diffusers import DiffusionPipeline

    try:
        return DiffusionPipeline.from_pretrained(name)
    except OSError as error:
        raise ValueError(f"pipe: cannot load {name!r} from disk or the hub ({str(error).splitlines()[0]})") from error


def _call(pipe: str, prompt: str, steps: int, height: int, width: int) -> dict[str, Any]:
    if not pipe.startswith("tiny:"):
        return {"prompt": prompt, "num_inference_steps": steps, "height": height, "width": width}
    from neurips26.reference_guidance.tiny import tiny_call

    call = tiny_call(
        pipe.removeprefix("tiny:"), num_inference_steps=steps, height=height, width=width, output_type="pil"
    )
    call.pop("generator")
    return call


def main(argv: list[str]) -> int:
    """Run one verb; errors of the package become one line."""
    verbs = {"bank-build": BankBuild, "bank-info": BankInfo, "generate": Generate, "released": Released}
    verb = tyro.extras.subcommand_cli_from_dict(verbs, args=argv, prog="neurips26 reference-guidance")
    try:
        print(json.dumps(verb.run(), indent=1))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0

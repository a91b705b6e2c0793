"""The reference bank: latents, weights, labels, provenance, and the fingerprint of the space they live in."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from neurips26.reference_guidance.errors import BankCorruptError, BankMismatchError, EmptyBankError, ImageError
from neurips26.reference_guidance.images import (
    EXTENSIONS,
    fit_image,
    list_images,
    open_image,
    other_files,
    to_tensor_range,
)
from neurips26.reference_guidance.layouts import layout_for
from neurips26.reference_guidance.posterior import check_finite, squared_norms
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = ["ReferenceBank"]

_FORMAT = "neurips26-reference-bank-1"
_THUMBNAIL = 64
_ENCODE_BATCH = 4
#: Numbers of references that the copy check holds in float64 at a time (64 MiB).
_NEAREST_BLOCK = 1 << 23
#: Banks of at most this many numbers keep a float64 copy of themselves for sampling.
_READY = 1 << 23


@dataclass(frozen=True, eq=False)
class ReferenceBank:
    """A swappable set of references in the latent space of one pipeline (or of no pipeline at all).

    It is frozen, since what a sampler needs of it is computed once; every change gives a new bank.

    Attributes:
        latents: (m, ...) in the scheduler's shape; may be mapped from a file.
        weights: positive prior weights (m,), normalised; uniform by default.
        labels: one label a reference ("" where there is none).
        names: where each reference comes from (file name, prompt).
        thumbnails: uint8 (m, 64, 64, 3) or ``None``.
        fingerprint: layout, VAE class and digest; empty for a bank of bare latents.
        grid: (h, w) of the latent grid, or ``None`` where unknown.
        size: (height, width) of the images, or ``None``.
        provenance: how the bank was made.
    """

    latents: Tensor
    weights: Tensor | None = None
    labels: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    thumbnails: Tensor | None = None
    fingerprint: dict[str, str] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.latents, Tensor):
            raise TypeError(f"latents: expected a tensor (m, ...), got {type(self.latents).__name__}")
        m = self.latents.shape[0] if self.latents.ndim else 0
        if m == 0:
            raise EmptyBankError("latents: expected at least one reference, got 0")
        if self.latents.ndim < 2 or not self.latents.dtype.is_floating_point:
            raise ValueError(f"latents: expected floats (m, ...), got {self.latents.dtype} {tuple(self.latents.shape)}")
        if self.weights is None:
            w = torch.full((m,), 1.0 / m, dtype=torch.float64)
        else:
            w = torch.as_tensor(self.weights, dtype=torch.float64)
        if w.shape != (m,) or not torch.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
            raise ValueError(f"weights: expected {m} finite weights >= 0 with a positive sum, got {w.tolist()[:5]}")
        found = {"weights": w / w.sum(), "labels": _texts(self.labels, "labels") or [""] * m}
        found["names"] = _texts(self.names, "names") or [str(i) for i in range(m)]
        for name, value in found.items():
            object.__setattr__(self, name, value)
        for name in ("labels", "names"):
            if len(getattr(self, name)) != m:
                raise ValueError(f"{name}: expected {m}, one a reference, got {len(getattr(self, name))}")

    def __len__(self) -> int:
        return self.latents.shape[0]

    @cached_property
    def norms(self) -> Tensor:
        """``||d_i||^2`` in float64, computed once.

        Raises:
            ValueError: a reference holds numbers that are not finite.
        """
        norms = squared_norms(self.latents)
        if not torch.isfinite(norms).all():
            _check_finite(self.latents, self.names)
        return norms

    def ready(self, device: torch.device | str = "cpu") -> Tensor:
        """The latents for the reference mean: a float64 copy on ``device``, kept where it takes at most 64 MiB."""
        found = self.rows(torch.device(device))
        return self.latents if found is None else found[0].reshape(self.latents.shape)

    def rows(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Latents (m, D), their squared norms and the log prior in float64 on ``device``, made once a bank.

        ``None`` for a bank of more than 64 MiB in float64: it is streamed, and no copy of it is kept.
        """
        if device not in self._rows:
            small = self.latents.numel() <= _READY
            prior = None if self.log_prior is None else self.log_prior.to(device)
            flat = self.latents.flatten(1).to(device, torch.float64) if small else None
            self._rows[device] = None if flat is None else (flat, self.norms.to(device), prior)
        return self._rows[device]

    @cached_property
    def _rows(self) -> dict[torch.device, tuple[Tensor, Tensor, Tensor | None] | None]:
        return {}

    @cached_property
    def log_prior(self) -> Tensor | None:
        """Log prior weights, ``None`` where uniform."""
        assert self.weights is not None
        return None if bool((self.weights == self.weights[0]).all()) else self.weights.log().clamp_min(-1e300)

    # Making one ---------------------------------------------------------------------------------------------------
    @classmethod
    def from_latents(cls, latents: Tensor | np.ndarray, **fields: Any) -> ReferenceBank:
        """A bank of bare latents, e.g. of a toy flow in pixel space. Other attributes by keyword.

        Raises:
            ValueError: numbers that are not finite; the message names reference and position.
        """
        latents = torch.as_tensor(latents)
        if latents.ndim >= 1 and latents.shape[0]:
            _check_finite(latents, fields.get("names"))
        return cls(latents, **fields)

    @classmethod
    def from_images(
        cls,
        pipe: Any,
        images: Iterable[Any] | str | Path,
        height: int,
        width: int,
        fit: Literal["contain", "cover", "stretch"] = "contain",
        labels: Sequence[str] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        cache: str | Path | None = None,
        progress: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
    ) -> ReferenceBank:
        """Encode images (a folder, paths, PIL images or arrays) into the latent space of a pipeline.

        Args:
            pipe: a diffusers flow pipeline with a VAE.
            images: what to encode; a folder is read by name.
            height: pixels; rounded down to the pipeline's own multiple.
            width: pixels, likewise.
            fit: ``"contain"`` pads with black (the authors' way for folders), ``"cover"`` crops, ``"stretch"`` distorts
                (their way for generated references).
            labels: one label an image.
            on_error: ``"skip"`` leaves unreadable images out and lists them in ``provenance["skipped"]``.
            cache: folder for finished parts; an interrupted build continues there.
            progress: wraps the list of batches, e.g. with a progress bar.
        """
        if isinstance(images, (Image.Image, np.ndarray, Tensor)) or not isinstance(images, (str, Path, Iterable)):
            raise TypeError(f"images: expected a folder or a list of images, got one {type(images).__name__}")
        check_choice(on_error, "on_error", ("raise", "skip"))
        check_int(height, "height", minimum=1)
        check_int(width, "width", minimum=1)
        layout = layout_for(pipe)
        others: list[Path] = []
        if isinstance(images, (str, Path)):
            images, others = list_images(Path(images)), other_files(Path(images))
        sources = list(images)
        if labels is not None and len(labels) != len(sources):
            raise ValueError(f"labels: expected {len(sources)}, one an image, got {len(labels)}")
        multiple = 2 * getattr(pipe, "vae_scale_factor", 8)
        height, width = max(multiple, height // multiple * multiple), max(multiple, width // multiple * multiple)
        fitted, kept, skipped = _read(sources, height, width, fit, on_error)
        skipped += [{"name": str(p), "error": f"not one of {', '.join(sorted(EXTENSIONS))}"} for p in others]
        names = [_name(sources[i], i) for i in kept]
        fingerprint = layout.fingerprint(pipe)
        spatial = _encode(pipe, layout, fitted, fingerprint, Path(cache) if cache else None, progress)
        _check_finite(spatial, names)
        thumbs = np.stack([np.asarray(im.resize((_THUMBNAIL, _THUMBNAIL))) for im in fitted])
        return cls(
            layout.pack(spatial),
            labels=[labels[i] for i in kept] if labels is not None else [],
            names=names,
            thumbnails=torch.from_numpy(thumbs),
            fingerprint=fingerprint,
            grid=(spatial.shape[-2], spatial.shape[-1]),
            size=(height, width),
            provenance={"source": "images", "fit": fit, "skipped": skipped},
        )

    @classmethod
    def from_prompts(
        cls, pipe: Any, prompts: Sequence[str | Mapping[str, Any]], seed: int, height: int, width: int, **call: Any
    ) -> ReferenceBank:
        """Let the pipeline itself draw the references, one a prompt, then encode them.

        Args:
            pipe: the pipeline.
            prompts: prompts, or keyword arguments of the call (e.g. ``{"prompt_embeds": ...}``).
            seed: reference ``i`` is drawn with seed ``seed + 1000 + i``, as in the authors' code.
            height: pixels.
            width: pixels.
            call: further arguments of every call.
        """
        check_int(seed, "seed", minimum=0)
        if isinstance(prompts, str):
            raise TypeError("prompts: expected a list of prompts, got one string")
        if len(prompts) == 0:
            raise EmptyBankError("prompts: expected at least one prompt, got 0")
        device = getattr(pipe, "_execution_device", "cpu")
        images = []
        for i, prompt in enumerate(prompts):
            own = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt)
            generator = torch.Generator(device=device).manual_seed(seed + 1000 + i)
            images += pipe(**own, height=height, width=width, generator=generator, **call).images
        bank = cls.from_images(pipe, images, height, width, fit="stretch")
        text = [p if isinstance(p, str) else f"prompt {i}" for i, p in enumerate(prompts)]
        provenance = {"source": "prompts", "seed": seed, "prompts": text}
        return replace(bank, names=text if len(text) == len(bank) else bank.names, provenance=provenance)

    # Keeping one --------------------------------------------------------------------------------------------------
    def save(self, path: str | Path) -> Path:
        """Write ``path`` (safetensors, with a checksum of all that it holds in its header); atomic."""
        path = Path(path)
        if path.is_dir():
            raise IsADirectoryError(f"bank: expected a file to write, got the folder {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        latents = self.latents.detach().cpu().contiguous()
        assert self.weights is not None
        tensors = {"latents": latents, "weights": self.weights.cpu()}
        if self.thumbnails is not None:
            tensors["thumbnails"] = self.thumbnails.contiguous()
        head = {n: getattr(self, n) for n in ("labels", "names", "fingerprint", "grid", "size", "provenance")}
        header = json.dumps(head)
        meta = {"format": _FORMAT, "header": header, "sha256": _checksum(tensors, header)}
        partial = path.with_name(path.name + ".part")
        save_file(tensors, partial, metadata=meta)
        os.replace(partial, path)
        return path

    @classmethod
    def load(cls, path: str | Path, verify: bool = True) -> ReferenceBank:
        """Open a bank. The latents are mapped, not read; ``verify`` streams through them once for the checksum.

        Raises:
            BankCorruptError: truncated, altered, or not a bank.
        """
        try:
            with safe_open(path, framework="pt") as file:
                meta = file.metadata() or {}
                if meta.get("format") != _FORMAT:
                    raise BankCorruptError(f"{path}: expected a reference bank ({_FORMAT}), got {meta.get('format')}")
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
        except FileNotFoundError as error:
            raise FileNotFoundError(f"bank: no such file: {path}") from error
        except (SafetensorError, OSError) as error:
            if Path(path).is_dir():
                raise BankCorruptError(f"{path}: a folder, not a safetensors file") from error
            raise BankCorruptError(f"{path}: truncated or not a safetensors file ({error})") from error
        if verify and _checksum(tensors, meta["header"]) != meta["sha256"]:
            raise BankCorruptError(f"{path}: what it holds does not match its checksum; build the bank again")
        head = json.loads(meta["header"])
        for key in ("grid", "size"):
            head[key] = tuple(head[key]) if head[key] else None
        return cls(**tensors, **head)

    @cached_property
    def digest(self) -> str:
        """What tells this bank from every other: its latents, weights and latent space."""
        assert self.weights is not None
        both = _digest(self.latents.detach().cpu()) + _digest(self.weights.cpu()[:, None])
        return hashlib.sha256((both + json.dumps(self.fingerprint, sort_keys=True)).encode()).hexdigest()[:32]

    # Changing one -------------------------------------------------------------------------------------------------
    def subset(self, keep: Sequence[int] | Tensor | str) -> ReferenceBank:
        """References by index, boolean mask or label."""
        if isinstance(keep, str):
            if keep not in self.labels:
                raise EmptyBankError(f"keep: expected one of the labels {sorted(set(self.labels))}, got {keep!r}")
            keep = torch.tensor([label == keep for label in self.labels])
        index = torch.as_tensor(keep) if len(keep) else torch.zeros(0, dtype=torch.long)
        if index.dtype == torch.bool:
            if index.shape != (len(self),):
                raise ValueError(f"keep: expected {len(self)} booleans, one a reference, got {tuple(index.shape)}")
            index = index.nonzero().flatten()
        if index.ndim != 1 or index.is_floating_point() or index.is_complex():
            raise ValueError(f"keep: expected indices or booleans, got {index.dtype} {tuple(index.shape)}")
        if index.numel() and not -len(self) <= int(index.min()) <= int(index.max()) < len(self):
            raise ValueError(f"keep: expected indices of {len(self)} references, got {index.tolist()[:5]}")
        index = index.long()
        if index.numel() == 0:
            raise EmptyBankError("keep: expected at least one reference to be left, got 0")
        assert self.weights is not None
        rows = index.tolist()
        return replace(
            self,
            latents=self.latents[index],
            weights=self.weights[index],
            labels=[self.labels[i] for i in rows],
            names=[self.names[i] for i in rows],
            thumbnails=None if self.thumbnails is None else self.thumbnails[index],
        )

    def with_weights(self, weights: Sequence[float] | Tensor) -> ReferenceBank:
        """The same references under another prior."""
        return replace(self, weights=torch.as_tensor(weights, dtype=torch.float64))

    def concat(self, other: ReferenceBank) -> ReferenceBank:
        """Both banks as one; every reference keeps its share of its own bank times the bank's size."""
        self._same_space(other)
        assert self.weights is not None and other.weights is not None
        both = None
        if self.thumbnails is not None and other.thumbnails is not None:
            both = torch.cat([self.thumbnails, other.thumbnails])
        return replace(
            self,
            latents=torch.cat([self.latents, other.latents]),
            weights=torch.cat([self.weights * len(self), other.weights * len(other)]),
            labels=self.labels + other.labels,
            names=self.names + other.names,
            thumbnails=both,
            provenance={"source": "concat", "parts": [self.provenance, other.provenance]},
        )

    def mix(self, other: ReferenceBank, fraction: float | int, size: int | None = None) -> ReferenceBank:
        """A bank of ``size`` references, ``fraction`` of them from ``other`` (the authors' composition sweep).

        Args:
            other: the bank mixed in.
            fraction: share of ``other``, 0 to 1.
            size: number of references; by default the size of the smaller bank.
        """
        check_real(fraction, "fraction", minimum=0.0, maximum=1.0)
        self._same_space(other)
        size = min(len(self), len(other)) if size is None else check_int(size, "size", minimum=1)
        theirs = round(fraction * size)
        for bank, wanted, name in ((self, size - theirs, "self"), (other, theirs, "other")):
            if wanted > len(bank):
                raise ValueError(
                    f"size: expected at most the references of each bank, got {wanted} of {len(bank)} ({name})"
                )
        if theirs in (0, size) and 0 < fraction < 1:
            name = "other" if theirs == 0 else "self"
            warnings.warn(
                f"fraction: {fraction:g} of {size} references rounds to none of {name}; ask for more references",
                stacklevel=2,
            )
        if theirs == 0:
            return self.subset(range(size))  # type: ignore[arg-type]
        if theirs == size:
            return other.subset(range(size))  # type: ignore[arg-type]
        return self.subset(range(size - theirs)).concat(other.subset(range(theirs)))  # type: ignore[arg-type]

    def resized(self, pipe: Any, height: int, width: int) -> ReferenceBank:
        """The bank at another resolution by bilinear interpolation of latents (warns: encoding anew is better)."""
        if self.grid is None or self.size is None:
            raise BankMismatchError("grid: this bank does not know its latent grid and cannot be resized")
        check_int(height, "height", minimum=1)
        check_int(width, "width", minimum=1)
        self.check_pipe(pipe)
        factor = self.size[0] // self.grid[0]
        to = (height // factor, width // factor)
        if to == self.grid:
            return self
        warnings.warn(
            f"bank: latents resized from {self.grid} to {to}; encode the images again for sharp references",
            stacklevel=2,
        )
        latents = layout_for(pipe).resize(self.latents, self.grid, to)
        return replace(self, latents=latents, grid=to, size=(to[0] * factor, to[1] * factor))

    # Guarding one -------------------------------------------------------------------------------------------------
    def check_pipe(self, pipe: Any) -> None:
        """Refuse a pipeline whose latent space is not the bank's."""
        if not self.fingerprint:
            return
        theirs = layout_for(pipe).fingerprint(pipe)
        for key, value in self.fingerprint.items():
            if theirs.get(key) != value:
                raise BankMismatchError(
                    f"bank: made for {key} {value}, this pipeline has {theirs.get(key)} (another model, or one in half "
                    "precision); build it again"
                )

    def check_latents(self, x: Tensor) -> None:
        """Refuse samples of another shape or kind; nothing is ever broadcast.

        Precision and device may differ: references are brought to the sampler's device as they are needed.
        """
        if not x.dtype.is_floating_point or self.latents.is_meta:
            raise BankMismatchError(
                f"bank: expected latents of floats and references with values, got {x.dtype} latents and references of "
                f"{self.latents.dtype} on {self.latents.device}"
            )
        if x.shape[1:] != self.latents.shape[1:]:
            raise BankMismatchError(
                f"bank: references have shape {tuple(self.latents.shape[1:])}, the sampler's latents {tuple(x.shape[1:])}"
                " (another resolution: bank.resized(pipe, height, width))"
            )

    def check_size(self, height: int, width: int) -> None:
        """Refuse a picture of another size: in packed latents 64x96 and 96x64 have one shape, but their tokens other places."""
        if self.grid is None or self.size is None:
            return
        factor = self.size[0] // self.grid[0]
        if (height // factor, width // factor) != self.grid:
            raise BankMismatchError(
                f"bank: made for pictures of {self.size[0]}x{self.size[1]} (height x width), asked for {height}x{width} "
                "(another resolution: bank.resized(pipe, height, width))"
            )

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Index of and root-mean-square distance to the nearest reference of every sample (the copy check)."""
        self.check_latents(x)
        check_finite(x, "x")
        flat, rows = x.flatten(1).double(), max(1, _NEAREST_BLOCK // x[0].numel())
        index = torch.zeros(len(x), dtype=torch.long, device=x.device)
        least = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
        for start in range(0, len(self), rows):  # a mapped bank is never in memory at once
            block = self.latents[start : start + rows].flatten(1).to(x.device).double()
            values, best = torch.cdist(flat, block).min(1)
            index, least = torch.where(values < least, best + start, index), torch.minimum(values, least)
        return index, least / x[0].numel() ** 0.5

    def _same_space(self, other: ReferenceBank) -> None:
        if not isinstance(other, ReferenceBank):
            raise TypeError(f"other: expected a ReferenceBank, got {type(other).__name__}")
        if self.grid != other.grid and None not in (self.grid, other.grid):
            raise BankMismatchError(f"other: expected a bank with the latent grid {self.grid}, got {other.grid}")
        if self.latents.shape[1:] != other.latents.shape[1:] or self.fingerprint != other.fingerprint:
            raise BankMismatchError(
                f"other: expected a bank of shape {tuple(self.latents.shape[1:])} and the same VAE, "
                f"got {tuple(other.latents.shape[1:])}"
            )


def _name(source: Any, i: int) -> str:
    return Path(source).name if isinstance(source, (str, Path)) else f"image {i}"


def _read(
    sources: list[Any], height: int, width: int, fit: str, on_error: str
) -> tuple[list[Image.Image], list[int], list[dict[str, str]]]:
    """Pictures of one size, which of the sources they are, and what could not be read."""
    fitted, kept, skipped = [], [], []
    for i, source in enumerate(sources):
        try:
            fitted.append(fit_image(open_image(source, f"images[{i}]"), height, width, fit))
            kept.append(i)
        except ImageError as error:
            if on_error == "raise":
                raise
            name = str(source) if isinstance(source, (str, Path)) else f"image {i}"
            skipped.append({"name": name, "error": str(error)})
    if not fitted:
        raise EmptyBankError(
            f"images: expected at least one readable image ({', '.join(sorted(EXTENSIONS))}), got {len(sources)} of which 0 "
            "readable"
        )
    return fitted, kept, skipped


@torch.no_grad()
def _encode(
    pipe: Any, layout: Any, images: list[Image.Image], fingerprint: dict[str, str], cache: Path | None, progress: Any
) -> Tensor:
    """Latents of fitted images, a batch at a time; finished batches are kept in ``cache``."""
    vae = pipe.vae
    batches = [images[i : i + _ENCODE_BATCH] for i in range(0, len(images), _ENCODE_BATCH)]
    done = []
    for batch in progress(batches) if progress else batches:
        pixels = to_tensor_range(batch)
        part = None
        if cache is not None:
            key = hashlib.sha256(json.dumps(fingerprint).encode() + pixels.tobytes()).hexdigest()[:24]
            part = cache / f"part-{key}.safetensors"
            if (z := _finished_part(part)) is not None:
                done.append(z)
                continue
        device = getattr(pipe, "_execution_device", vae.device)
        z = layout.encode(pipe, torch.from_numpy(pixels).to(device, vae.dtype)).cpu()
        if part is not None and cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
            partial = part.with_suffix(".tmp")
            save_file({"latents": z.contiguous()}, partial)
            os.replace(partial, part)
        done.append(z)
    return torch.cat(done)


def _finished_part(part: Path) -> Tensor | None:
    """Latents of a batch that is done; ``None`` where there are none, or only a damaged file."""
    try:
        with safe_open(part, framework="pt") as file:
            return file.get_tensor("latents")
    except (SafetensorError, OSError):
        return None


def _texts(values: Any, name: str) -> list[str]:
    if isinstance(values, str):
        raise TypeError(f"{name}: expected a list of texts, one a reference, got one string")
    return [str(v) for v in (values.tolist() if hasattr(values, "tolist") else values)]


def _check_finite(latents: Tensor, names: Sequence[str] | None) -> None:
    for i in range(latents.shape[0]):  # row by row: a bank may be larger than memory
        bad = ~torch.isfinite(latents[i])
        if bad.any():
            where = tuple(int(j) for j in bad.nonzero()[0])
            name = f" ({names[i]})" if names else ""
            raise ValueError(
                f"latents: expected finite numbers, got {float(latents[i][where])} in reference {i}{name} at {where}"
            )


def _checksum(tensors: dict[str, Tensor], header: str) -> str:
    """SHA-256 over all that a bank's file holds."""
    parts = [f"{name}:{_digest(tensor)}" for name, tensor in sorted(tensors.items())]
    return hashlib.sha256("\n".join([*parts, header]).encode()).hexdigest()


def _digest(latents: Tensor) -> str:
    """SHA-256 over the rows, streamed: a mapped bank is never held in memory at once."""
    digest = hashlib.sha256(str((latents.dtype, tuple(latents.shape))).encode())
    for row in latents:
        digest.update(row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

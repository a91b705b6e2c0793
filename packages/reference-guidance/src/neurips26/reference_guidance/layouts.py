"""From images to the latents a pipeline's scheduler sees, one adapter a family of pipelines.

Every family scales its VAE latents in its own way and some pack them into tokens. A bank must live in exactly the space
of ``scheduler.step(v, t, latents)``.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neurips26.reference_guidance.errors import UnknownLayoutError

__all__ = [
    "Flux2Layout",
    "FluxLayout",
    "LatentSpace",
    "LatentSpaceLayout",
    "Layout",
    "QwenImageLayout",
    "ShiftScaleLayout",
    "layout_for",
    "module_digest",
    "register_layout",
]


class Layout(ABC):
    """How a family of pipelines turns VAE latents into what its scheduler integrates.

    A sample is *spatial*, (c, h, w), for resizing and masks; :meth:`pack` gives the scheduler's shape.
    """

    name: str

    @abstractmethod
    def encode(self, pipe: Any, pixels: Tensor) -> Tensor:
        """Spatial, normalised latents (n, c, h, w) of pixels (n, 3, H, W) in [-1, 1]; the mode of the posterior."""

    @abstractmethod
    def decode(self, pipe: Any, spatial: Tensor) -> Tensor:
        """Pixels in [-1, 1] of spatial latents; inverse of :meth:`encode` up to the VAE's own error."""

    def pack(self, spatial: Tensor) -> Tensor:
        """Spatial (n, c, h, w) to the scheduler's shape."""
        return spatial

    def unpack(self, latents: Tensor, grid: tuple[int, int]) -> Tensor:
        """The scheduler's shape to spatial; ``grid`` is (h, w)."""
        return latents

    def resize(self, latents: Tensor, grid: tuple[int, int], to: tuple[int, int]) -> Tensor:
        """Bilinear resize in latent space, as the authors do when a bank has another resolution."""
        spatial = self.unpack(latents, grid)
        return self.pack(
            F.interpolate(spatial.float(), size=to, mode="bilinear", align_corners=False).to(latents.dtype)
        )

    def fingerprint(self, pipe: Any) -> dict[str, str]:
        """What a bank depends on: VAE class, its configuration, its normalisation statistics, a few of its weights."""
        return {"layout": self.name, "vae": type(pipe.vae).__name__, "digest": module_digest(pipe.vae)}


def module_digest(module: Any) -> str:
    """Digest of a diffusers model: its configuration and a strided sample of every weight, so that it takes milliseconds."""
    config = module.config.to_dict() if hasattr(module.config, "to_dict") else dict(module.config)
    config = {k: v for k, v in config.items() if not k.startswith("_") and k not in ("dtype", "torch_dtype")}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(_state(module), key=lambda pair: pair[0]):
        flat = tensor.detach().flatten()
        # in bfloat16, so that a model is itself in float32 and as it is run on a GPU
        few = flat[:: max(1, flat.numel() // 16)].to(torch.bfloat16).float()
        digest.update(name.encode() + few.cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def _state(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Weights and persistent buffers by name, also of a module that accelerate has offloaded (its own are then empty)."""
    found = []
    for prefix, part in module.named_modules():
        hook = getattr(part, "_hf_hook", None)
        kept = [getattr(h, "weights_map", None) for h in getattr(hook, "hooks", [hook])]
        for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            if name in part._non_persistent_buffers_set:
                continue
            if tensor.is_meta:
                tensor = next(k[name] for k in kept if k is not None)
            found.append((f"{prefix}.{name}" if prefix else name, tensor))
    return found


def _mode(encoded: Any) -> Tensor:
    return encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latents


class ShiftScaleLayout(Layout):
    """SD3 and Z-Image: ``(z - shift) * scale``, not packed."""

    name = "shift-scale"

    def encode(self, pipe: Any, pixels: Tensor) -> Tensor:
        """See :class:`Layout`."""
        shift, scale = self._numbers(pipe)
        return (_mode(pipe.vae.encode(pixels)) - shift) * scale

    def decode(self, pipe: Any, spatial: Tensor) -> Tensor:
        """See :class:`Layout`."""
        shift, scale = self._numbers(pipe)
        return pipe.vae.decode(spatial / scale + shift, return_dict=False)[0]

    def _numbers(self, pipe: Any) -> tuple[float, float]:
        config = pipe.vae.config
        return float(config.get("shift_factor") or 0.0), float(config.get("scaling_factor") or 1.0)


class FluxLayout(ShiftScaleLayout):
    """FLUX.1: shift and scale, then 2x2 patches of 4 c channels as tokens (n, h w, 4 c)."""

    name = "flux"

    def encode(self, pipe: Any, pixels: Tensor) -> Tensor:
        """See :class:`Layout`; the spatial form is already in 2x2 patches."""
        return F.pixel_unshuffle(super().encode(pipe, pixels), 2)

    def decode(self, pipe: Any, spatial: Tensor) -> Tensor:
        """See :class:`Layout`."""
        return super().decode(pipe, F.pixel_shuffle(spatial, 2))

    def pack(self, spatial: Tensor) -> Tensor:
        """Tokens in row-major order."""
        return spatial.flatten(2).mT.contiguous()

    def unpack(self, latents: Tensor, grid: tuple[int, int]) -> Tensor:
        """Row-major tokens to (n, c, h, w)."""
        return latents.mT.reshape(latents.shape[0], latents.shape[2], *grid)


class Flux2Layout(FluxLayout):
    """FLUX.2: 2x2 patches, then the VAE's batch-norm statistics, then tokens."""

    name = "flux2"

    def encode(self, pipe: Any, pixels: Tensor) -> Tensor:
        """See :class:`Layout`."""
        z = F.pixel_unshuffle(_mode(pipe.vae.encode(pixels)), 2)
        mean, std = self._statistics(pipe, z)
        return (z - mean) / std

    def decode(self, pipe: Any, spatial: Tensor) -> Tensor:
        """See :class:`Layout`."""
        mean, std = self._statistics(pipe, spatial)
        return pipe.vae.decode(F.pixel_shuffle(spatial * std + mean, 2), return_dict=False)[0]

    def _statistics(self, pipe: Any, like: Tensor) -> tuple[Tensor, Tensor]:
        bn = pipe.vae.bn
        mean = bn.running_mean.view(1, -1, 1, 1).to(like.device, like.dtype)
        var = bn.running_var.view(1, -1, 1, 1).to(like.device, like.dtype)
        return mean, torch.sqrt(var + pipe.vae.config.batch_norm_eps)


class QwenImageLayout(FluxLayout):
    """Qwen-Image: a video VAE with one frame, per-channel mean and deviation, then 2x2 patches as tokens."""

    name = "qwen-image"

    def encode(self, pipe: Any, pixels: Tensor) -> Tensor:
        """See :class:`Layout`."""
        z = _mode(pipe.vae.encode(pixels[:, :, None]))
        mean, std = self._statistics(pipe, z)
        return F.pixel_unshuffle(((z - mean) / std)[:, :, 0], 2)

    def decode(self, pipe: Any, spatial: Tensor) -> Tensor:
        """See :class:`Layout`."""
        z = F.pixel_shuffle(spatial, 2)[:, :, None]
        mean, std = self._statistics(pipe, z)
        return pipe.vae.decode(z * std + mean, return_dict=False)[0][:, :, 0]

    def _statistics(self, pipe: Any, like: Tensor) -> tuple[Tensor, Tensor]:
        config = pipe.vae.config
        mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1).to(like) for v in (config.latents_mean, config.latents_std))
        return mean, std


class LatentSpace:
    """A bare VAE in place of a pipeline, for generators of one's own: latents are ``z * scaling``.

    Args:
        vae: an autoencoder of diffusers.
        scaling: factor of the latents; the VAE's own by default.
    """

    def __init__(self, vae: Any, scaling: float | None = None) -> None:
        self.vae = vae
        self.scaling = float(vae.config.get("scaling_factor") or 1.0) if scaling is None else float(scaling)
        self.vae_scale_factor = 2 ** (len(vae.config.block_out_channels) - 1)

    def decode(self, latents: Tensor) -> Tensor:
        """Pixels in [-1, 1]."""
        return layout_for(self).decode(self, latents)


class LatentSpaceLayout(ShiftScaleLayout):
    """Latents of a :class:`LatentSpace`: scaled, not packed."""

    name = "latent-space"

    def _numbers(self, pipe: Any) -> tuple[float, float]:
        return 0.0, pipe.scaling

    def fingerprint(self, pipe: Any) -> dict[str, str]:
        """See :class:`Layout`; the scaling is not the VAE's and counts as well."""
        return super().fingerprint(pipe) | {"scaling": f"{pipe.scaling:g}"}


_REGISTRY: dict[str, Layout] = {}


def register_layout(pipeline_class: str | type, layout: Layout) -> None:
    """Use ``layout`` for pipelines of this class (or class name) and of classes derived from it."""
    if not isinstance(layout, Layout):
        raise TypeError(f"layout: expected a Layout, got {type(layout).__name__}")
    _REGISTRY[pipeline_class if isinstance(pipeline_class, str) else pipeline_class.__name__] = layout


def layout_for(pipe: Any) -> Layout:
    """The layout registered for a pipeline.

    Raises:
        UnknownLayoutError: none is; the message lists those that are.
    """
    for cls in type(pipe).__mro__:
        if cls.__name__ in _REGISTRY:
            return _REGISTRY[cls.__name__]
    raise UnknownLayoutError(
        f"pipe: no latent layout is registered for {type(pipe).__name__}; registered: {', '.join(sorted(_REGISTRY))} "
        "(register_layout adds one)"
    )


for _names, _layout in {
    ("Flux2KleinPipeline", "Flux2KleinInpaintPipeline", "Flux2KleinKVPipeline", "Flux2Pipeline"): Flux2Layout(),
    ("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxControlPipeline"): FluxLayout(),
    ("StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline", "ZImagePipeline", "ZImageImg2ImgPipeline"): (
        ShiftScaleLayout()
    ),
    ("QwenImagePipeline", "QwenImageImg2ImgPipeline"): QwenImageLayout(),
    ("LatentSpace",): LatentSpaceLayout(),
}.items():
    for _name in _names:
        register_layout(_name, _layout)

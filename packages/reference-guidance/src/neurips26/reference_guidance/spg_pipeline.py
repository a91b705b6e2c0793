"""SPG as a diffusers pipeline: ``pipe(num_samples, references=bank)``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from diffusers import DiffusionPipeline
from torch import Tensor

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.layouts import LatentSpace
from neurips26.reference_guidance.spg import SPG, AnchorCache, euler_sample
from neurips26.shared.arrays import check_int

__all__ = ["SPGPipeline"]


class SPGPipeline(DiffusionPipeline):
    """Samples of an SPG under any reference set; with a VAE they are decoded.

    The keys of a set are computed once and kept until another set comes.
    """

    _optional_components: ClassVar[list[str]] = ["vae"]

    def __init__(self, model: SPG, vae: Any = None, latent_scale: float = 1.0) -> None:
        super().__init__()
        self.register_modules(model=model, vae=vae)
        self.register_to_config(latent_scale=latent_scale)
        self._bank: tuple[ReferenceBank, Any, AnchorCache] | None = None

    def cache(self, references: ReferenceBank) -> AnchorCache:
        """Cached keys of a set, made anew when the set or the anchor's weights are others.

        Raises:
            BankMismatchError: the set lives in the latent space of another VAE than the pipeline's.
        """
        weights = [(p.data_ptr(), p._version, p.dtype, p.device) for p in self.model.anchor.parameters()]
        if self._bank is None or self._bank[0] is not references or self._bank[1] != weights:
            if self.vae is not None:
                references.check_pipe(LatentSpace(self.vae, self.config.latent_scale))
            with torch.no_grad():
                latents = references.latents.to(self.model.device, self.model.dtype)
                self._bank = (references, weights, self.model.anchor.cache(latents, references.log_prior))
        return self._bank[2]

    @torch.no_grad()
    def __call__(
        self,
        num_samples: int,
        references: ReferenceBank,
        num_inference_steps: int = 20,
        generator: torch.Generator | None = None,
        latents: Tensor | None = None,
    ) -> Tensor:
        """Latents, or images in [-1, 1] where the pipeline has a VAE, of shape (num_samples, c, h, w).

        Raises:
            TypeError: the set is no :class:`ReferenceBank`.
            ValueError: no samples or steps asked for, or ``latents`` of another shape or not finite.
            BankMismatchError: see :meth:`cache`.
        """
        check_int(num_samples, "num_samples", minimum=1)
        check_int(num_inference_steps, "num_inference_steps", minimum=1)
        if not isinstance(references, ReferenceBank):
            raise TypeError(f"references: expected a ReferenceBank, got {type(references).__name__}")
        s = self.model.sizes
        shape = (num_samples, s.channels, s.height, s.width)
        if latents is None:
            latents = torch.randn(shape, generator=generator)
        if latents.shape != shape or not torch.isfinite(latents).all():
            raise ValueError(f"latents: expected finite numbers of shape {shape}, got shape {tuple(latents.shape)}")
        bank = self.cache(references)
        noise = latents.to(self.model.device, self.model.dtype)
        x = euler_sample(lambda x, t: self.model(x, t, bank).mean, noise, num_inference_steps)
        if self.vae is None:
            return x
        return self.vae.decode(x / self.config.latent_scale, return_dict=False)[0]

"""What a reference set competes with on a pipeline: words, a copy, the plain average, and diffusers' own use of pictures.

All start from the noise, prompt and settings of the guided picture. Pictures of the set are decoded from its latents.
"""

from __future__ import annotations

import inspect
from typing import Any

import diffusers
import torch
from PIL import Image

from neurips26.reference_guidance.bank import ReferenceBank
from neurips26.reference_guidance.errors import BankMismatchError
from neurips26.reference_guidance.layouts import layout_for

__all__ = ["IMAGE_TO_IMAGE", "STRENGTHS", "conditioned", "image_to_image", "reference_picture", "takes_pictures"]

#: The image-to-image pipeline of diffusers over the same parts. FLUX.2-klein has none but its inpainting pipeline, here
#: under a mask that is white everywhere; it also shows the picture to the transformer as a condition.
IMAGE_TO_IMAGE = {
    "Flux2KleinPipeline": "Flux2KleinInpaintPipeline",
    "FluxPipeline": "FluxImg2ImgPipeline",
    "StableDiffusion3Pipeline": "StableDiffusion3Img2ImgPipeline",
    "ZImagePipeline": "ZImageImg2ImgPipeline",
}
#: Shares of the steps that image-to-image runs after the picture has been noised (SDEdit).
STRENGTHS = (0.6, 0.8, 0.95)


@torch.no_grad()
def reference_picture(pipe: Any, bank: ReferenceBank, index: int) -> Image.Image:
    """A reference as the picture its latents decode to."""
    if bank.grid is None:
        raise BankMismatchError("grid: this bank does not know its latent grid, so its references cannot be decoded")
    layout, device = layout_for(pipe), getattr(pipe, "_execution_device", pipe.vae.device)
    spatial = layout.unpack(bank.latents[index : index + 1], bank.grid).to(device, pipe.vae.dtype)
    pixels = ((layout.decode(pipe, spatial)[0].float().clamp(-1, 1) + 1) * 127.5).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())


def takes_pictures(pipe: Any) -> bool:
    """Whether the pipeline conditions on pictures itself (``image=``, as FLUX.2 does)."""
    return "image" in inspect.signature(type(pipe).__call__).parameters


def conditioned(pipe: Any, pictures: list[Image.Image], **call: Any) -> Image.Image:
    """The pipeline's own image conditioning on some pictures.

    Raises:
        ValueError: the pipeline takes none.
    """
    if not takes_pictures(pipe):
        raise ValueError(f"pipe: expected one that takes pictures (image=), got {type(pipe).__name__}")
    return pipe(image=pictures, **call).images[0]


def image_to_image(pipe: Any, picture: Image.Image, strength: float, **call: Any) -> Image.Image:
    """SDEdit by diffusers' own pipeline: the picture is noised, then denoised over the last ``strength`` of the steps.

    Raises:
        ValueError: diffusers has no such pipeline for this one.
    """
    name = IMAGE_TO_IMAGE.get(type(pipe).__name__)
    if name is None:
        known = ", ".join(IMAGE_TO_IMAGE)
        raise ValueError(f"pipe: expected one with an image-to-image pipeline ({known}), got {type(pipe).__name__}")
    other = getattr(diffusers, name)
    wanted = inspect.signature(other.__init__).parameters
    # parts and registered settings of the pipeline; from_pipe would also cast every part to one dtype
    known = {k: v for k, v in dict(pipe.config).items() if k in wanted} | pipe.components
    editor = other(**{k: v for k, v in known.items() if k in wanted})
    editor.set_progress_bar_config(disable=True)
    if "mask_image" in inspect.signature(other.__call__).parameters:
        call["mask_image"] = Image.new("L", picture.size, 255)
    return editor(image=picture, strength=strength, **call).images[0]

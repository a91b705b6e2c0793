"""Reading reference images of any kind into RGB of one size."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from neurips26.reference_guidance.errors import ImageError
from neurips26.shared.arrays import check_choice

__all__ = [
    "EXTENSIONS",
    "FITS",
    "fit_image",
    "list_images",
    "open_image",
    "other_files",
    "to_rgb",
    "to_tensor_range",
]

FITS = ("contain", "cover", "stretch")
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})


def list_images(folder: Path) -> list[Path]:
    """Image files of a folder by name."""
    if not folder.is_dir():
        raise NotADirectoryError(f"images: expected a folder of images, got {str(folder)!r}")
    return sorted(p for p in Path(folder).iterdir() if p.is_file() and p.suffix.lower() in EXTENSIONS)


def other_files(folder: Path) -> list[Path]:
    """Files of a folder that are left out because their endings are not among those that are read."""
    found = (p for p in Path(folder).iterdir() if p.is_file() and not p.name.startswith("."))
    return sorted(p for p in found if p.suffix.lower() not in EXTENSIONS)


def open_image(source: Any, name: str = "images") -> Image.Image:
    """An RGB image from a path, a PIL image or an array (h, w) / (h, w, 3|4), uint8 or floats in [0, 1].

    Raises:
        ImageError: unreadable file or numbers that are not finite; the message names the file or position.
    """
    if isinstance(source, Image.Image):
        return to_rgb(source)
    if isinstance(source, (str, Path)):
        try:
            with Image.open(source) as image:
                image.load()
                return to_rgb(image)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ImageError(f"{name}: cannot read {source} ({error})") from error
    array = np.asarray(source)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ImageError(f"{name}: expected finite pixels, got {array[where]} at {where}")
        array = _bytes(array, name) if array.size else array
    sizes = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not sizes or array.size == 0:
        raise ImageError(
            f"{name}: expected uint8 or float pixels (h, w) or (h, w, 3 or 4), got {array.dtype} {array.shape}"
        )
    return to_rgb(Image.fromarray(array))


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB with the orientation of the EXIF tag applied; alpha over black; 16 bits scaled, floats in [0, 1].

    Raises:
        ImageError: floats that are not finite or outside [0, 1]; 32-bit integers that fit neither 8 nor 16 bits.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        values = np.asarray(image)
        if not np.isfinite(values).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise ImageError(f"expected finite pixels, got {values[where]} at {where}")
        return Image.fromarray(_bytes(values, "image")).convert("RGB")
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.float64)
        if values.min() < 0 or values.max() > 65535:
            raise ImageError(f"expected pixels of 8 or 16 bits, got {values.min():.0f} to {values.max():.0f}")
        wide = image.mode != "I" or values.max() > 255  # 32-bit integers may hold pixels of 8 bits
        return Image.fromarray((values / (257.0 if wide else 1.0)).round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or (image.mode == "P" and "transparency" in image.info):
        image = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, (0, 0, 0, 255))
        return Image.alpha_composite(canvas, image).convert("RGB")
    return image.convert("RGB")


def _bytes(values: np.ndarray, name: str) -> np.ndarray:
    """Floats in [0, 1] as bytes; another range is a mistake that clipping would hide."""
    low, high = float(values.min()), float(values.max())
    if low < -1e-6 or high > 1 + 1e-6:
        raise ImageError(f"{name}: expected float pixels in [0, 1], got {low:.4g} to {high:.4g}")
    return (values.clip(0, 1) * 255).round().astype(np.uint8)


def fit_image(image: Image.Image, height: int, width: int, fit: str) -> Image.Image:
    """Bring an image to (height, width): ``contain`` pads with black, ``cover`` crops the centre, ``stretch`` distorts."""
    check_choice(fit, "fit", FITS)
    size = (width, height)
    if fit == "stretch":
        return image.resize(size, Image.Resampling.BICUBIC)  # the authors' resize of generated references
    if fit == "cover":
        return ImageOps.fit(image, size, method=Image.Resampling.LANCZOS)
    inner = ImageOps.contain(image, size, method=Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", size, (0, 0, 0))
    canvas.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return canvas


def to_tensor_range(images: Iterable[Image.Image]) -> np.ndarray:
    """RGB images of one size as float32 (n, 3, h, w) in [-1, 1], the range of every diffusers VAE."""
    pixels = np.stack([np.asarray(image, dtype=np.float32) for image in images])
    return pixels.transpose(0, 3, 1, 2) / 127.5 - 1.0

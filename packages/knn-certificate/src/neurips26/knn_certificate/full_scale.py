"""The paper's own scale, by the same certificate: ResNet-18 from scratch and frozen DINOv2 features on CIFAR-10.

Needs a GPU, the extra ``vision`` and the data sets and weights that torchvision and timm fetch. Nothing here runs in tests
beyond a few steps on tiny inputs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from neurips26.knn_certificate.blocked import certify_arrays, random_block
from neurips26.knn_certificate.certificate import terms_row
from neurips26.knn_certificate.heads import certify_features

__all__ = ["certified_dinov2", "certified_resnet18", "cifar_resnet18", "train_resnet"]

_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def cifar_resnet18(classes: int = 10) -> nn.Module:
    """ResNet-18 with the stem for 32 x 32 images: 3 x 3 convolution, stride 1, no pooling."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def _augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Random crop with 4 pixels of padding and random flip, one offset an image."""
    n = len(x)
    padded = nn.functional.pad(x, (4, 4, 4, 4))
    top, left = (torch.randint(0, 9, (n,), generator=generator, device=x.device) for _ in range(2))
    rows = top[:, None] + torch.arange(32, device=x.device)
    columns = left[:, None] + torch.arange(32, device=x.device)
    out = padded[
        torch.arange(n, device=x.device)[:, None, None, None],
        torch.arange(3, device=x.device)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    flip = torch.rand(n, generator=generator, device=x.device) < 0.5
    return torch.where(flip[:, None, None, None], out.flip(3), out)


def train_resnet(
    x: Tensor, y: Tensor, *, epochs: int = 200, batch: int = 128, seed: int = 0, device: str = "cuda"
) -> nn.Module:
    """SGD 0.1 with momentum 0.9, weight decay 5e-4, cosine over ``epochs``, crop and flip."""
    torch.manual_seed(seed)
    model = cifar_resnet18(int(y.max()) + 1).to(device)
    x, y = x.to(device), y.to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator(device=device).manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator, device=device).split(batch):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = nn.functional.cross_entropy(model(_augment(x[rows], generator)), y[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


@torch.inference_mode()
def read(model: Any, x: Tensor, device: str = "cuda", batch: int = 1_000) -> tuple[np.ndarray, np.ndarray]:
    """Features before the last layer and predictions of a torchvision ResNet."""
    caught: list[Tensor] = []
    hook = model.fc.register_forward_pre_hook(lambda _m, args: caught.append(args[0].float().cpu()))
    try:
        predictions = torch.cat([model(part.to(device)).argmax(1).cpu() for part in x.split(batch)])
    finally:
        hook.remove()
    return torch.cat(caught).numpy(), predictions.numpy()


def _cifar10() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from torchvision.datasets import CIFAR10

    root = Path(os.environ.get("NEURIPS26_DATA") or Path.home() / ".cache" / "neurips26") / "cifar10"
    parts = []
    for part in (True, False):
        data = CIFAR10(root, train=part, download=True)
        x = torch.from_numpy(data.data).permute(0, 3, 1, 2).float() / 255
        parts += [
            (x - torch.tensor(_MEAN)[:, None, None]) / torch.tensor(_STD)[:, None, None],
            torch.tensor(data.targets),
        ]
    return parts[0], parts[1], parts[2], parts[3]


def certified_resnet18(seed: int) -> dict[str, float]:
    """Two trainings (all data; without the block), the test inputs split into pool and test."""
    x, y, x_test, y_test = _cifar10()
    kept, held = random_block(len(x), 0.2, seed)
    whole, part = train_resnet(x, y, seed=seed), train_resnet(x[kept], y[kept], seed=seed)
    half = len(x_test) // 2
    memory, _ = read(part, x[kept])
    block, predicted = read(part, x[held])
    pool = tuple(read(m, x_test[:half])[1] for m in (whole, part))
    c = certify_arrays(memory, y[kept].numpy(), block, y[held].numpy(), predicted, pool_predictions=pool, device="cuda")  # type: ignore[arg-type]
    return terms_row(c, float((read(whole, x_test[half:])[1] != y_test[half:].numpy()).mean()))


def certified_dinov2(seed: int, name: str = "vit_large_patch14_dinov2.lvd142m") -> dict[str, float]:
    """Class-token features of DINOv2 through timm at 224 pixels, a logistic head, the blocked certificate."""
    import timm

    x, y, x_test, y_test = _cifar10()
    model = timm.create_model(name, pretrained=True, num_classes=0, img_size=224).eval().cuda()

    @torch.inference_mode()
    def embed(images: Tensor) -> np.ndarray:
        out = []
        for part in images.split(256):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out.append(model(nn.functional.interpolate(part.cuda(), size=224, mode="bicubic")).float().cpu())
        return torch.cat(out).numpy()

    features, test = embed(x), embed(x_test)
    half = len(test) // 2
    head = LogisticRegression(C=1.0, max_iter=300)
    c = certify_features(
        features, y.numpy(), head=head, unlabeled=test[:half], representation="frozen", seed=seed, device="cuda"
    )
    error = float((head.fit(features, y.numpy()).predict(test[half:]) != y_test[half:].numpy()).mean())
    return terms_row(c, error)

"""`assign` and `update_centroids` as PyTorch operators: traceable by `torch.compile`, with shapes known ahead (fake kernels)."""

# No postponed annotations here: PyTorch reads the operators' schemas from them.
from typing import Any

import numpy as np
import torch

from neurips26.flash_kmeans.cpu_assign import kernel_assign
from neurips26.flash_kmeans.cpu_kernels import kernels
from neurips26.flash_kmeans.rows import UnitRows, rows_of
from neurips26.flash_kmeans.update import cluster_sums

__all__ = ["assign", "assign_op", "update_centroids", "update_op"]


@torch.library.custom_op("neurips26_flash_kmeans::assign", mutates_args=())
def assign_op(x: torch.Tensor, c: torch.Tensor, metric: str, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels `(N,)` int32 and distances `(N,)` of `x` `(N, D)` to the nearest of `c` `(K, D)`."""
    if x.is_cuda:
        from neurips26.flash_kmeans.precision import assign_points

        if x.dtype == torch.float64:
            raise TypeError("x: expected float32, float16 or bfloat16 on a GPU, got float64")
        c = c.float()
        if metric == "cosine":
            x, c = torch.nn.functional.normalize(x.float(), dim=1), torch.nn.functional.normalize(c, dim=1)
        out = assign_points(
            x[None], c[None].contiguous(), cosine=metric == "cosine", precision=precision, distances=True
        )
        assert out.distances is not None
        return out.labels[0], out.distances[0]
    rows = rows_of(x)
    centroids = np.ascontiguousarray(c.detach().to(torch.float64).numpy(), dtype=rows.dtype)
    if metric == "cosine":
        rows, centroids = UnitRows(rows), UnitRows(rows_of(centroids)).read(0, len(centroids))
    labels = np.full(rows.n, -1, np.int32)
    best = kernel_assign(rows, centroids, metric == "cosine", labels)
    if metric == "cosine":
        distance = np.maximum(1 + best / 2, 0).astype(rows.dtype)
    else:
        distance = np.empty(rows.n, rows.dtype)
        for start, block in rows.blocks(8192):
            part = slice(start, start + len(block))
            kernels(rows.dtype).distance(block, centroids, labels[part], distance[part])
    return torch.from_numpy(labels), torch.from_numpy(distance)


@assign_op.register_fake
def _(x: torch.Tensor, c: torch.Tensor, metric: str, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch._check(x.dim() == 2 and c.dim() == 2, lambda: "x and c: expected two axes")
    torch._check(x.shape[1] == c.shape[1], lambda: f"c: expected D={x.shape[1]}, got {c.shape[1]}")
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(x.shape[0], dtype=torch.int32), x.new_empty(x.shape[0], dtype=wide)


@torch.library.custom_op("neurips26_flash_kmeans::update", mutates_args=())
def update_op(
    x: torch.Tensor, labels: torch.Tensor, k: int, weights: torch.Tensor | None, deterministic: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means `(K, D)` (zeros for an empty cluster) and masses `(K,)`."""
    if x.is_cuda:
        from neurips26.flash_kmeans.gpu_plan import Device, plan_update
        from neurips26.flash_kmeans.gpu_update import launch_update

        plan = plan_update(x.shape[0], k, x.shape[1], x.element_size(), Device.current())
        given = None if weights is None else weights.float()[None].contiguous()
        sums, mass = launch_update(x[None], labels.int()[None], k, plan, weights=given, deterministic=deterministic)
        return sums[0] / mass[0].clamp_min(torch.finfo(torch.float32).tiny)[:, None], mass[0].clone()
    rows = rows_of(x)
    given = None if weights is None else weights.detach().to(torch.float64).numpy()
    sums, mass = cluster_sums(rows, labels.detach().to(torch.int32).contiguous().numpy(), k, given)
    means = (sums / np.where(mass > 0, mass, 1)[:, None]).astype(rows.dtype)
    return torch.from_numpy(means), torch.from_numpy(mass.astype(rows.dtype))


@update_op.register_fake
def _(
    x: torch.Tensor, labels: torch.Tensor, k: int, weights: torch.Tensor | None, deterministic: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty((k, x.shape[1]), dtype=wide), x.new_empty(k, dtype=wide)


def assign(
    x: torch.Tensor, c: torch.Tensor, metric: str, precision: str, return_distance: bool, out: Any, check_finite: bool
) -> Any:
    """What the public `assign` does with tensors on a GPU and inside `torch.compile`."""
    if x.dim() != 2 or c.dim() != 2 or x.shape[1] != c.shape[1] or not c.shape[0]:
        raise ValueError(f"c: expected shape (K, D={x.shape[-1]}), got {tuple(c.shape)}")
    if out is not None and (
        not isinstance(out, torch.Tensor)
        or out.dtype != torch.int32
        or out.shape != x.shape[:1]
        or out.device != x.device
        or not out.is_contiguous()
    ):
        raise ValueError(
            f"out: expected a contiguous int32 tensor of shape (N={x.shape[0]},) on {x.device}, "
            f"got {getattr(out, 'dtype', type(out))} {tuple(getattr(out, 'shape', ()))}"
        )
    if (
        check_finite
        and not torch.compiler.is_compiling()
        and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    ):
        for name, values in (("x", x), ("c", c)):
            if bool(torch.isfinite(values.sum(dim=1, dtype=torch.float32)).all()):
                continue
            bad = ~torch.isfinite(values).all(dim=1)  # sums of large numbers may overflow
            if bool(bad.any()):
                row = int(torch.nonzero(bad)[0])
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinity in row {row}")
    labels, distance = assign_op(x, c, metric, precision)
    if out is not None:
        labels = out.copy_(labels)  # 4 N bytes on the device, little beside the points that were read
    return (labels, distance) if return_distance else labels


def update_centroids(
    x: torch.Tensor, labels: torch.Tensor, k: int, weights: Any, old: Any, deterministic: bool, return_mass: bool
) -> Any:
    """What the public `update_centroids` does with tensors on a GPU and inside `torch.compile`: no check looks at values."""
    labels = torch.as_tensor(labels, device=x.device)
    if labels.shape != x.shape[:1] or labels.is_floating_point():
        raise ValueError(f"labels: expected (N={x.shape[0]},) integers, got {labels.dtype} {tuple(labels.shape)}")
    if weights is not None:
        weights = torch.as_tensor(weights, device=x.device)
        if weights.shape != x.shape[:1]:
            raise ValueError(f"weights: expected shape (N={x.shape[0]},), got {tuple(weights.shape)}")
    if old is not None:
        old = torch.as_tensor(old, device=x.device)
        if old.shape != (k, x.shape[1]):
            raise ValueError(f"old: expected shape (K={k}, D={x.shape[1]}), got {tuple(old.shape)}")
    means, mass = update_op(x, labels, k, weights, deterministic)
    if old is not None:
        means = torch.where((mass > 0)[:, None], means, old.to(means.dtype))
    return (means, mass) if return_mass else means

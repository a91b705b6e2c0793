"""Peers that no package has under this protocol, each as small as its definition; ``(B, C, L) -> (B, C, H)``.

All are trained by :mod:`neurips26.filterbank_tsf.training`. PatchTST and iTransformer come from neuralforecast.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .stats import WindowStats


class DLinear(nn.Module):
    """Moving average and remainder, one linear map each (arXiv 2205.13504)."""

    def __init__(self, lookback: int, horizon: int, kernel: int = 25):
        super().__init__()
        self.kernel = kernel
        self.trend, self.season = nn.Linear(lookback, horizon), nn.Linear(lookback, horizon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        half = (self.kernel - 1) // 2
        padded = torch.cat([x[..., :1].expand(*x.shape[:-1], half), x, x[..., -1:].expand(*x.shape[:-1], half)], -1)
        sums = F.pad(padded.cumsum(-1), (1, 0))
        trend = (sums[..., self.kernel :] - sums[..., : -self.kernel]) / self.kernel
        return self.trend(trend) + self.season(x - trend)

    def macs(self) -> int:
        """Multiply-adds a forecast (the moving average costs additions only)."""
        return 2 * self.trend.weight.numel()


class NLinear(nn.Module):
    """Subtract the last value, one linear map, add it back (arXiv 2205.13504)."""

    def __init__(self, lookback: int, horizon: int):
        super().__init__()
        self.linear = nn.Linear(lookback, horizon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        last = x[..., -1:]
        return self.linear(x - last) + last

    def macs(self) -> int:
        """Multiply-adds a forecast."""
        return self.linear.weight.numel()


class RLinear(nn.Module):
    """Reversible instance normalisation around one linear map (arXiv 2305.10721)."""

    def __init__(self, lookback: int, horizon: int):
        super().__init__()
        self.linear = nn.Linear(lookback, horizon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        mean = x.mean(-1, keepdim=True)
        deviation = (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return self.linear((x - mean) / deviation) * deviation + mean

    def macs(self) -> int:
        """Multiply-adds a forecast."""
        return self.linear.weight.numel()


class FITS(nn.Module):
    """Low-pass rfft, one complex linear map to the spectrum of look-back and horizon, irfft (arXiv 2307.03756).

    ``harmonics`` multiples of the period are kept by the authors' cut-off rule, ``(L // period + 1) harmonics + 10`` bins.
    """

    def __init__(self, lookback: int, horizon: int, period: int = 24, harmonics: int = 6):
        super().__init__()
        self.lookback, self.horizon = lookback, horizon
        self.bins = min((lookback // period + 1) * harmonics + 10, lookback // 2 + 1)
        total = lookback + horizon
        self.outputs = min(int(self.bins * total / lookback), total // 2 + 1)
        self.linear = nn.Linear(self.bins, self.outputs).to(torch.cfloat)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        mean = x.mean(-1, keepdim=True)
        deviation = (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        low = self.linear(torch.fft.rfft((x - mean) / deviation)[..., : self.bins])
        total = self.lookback + self.horizon
        y = torch.fft.irfft(F.pad(low, (0, total // 2 + 1 - self.outputs)), n=total) * (total / self.lookback)
        return y[..., self.lookback :] * deviation + mean

    def loss(self, x: torch.Tensor, y: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        """On forecasts (the authors' fine-tuning objective)."""
        return (self(x) - y).square().mean()

    def macs(self) -> int:
        """Real multiply-adds of the complex map, plus ``5 n log2 n / 2`` for each transform."""
        n, m = self.lookback, self.lookback + self.horizon
        return 4 * self.bins * self.outputs + round(1.25 * (n * math.log2(n) + m * math.log2(m)))


class SparseTSF(nn.Module):
    """Sliding aggregation, then one map over periods shared by all phases (arXiv 2405.00946)."""

    def __init__(self, lookback: int, horizon: int, period: int = 24):
        super().__init__()
        if lookback % period or horizon % period:
            raise ValueError(f"period={period} must divide lookback={lookback} and horizon={horizon}")
        self.period = period
        self.conv = nn.Conv1d(1, 1, 2 * (period // 2) + 1, padding=period // 2, bias=False)
        self.linear = nn.Linear(lookback // period, horizon // period, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        mean = x.mean(-1, keepdim=True)
        periods = (x - mean).unflatten(-1, (-1, self.period))
        y = self.linear((periods + self._aggregate(x - mean)).transpose(-1, -2))
        return y.transpose(-1, -2).flatten(-2) + mean

    def _aggregate(self, x: torch.Tensor) -> torch.Tensor:
        """The convolution, period by period as one small product (ten times faster here than ``conv1d`` of one channel)."""
        half, taps = self.period // 2, self.conv.weight.view(-1)
        width = self.period + 2 * half
        lag = torch.arange(width, device=x.device)[:, None] - torch.arange(self.period, device=x.device)
        inside = (lag >= 0) & (lag < len(taps))
        band = torch.where(inside, taps[lag.clamp(0, len(taps) - 1)], taps.new_zeros(()))
        return F.pad(x, (half, half)).unfold(-1, width, self.period) @ band

    def macs(self) -> int:
        """Multiply-adds a forecast."""
        lookback = self.linear.in_features * self.period
        return lookback * self.conv.kernel_size[0] + self.period * self.linear.weight.numel()


class CycleNet(nn.Module):
    """A learnt cycle per channel is taken out and put back around a linear map (CycleNet/Linear, arXiv 2409.18479)."""

    needs_phase = True

    def __init__(self, lookback: int, horizon: int, channels: int, cycle: int = 24):
        super().__init__()
        self.lookback, self.horizon, self.cycle = lookback, horizon, cycle
        self.queue = nn.Parameter(torch.zeros(channels, cycle))
        self.linear = nn.Linear(lookback, horizon)

    def forward(self, x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        ahead = torch.arange(self.lookback + self.horizon, device=x.device)
        steps = (phase[:, None] + ahead) % self.cycle
        cycle = self.queue[:, steps].transpose(0, 1)
        mean = x.mean(-1, keepdim=True)
        deviation = (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        y = self.linear((x - mean) / deviation - cycle[..., : self.lookback]) + cycle[..., self.lookback :]
        return y * deviation + mean

    def macs(self) -> int:
        """Multiply-adds a forecast."""
        return self.linear.weight.numel()


class TimeBase(nn.Module):
    """A few orthogonal basis periods, combined into the periods to come (TimeBase, ICML 2025)."""

    def __init__(self, lookback: int, horizon: int, period: int = 24, basis: int = 6, penalty: float = 0.04):
        super().__init__()
        if lookback % period:
            raise ValueError(f"period={period} must divide lookback={lookback}")
        self.period, self.horizon, self.penalty = period, horizon, penalty
        self.extract = nn.Linear(lookback // period, basis)
        self.combine = nn.Linear(basis, math.ceil(horizon / period))

    def _basis(self, x: torch.Tensor) -> torch.Tensor:
        return self.extract(x.unflatten(-1, (-1, self.period)).transpose(-1, -2))  # ..., period, basis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        mean = x.mean(-1, keepdim=True)
        y = self.combine(self._basis(x - mean)).transpose(-1, -2).flatten(-2)
        return y[..., : self.horizon] + mean

    def loss(self, x: torch.Tensor, y: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        """Squared error plus the off-diagonal of the basis' Gram matrix."""
        basis = self._basis(x - x.mean(-1, keepdim=True))
        gram = basis.transpose(-1, -2) @ basis
        off = gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
        return (self(x) - y).square().mean() + self.penalty * off.flatten(-2).norm(dim=-1).mean()

    def macs(self) -> int:
        """Multiply-adds a forecast."""
        return self.period * (self.extract.weight.numel() + self.combine.weight.numel())


class OLinear(nn.Module):
    """Orthogonal transforms of look-back and horizon from the training correlations, a linear encoder with a
    row-normalised channel map, a two-layer head (arXiv 2505.08550); width scaled down for two cores.
    """

    def __init__(self, lookback: int, horizon: int, channels: int, stats: WindowStats, width: int = 64):
        super().__init__()
        self.register_buffer("q_in", torch.tensor(_correlation_basis(stats.gram), dtype=torch.float32))
        self.register_buffer("q_out", torch.tensor(_correlation_basis(stats.target), dtype=torch.float32))
        self.enter, self.leave = nn.Linear(lookback, width), nn.Linear(width, horizon)
        self.channel_map = nn.Parameter(torch.eye(channels) + torch.randn(channels, channels))
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.ffn = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Sequential(nn.Linear(horizon, 2 * width), nn.GELU(), nn.Linear(2 * width, horizon))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        mean = x.mean(-1, keepdim=True)
        deviation = (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        h = self.enter(((x - mean) / deviation) @ self.q_in)
        weights = F.normalize(F.softplus(self.channel_map), p=1, dim=-1)
        h = self.norm1(h + self.out(weights @ self.value(h)))
        h = self.norm3(self.norm2(h + self.ffn(h)))
        y = self.head(self.leave(h) @ self.q_out.T)
        return y * deviation + mean

    def macs(self) -> int:
        """Multiply-adds a forecast of one channel."""
        linear = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        return linear + self.q_in.numel() + self.q_out.numel() + len(self.channel_map) * self.value.out_features


def _correlation_basis(moment: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.maximum(np.diag(moment), 1e-12))
    return np.linalg.eigh(moment / np.outer(scale, scale))[1][:, ::-1].copy()


class RootPurge(nn.Module):
    """A mean-normalised linear map trained so that it forecasts nothing from its own residuals (arXiv 2509.23597).

    The residual, cut off from the gradient, is laid at a random place of an otherwise empty look-back; the forecast
    from it is pushed to zero with weight ``strength * max(L / H, 1)``.
    """

    def __init__(self, lookback: int, horizon: int, strength: float = 0.3):
        super().__init__()
        self.lookback, self.horizon, self.strength = lookback, horizon, strength
        self.linear = nn.Linear(lookback, horizon, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forecasts ``(B, C, H)``."""
        mean = x.mean(-1, keepdim=True)
        return self.linear(x - mean) + mean

    def loss(self, x: torch.Tensor, y: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        """Squared error plus the size of the forecast made from the residual."""
        mean = x.mean(-1, keepdim=True)
        fitted, target = self.linear(x - mean), y - mean
        residual = (target - fitted).detach()
        room = self.lookback - self.horizon
        if room > 0:
            place = torch.randint(0, room + 1, residual.shape[:-1], device=x.device)
            padded = F.pad(residual, (room, room))
            index = place[..., None] + torch.arange(self.lookback, device=x.device)
            residual = padded.gather(-1, index)
        else:
            residual = residual[..., : self.lookback]
        purge = self.linear(residual).square().mean()
        return (fitted - target).square().mean() + self.strength * max(self.lookback / self.horizon, 1.0) * purge

    def macs(self) -> int:
        """Multiply-adds a forecast."""
        return self.linear.weight.numel()


PEERS: tuple[str, ...] = (
    "dlinear",
    "nlinear",
    "rlinear",
    "fits",
    "sparsetsf",
    "cyclenet",
    "timebase",
    "olinear",
    "rootpurge",
)


def make_peer(
    name: str, lookback: int, horizon: int, channels: int, period: int, stats: WindowStats | None = None, seed: int = 0
) -> nn.Module:
    """A peer by name with its paper's structural defaults; ``stats`` (training, raw) is needed by ``olinear``."""
    if name not in PEERS:
        raise ValueError(f"name must be one of {', '.join(PEERS)}, got {name!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "olinear":
            if stats is None:
                raise ValueError("stats: olinear takes its transforms from the training statistics, got None")
            return OLinear(lookback, horizon, channels, stats.normalised("mean"))
        makers = {
            "dlinear": lambda: DLinear(lookback, horizon),
            "nlinear": lambda: NLinear(lookback, horizon),
            "rlinear": lambda: RLinear(lookback, horizon),
            "fits": lambda: FITS(lookback, horizon, period),
            "sparsetsf": lambda: SparseTSF(lookback, horizon, period),
            "cyclenet": lambda: CycleNet(lookback, horizon, channels, period),
            "timebase": lambda: TimeBase(lookback, horizon, period),
            "rootpurge": lambda: RootPurge(lookback, horizon),
        }
        return makers[name]()

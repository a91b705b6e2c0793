"""The filter bank as torch layers: analysis, core, synthesis, and the deep stack built from it.

A bank maps a look-back ``x`` of L values to a horizon of H values in three linear steps:

1. *analysis*: K filters of length P slide over the look-back with stride S and give T_in frames of coefficients;
2. *core*: a linear map from the K x T_in coefficients to K2 x T_out coefficients;
3. *synthesis*: K2 filters of length Q, laid down every ``hop`` steps, are added up and cropped to H.

Its hyper-parameters bound the rank of the forecaster (``rank_bound``) and its cost (``macs()``). Frames are anchored at
the end of the look-back: the newest sample is always in the last frame; on the left the oldest value is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import nn

from .choices import DEFAULTS, Core
from .filters import fourier_filters, make_filters

CORES: tuple[str, ...] = get_args(Core)
# Frames that overlap more often than this are copied instead: cutting filters up would cost more than it saves.
FOLDED_PIECES = 4


class InstanceNorm(nn.Module):
    """Takes the level out of the look-back and gives it back to the forecast: ``"mean"``, ``"last"`` or ``"none"``."""

    def __init__(self, mode: str = DEFAULTS.norm):
        super().__init__()
        if mode not in ("none", "mean", "last"):
            raise ValueError(f"norm must be 'none', 'mean' or 'last', got {mode!r}")
        self.mode = mode

    def level(self, x: Float[torch.Tensor, "... l"]) -> Float[torch.Tensor, "... 1"]:
        """The level of each look-back."""
        if self.mode == "mean":
            return x.mean(-1, keepdim=True)
        return x[..., -1:] if self.mode == "last" else torch.zeros_like(x[..., -1:])


class FilterBank(nn.Module):
    """A linear forecaster made of an analysis bank, a core and a synthesis bank.

    Args:
        lookback: L.
        horizon: H.
        n_filters: K analysis filters.
        kernel_size: their length P; L gives one frame (the "global bank").
        stride: distance S between frames; default P.
        n_synthesis: K2 synthesis filters; default K.
        synthesis_size: their length Q; default ``min(P, H)``.
        hop: distance between synthesis frames; default Q, smaller overlaps and adds.
        rank: r of the low-rank core; default ``min(K T_in, K2 T_out)``.
        core: ``"dense"``, ``"lowrank"``, ``"depthwise"`` (one T_in x T_out matrix a filter) or ``"shared"`` (one for
            all filters).
        init: filters to start from, see :func:`neurips26.filterbank_tsf.filters.make_filters`; a data-driven start is
            :func:`neurips26.filterbank_tsf.bank.fit_bank`.
        trainable: whether the filters are parameters (the core always is).
        norm: instance normalisation around the bank.
        seed: of the random parts.

    Input ``(..., L)``, output ``(..., H)``; leading axes (batch, channels) are free.
    """

    def __init__(
        self,
        lookback: int,
        horizon: int,
        n_filters: int = 8,
        kernel_size: int = 24,
        stride: int | None = None,
        n_synthesis: int | None = None,
        synthesis_size: int | None = None,
        hop: int | None = None,
        rank: int | None = None,
        core: Core = DEFAULTS.core,
        init: str = "dct",
        trainable: bool = True,
        norm: str = DEFAULTS.norm,
        seed: int = 0,
    ):
        super().__init__()
        stride = kernel_size if stride is None else stride
        n_synthesis = n_filters if n_synthesis is None else n_synthesis
        synthesis_size = min(kernel_size, horizon) if synthesis_size is None else synthesis_size
        hop = synthesis_size if hop is None else hop
        sizes = dict(
            lookback=lookback, horizon=horizon, n_filters=n_filters, kernel_size=kernel_size, stride=stride,
            n_synthesis=n_synthesis, synthesis_size=synthesis_size, hop=hop,
        )  # fmt: skip
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if kernel_size > lookback:
            raise ValueError(f"kernel_size must be at most lookback={lookback}, got {kernel_size}")
        if stride > kernel_size:
            raise ValueError(f"stride must be at most kernel_size={kernel_size} (no sample is skipped), got {stride}")
        if hop > synthesis_size:
            raise ValueError(f"hop must be at most synthesis_size={synthesis_size} (no step is left out), got {hop}")
        if core not in CORES:
            raise ValueError(f"core must be one of {CORES}, got {core!r}")
        if core in ("depthwise", "shared") and n_filters != n_synthesis:
            raise ValueError(
                f"n_synthesis must equal n_filters={n_filters} with core={core!r}, which pairs them, got {n_synthesis}"
            )
        self.lookback, self.horizon, self.core_kind = lookback, horizon, core
        self.n_filters, self.kernel_size, self.stride = n_filters, kernel_size, stride
        self.n_synthesis, self.synthesis_size, self.hop = n_synthesis, synthesis_size, hop
        self.frames_in = math.ceil((lookback - kernel_size) / stride) + 1
        self.frames_out = math.ceil(max(horizon - synthesis_size, 0) / hop) + 1
        self.padding = (self.frames_in - 1) * stride + kernel_size - lookback
        limit = min(n_filters * self.frames_in, n_synthesis * self.frames_out)
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
            raise ValueError(f"rank must be a positive integer, got {rank!r}")
        self.rank = limit if rank is None else min(rank, limit)
        self.norm = InstanceNorm(norm)

        rng = np.random.default_rng(seed)
        self._set_filters("analysis", make_filters(init, n_filters, kernel_size, rng=rng), trainable)
        self._set_filters("synthesis", make_filters(init, n_synthesis, synthesis_size, rng=rng), trainable)
        inputs, outputs = n_filters * self.frames_in, n_synthesis * self.frames_out
        shapes = {
            "dense": [(inputs, outputs)],
            "lowrank": [(inputs, self.rank), (self.rank, outputs)],
            "depthwise": [(n_filters, self.frames_in, self.frames_out)],
            "shared": [(self.frames_in, self.frames_out)],
        }[core]
        self.core = nn.ParameterList(
            torch.tensor(rng.standard_normal(s) / math.sqrt(s[-2]), dtype=torch.get_default_dtype()) for s in shapes
        )

    def _set_filters(self, name: str, values: np.ndarray, trainable: bool) -> None:
        tensor = torch.tensor(values, dtype=torch.get_default_dtype())
        if trainable:
            setattr(self, name, nn.Parameter(tensor))
        else:
            self.register_buffer(name, tensor)

    # -- the three steps ----------------------------------------------------------------------------------------------

    def analyse(self, x: Float[torch.Tensor, "... l"]) -> Float[torch.Tensor, "... t k"]:
        """Coefficients of every frame, ``(..., T_in, K)``."""
        if self.padding:
            x = torch.cat([x[..., :1].expand(*x.shape[:-1], self.padding), x], -1)
        if self.stride == self.kernel_size:
            frames = x.reshape(*x.shape[:-1], self.frames_in, self.kernel_size)
        else:
            frames = x.unfold(-1, self.kernel_size, self.stride)
        return frames @ self.analysis.T

    def mix(self, u: Float[torch.Tensor, "... t k"]) -> Float[torch.Tensor, "... s j"]:
        """Coefficients of the forecast, ``(..., T_out, K2)``."""
        if self.core_kind == "depthwise":
            return torch.einsum("...tk,kts->...sk", u, self.core[0])
        if self.core_kind == "shared":
            return torch.einsum("...tk,ts->...sk", u, self.core[0])
        flat = u.flatten(-2)
        for factor in self.core:
            flat = flat @ factor
        return flat.unflatten(-1, (self.frames_out, self.n_synthesis))

    def synthesise(self, v: Float[torch.Tensor, "... s j"]) -> Float[torch.Tensor, "... h"]:
        """Overlap-add of the synthesis filters, cropped to H."""
        return overlap_add(v @ self.synthesis, self.hop)[..., : self.horizon]

    def forward(self, x: Float[torch.Tensor, "... l"]) -> Float[torch.Tensor, "... h"]:
        """The forecast of each look-back."""
        if x.shape[-1] != self.lookback:
            raise ValueError(f"x must end in an axis of lookback={self.lookback} values, got shape {tuple(x.shape)}")
        if self._foldable and x.dtype in (torch.float32, torch.float64):
            return self._folded(x)
        u, level = self._normalised_coefficients(x)
        v = self.mix(u)
        if self.norm.mode == "none":
            return self.synthesise(v)
        if self.hop < self.synthesis_size:
            return self.synthesise(v) + level
        # The level goes through the synthesis as one more coefficient: the forecast is written once.
        v = torch.cat([v, level.unsqueeze(-1).expand(*v.shape[:-1], 1)], -1)
        taps = torch.cat([self.synthesis, self.synthesis.new_ones(1, self.synthesis_size)])
        return (v @ taps).flatten(-2)[..., : self.horizon]

    @property
    def _foldable(self) -> bool:
        """Whether the level can travel through the small matrices as one more coefficient."""
        pieces = max(self.kernel_size // self.stride, self.synthesis_size // self.hop)
        return (
            self.core_kind in ("dense", "lowrank")
            and self.norm.mode == "mean"
            and self.kernel_size % self.stride == 0
            and self.synthesis_size % self.hop == 0
            and pieces <= FOLDED_PIECES
            and not self.padding
        )

    def _folded(self, x: Float[torch.Tensor, "... l"]) -> Float[torch.Tensor, "... h"]:
        """The same forecast in matrix products alone: the look-back is read once and the forecast written once.

        The level is taken off after the products, which costs the digits by which it exceeds the spread of the look-back:
        none to speak of for scaled series in float32, but half precision takes the other path.

        The look-back is cut into chunks of one stride and each filter into as many pieces, so overlapping frames copy
        nothing; the core adds the pieces up. A last filter of 1/L measures the level, the core takes
        ``level * sum(filter)`` off every coefficient and hands the level on, a last synthesis filter of ones puts it back.
        """
        pieces = self.kernel_size // self.stride
        chunks, inputs = self.frames_in - 1 + pieces, pieces * self.n_filters
        taps = self.analysis.unflatten(1, (pieces, self.stride)).transpose(0, 1).flatten(0, 1)
        analysis = torch.cat([taps, taps.new_full((1, self.stride), 1.0 / self.lookback)])
        first = self.core[0].unflatten(0, (self.frames_in, self.n_filters))
        off = -torch.einsum("k,tkr->r", self.analysis.sum(1), first).expand(chunks, 1, -1)
        # Piece j of the frame that starts at chunk t lies in chunk t + j.
        spread = [F.pad(first, (0, 0, 0, 0, j, pieces - 1 - j)) for j in range(pieces)]
        first = torch.cat([*spread, off], 1).flatten(0, 1)
        level = taps.new_zeros(chunks, inputs + 1, 1)
        level[:, -1] = 1.0
        level = level.flatten(0, 1)
        if self.core_kind == "dense":
            factors = [self._with_level(first, level)]
        else:
            last = F.pad(self.core[1], (0, 0, 0, 1))
            carry = last.new_zeros(len(last), 1)
            carry[-1] = 1.0
            factors = [torch.cat([first, level], 1), self._with_level(last, carry)]
        parts = self.synthesis_size // self.hop
        synthesis = self.synthesis.unflatten(1, (parts, self.hop)).transpose(0, 1).flatten(0, 1)
        synthesis = torch.cat([synthesis, synthesis.new_ones(1, self.hop)])
        flat = (x.reshape(-1, self.stride) @ analysis.T).view(-1, chunks * (inputs + 1))
        for factor in factors:
            flat = flat @ factor
        y = flat.reshape(-1, parts * self.n_synthesis + 1) @ synthesis
        return y.view(*x.shape[:-1], (self.frames_out - 1 + parts) * self.hop)[..., : self.horizon]

    def _with_level(self, factor: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        """Columns ``(T_out, K2)`` laid out by chunks of one hop, with one more coefficient a chunk for the level."""
        columns = factor.unflatten(1, (self.frames_out, self.n_synthesis))
        parts = self.synthesis_size // self.hop
        spread = [F.pad(columns, (0, 0, j, parts - 1 - j)) for j in range(parts)]
        level = level.unsqueeze(1).expand(-1, self.frames_out - 1 + parts, -1)
        return torch.cat([*spread, level], 2).flatten(1)

    def _normalised_coefficients(
        self, x: Float[torch.Tensor, "... l"]
    ) -> tuple[Float[torch.Tensor, "... t k"], Float[torch.Tensor, "... 1"]]:
        """Coefficients of ``x - level``, and the level, reading the look-back once where frames do not overlap."""
        if self.norm.mode == "none":
            return self.analyse(x), x[..., :1]
        if self.norm.mode == "mean" and self.stride == self.kernel_size and not self.padding:
            frames = x.reshape(*x.shape[:-1], self.frames_in, self.kernel_size)
            taps = torch.cat([self.analysis, self.analysis.new_full((1, self.kernel_size), 1.0 / self.lookback)])
            both = frames @ taps.T
            u, level = both[..., :-1], both[..., -1].sum(-1, keepdim=True)
        else:
            u, level = self.analyse(x), self.norm.level(x)
        return u - level.unsqueeze(-1) * self.analysis.sum(1), level

    # -- as one matrix ------------------------------------------------------------------------------------------------

    def linear_map(self) -> Float[torch.Tensor, "l h"]:
        """``W`` acting on the normalised look-back (differentiable)."""
        eye = torch.eye(self.lookback, dtype=self.analysis.dtype, device=self.analysis.device)
        return self.synthesise(self.mix(self.analyse(eye)))

    def analysis_matrix(self) -> Float[np.ndarray, "l u"]:
        """``x -> u`` as a matrix ``(L, T_in K)``, float64, with the padding folded in."""
        taps = self.analysis.detach().double().cpu().numpy()
        matrix = np.zeros((self.padding + self.lookback, self.frames_in, self.n_filters))
        for t in range(self.frames_in):
            matrix[t * self.stride : t * self.stride + self.kernel_size, t] = taps.T
        folded = matrix[self.padding :]
        folded[0] += matrix[: self.padding].sum(0)
        return folded.reshape(self.lookback, -1)

    def synthesis_matrix(self) -> Float[np.ndarray, "v h"]:
        """``v -> y`` as a matrix ``(T_out K2, H)``, float64."""
        taps = self.synthesis.detach().double().cpu().numpy()
        width = (self.frames_out - 1) * self.hop + self.synthesis_size
        matrix = np.zeros((self.frames_out, self.n_synthesis, width))
        for s in range(self.frames_out):
            matrix[s, :, s * self.hop : s * self.hop + self.synthesis_size] = taps
        return matrix[..., : self.horizon].reshape(-1, self.horizon)

    # -- the two laws -------------------------------------------------------------------------------------------------

    @property
    def rank_bound(self) -> int:
        """What the hyper-parameters allow as the rank of ``W``."""
        taps_in, taps_out = min(self.n_filters, self.kernel_size), min(self.n_synthesis, self.synthesis_size)
        if self.core_kind == "depthwise":
            bound = self.n_filters * min(self.frames_in, self.frames_out)
        elif self.core_kind == "shared":
            bound = min(self.frames_in, self.frames_out) * min(taps_in, taps_out)
        else:
            bound = self.rank
        # More filters than taps add no direction; nothing exceeds the two windows.
        return min(bound, taps_in * self.frames_in, taps_out * self.frames_out, self.lookback, self.horizon)

    def effective_rank(self, tolerance: float = 1e-9) -> int:
        """The numerical rank of ``W`` (float64)."""
        with torch.no_grad():
            values = torch.linalg.svdvals(self.double_map())
        return int((values > tolerance * values[0]).sum())

    def double_map(self) -> Float[torch.Tensor, "l h"]:
        """:meth:`linear_map` in float64, whatever the parameters' type."""
        a, b = torch.from_numpy(self.analysis_matrix()), torch.from_numpy(self.synthesis_matrix())
        u = a.unflatten(-1, (self.frames_in, self.n_filters))
        core = [c.detach().double().cpu() for c in self.core]
        if self.core_kind == "depthwise":
            v = torch.einsum("ltk,kts->lsk", u, core[0])
        elif self.core_kind == "shared":
            v = torch.einsum("ltk,ts->lsk", u, core[0])
        else:
            v = a
            for factor in core:
                v = v @ factor
        return v.reshape(self.lookback, -1) @ b

    def macs(self) -> int:
        """Multiply-adds of one forecast of one channel."""
        inputs, outputs = self.n_filters * self.frames_in, self.n_synthesis * self.frames_out
        core = {
            "dense": inputs * outputs,
            "lowrank": self.rank * (inputs + outputs),
            "depthwise": self.n_filters * self.frames_in * self.frames_out,
            "shared": self.n_filters * self.frames_in * self.frames_out,
        }[self.core_kind]
        return self.frames_in * self.kernel_size * self.n_filters + core + outputs * self.synthesis_size

    def num_parameters(self) -> int:
        """Numbers stored in filters and core."""
        return self.analysis.numel() + self.synthesis.numel() + sum(c.numel() for c in self.core)

    def cost_against_linear(self) -> float:
        """``L H / macs()``: how many times cheaper than one linear layer."""
        return self.lookback * self.horizon / self.macs()

    def extra_repr(self) -> str:
        """Sizes and laws for ``print``."""
        return (
            f"L={self.lookback}, H={self.horizon}, K={self.n_filters}, P={self.kernel_size}, S={self.stride}, "
            f"K2={self.n_synthesis}, Q={self.synthesis_size}, core={self.core_kind}, rank<={self.rank_bound}, "
            f"macs={self.macs()}"
        )

    # -- special cases ------------------------------------------------------------------------------------------------

    @classmethod
    def from_factors(
        cls, analysis: Float[np.ndarray, "l r"], synthesis: Float[np.ndarray, "r h"], norm: str = DEFAULTS.norm
    ) -> FilterBank:
        """The global bank of a low-rank forecaster ``W = A B``: one frame, r filters as long as the windows."""
        (lookback, rank), horizon = analysis.shape, synthesis.shape[1]
        bank = cls(lookback, horizon, rank, lookback, None, rank, horizon, core="shared", norm=norm)
        with torch.no_grad():
            bank.analysis.copy_(torch.from_numpy(np.ascontiguousarray(analysis.T)))
            bank.synthesis.copy_(torch.from_numpy(np.ascontiguousarray(synthesis)))
            bank.core[0].fill_(1.0)
        return bank

    @classmethod
    def from_linear(cls, weight: Float[np.ndarray, "l h"], kernel_size: int, norm: str = DEFAULTS.norm) -> FilterBank:
        """The full linear model as a bank: square orthonormal filters and a dense core; needs P | L and P | H."""
        lookback, horizon = weight.shape
        if lookback % kernel_size or horizon % kernel_size:
            raise ValueError(f"kernel_size={kernel_size} must divide lookback={lookback} and horizon={horizon}")
        bank = cls(lookback, horizon, kernel_size, kernel_size, core="dense", init="dct", norm=norm)
        a, b = bank.analysis_matrix(), bank.synthesis_matrix()
        with torch.no_grad():
            bank.core[0].copy_(torch.from_numpy(a.T @ weight @ b.T))
        return bank

    @classmethod
    def from_shared_core(cls, core: Float[np.ndarray, "f o"], period: int, norm: str = DEFAULTS.norm) -> FilterBank:
        """SparseTSF without its convolution: identity filters of one period, ``W = D kron I``."""
        frames, outputs = core.shape
        bank = cls(frames * period, outputs * period, period, period, core="shared", norm=norm)
        with torch.no_grad():
            bank.analysis.copy_(torch.eye(period))
            bank.synthesis.copy_(torch.eye(period))
            bank.core[0].copy_(torch.from_numpy(core))
        return bank

    @classmethod
    def from_fits(cls, weight: np.ndarray, lookback: int, horizon: int, norm: str = DEFAULTS.norm) -> FilterBank:
        """FITS as a bank: Fourier analysis of the look-back cut at ``weight.shape[0]`` bins, a complex linear map as a
        real dense core, Fourier synthesis of length L + H of which the last H values are kept.

        ``weight`` is the complex ``(bins in, bins out)`` matrix acting on a row of ``rfft`` coefficients.
        """
        bins, outputs = weight.shape
        total = lookback + horizon
        bank = cls(lookback, horizon, 2 * bins, lookback, None, 2 * outputs, horizon, core="dense", norm=norm)
        real, imag = weight.real, weight.imag
        mixed = np.block([[real, imag], [-imag, real]])
        # irfft as two real matrices: bin 0 (and the last bin of an even length) counts once, the others twice.
        twice = np.full(outputs, 2.0)
        twice[0] = 1.0
        if total % 2 == 0 and outputs == total // 2 + 1:
            twice[-1] = 1.0
        inverse = fourier_filters(total, outputs) * np.tile(twice, 2)[:, None] / total
        with torch.no_grad():
            bank.analysis.copy_(torch.from_numpy(fourier_filters(lookback, bins)))
            bank.synthesis.copy_(torch.from_numpy(inverse[:, lookback:] * total / lookback))
            bank.core[0].copy_(torch.from_numpy(mixed))
        return bank


def overlap_add(frames: Float[torch.Tensor, "... s q"], hop: int) -> Float[torch.Tensor, "... w"]:
    """Frames of length Q laid down every ``hop`` steps and added; width ``(T - 1) hop + Q``."""
    count, size = frames.shape[-2:]
    if hop == size:
        return frames.flatten(-2)
    # Pad each frame to whole hops, then add the shifted pieces: one vector addition a piece.
    pieces = math.ceil(size / hop)
    cut = F.pad(frames, (0, pieces * hop - size)).unflatten(-1, (pieces, hop))
    total = 0
    for i in range(pieces):
        part = cut[..., i, :].flatten(-2)
        total = total + F.pad(part, (i * hop, (pieces - 1 - i) * hop))
    return total[..., : (count - 1) * hop + size]


class _Block(nn.Module):
    """One block of the stack: a linear bank, and a GELU path with a forecast and a backcast."""

    def __init__(self, bank: FilterBank, hidden: int, channels: int | None, mixing_rank: int):
        super().__init__()
        self.bank = bank
        inputs, outputs = bank.n_filters * bank.frames_in, bank.n_synthesis * bank.frames_out
        self.inner = nn.Linear(inputs, hidden)
        self.forecast = nn.Linear(hidden, outputs, bias=False)
        self.backcast = nn.Linear(hidden, inputs, bias=False)
        for layer in (self.forecast, self.backcast):
            nn.init.zeros_(layer.weight)
        self.gather = self.spread = None
        if channels is not None:
            self.gather = nn.Parameter(torch.randn(channels, mixing_rank) / math.sqrt(channels))
            self.spread = nn.Parameter(torch.zeros(mixing_rank, channels))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bank = self.bank
        u = bank.analyse(x)
        flat = u.flatten(-2)
        if self.gather is not None:  # low-rank mixing over the channel axis
            flat = flat + torch.einsum("...cu,cr,rd->...du", flat, self.gather, self.spread)
        hidden = F.gelu(self.inner(flat))
        v = bank.mix(u) + self.forecast(hidden).unflatten(-1, (bank.frames_out, bank.n_synthesis))
        back = self.backcast(hidden).unflatten(-1, (bank.frames_in, bank.n_filters)) @ bank.analysis
        back = overlap_add(back, bank.stride)[..., bank.padding :]
        return back, bank.synthesise(v)


class DeepFilterBank(nn.Module):
    """Doubly residual stack of filter-bank blocks (after N-BEATS): each block explains a part of its input and hands
    on the rest; forecasts add up.

    Block ``b`` uses a stride from ``DEFAULTS.stack_strides * period`` in turn. With ``first`` given (a fitted linear bank) and
    the last layers of every other path at zero, the untrained stack computes exactly what ``first`` computes.

    Args:
        lookback: L.
        horizon: H.
        first: the bank block 0 starts from, e.g. from :func:`neurips26.filterbank_tsf.bank.fit_bank`.
        depth: number of blocks.
        n_filters: filters of the blocks after the first.
        hidden: width of the GELU path.
        period: of the data, in steps.
        rank: rank of the linear cores after the first.
        channels: C; turns on low-rank mixing over the second-last axis.
        mixing_rank: its rank.
        seed: of the random parts.
    """

    def __init__(
        self,
        lookback: int,
        horizon: int,
        first: FilterBank | None = None,
        depth: int = 3,
        n_filters: int = 4,
        hidden: int = 32,
        period: int = 24,
        rank: int = 8,
        channels: int | None = None,
        mixing_rank: int = 2,
        seed: int = 0,
    ):
        super().__init__()
        if depth < 1:
            raise ValueError(f"depth must be a positive integer, got {depth}")
        self.lookback, self.horizon = lookback, horizon
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if first is None:
                first = FilterBank(lookback, horizon, n_filters, min(period, lookback), rank=rank, seed=seed)
            if (first.lookback, first.horizon) != (lookback, horizon):
                raise ValueError(
                    f"first: its windows are ({first.lookback}, {first.horizon}), expected ({lookback}, {horizon})"
                )
            self.norm = first.norm
            blocks = [_Block(first, hidden, channels, mixing_rank)]
            strides = DEFAULTS.stack_strides
            for b in range(1, depth):
                stride = max(1, min(lookback, round(period * strides[(b - 1) % len(strides)])))
                bank = FilterBank(lookback, horizon, n_filters, stride, rank=rank, norm="none", seed=seed + b)
                nn.init.zeros_(bank.core[-1])
                blocks.append(_Block(bank, hidden, channels, mixing_rank))
            self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Float[torch.Tensor, "... l"]) -> Float[torch.Tensor, "... h"]:
        """The forecast of each look-back; ``(batch, channels, L)`` where channels are mixed."""
        level = self.norm.level(x)
        rest, total = x - level, level
        for block in self.blocks:
            back, forecast = block(rest)
            rest, total = rest - back, total + forecast
        return total

    def features(self, x: Float[torch.Tensor, "... l"]) -> Float[torch.Tensor, "... f"]:
        """What the last layers of all blocks read: coefficients and GELU activations, for kernel analysis."""
        rest, parts = x - self.norm.level(x), []
        for block in self.blocks:
            flat = block.bank.analyse(rest).flatten(-2)
            parts += [flat, F.gelu(block.inner(flat))]
            rest = rest - block(rest)[0]
        return torch.cat(parts, -1)


def parameter_count(modules: Sequence[nn.Module] | nn.Module) -> int:
    """Trainable numbers of a module or of several."""
    several = [modules] if isinstance(modules, nn.Module) else modules
    return sum(p.numel() for m in several for p in m.parameters() if p.requires_grad)

"""Second moments of sliding windows: the only contact the closed forms have with the data.

A window is ``w = [x; y]`` with look-back ``x`` (L values) and horizon ``y`` (H values). With
``S = sum_w w w^T`` every linear forecaster of every rank can be fitted and its squared error evaluated exactly, so
no ``(N, L)`` window matrix is ever built. For windows of stride one ``S`` obeys a displacement recursion,

    S[i+1, j+1] = S[i, j] - z_i z_j + z_{N+i} z_{N+j},

whose first row is a correlation. Cost: ``O(C T log T + (L+H)^2)`` in place of ``O(C T (L+H)^2)``.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
from jaxtyping import Float
from scipy import fft as sfft

Norm = Literal["none", "mean", "last"]
NORMS: tuple[str, ...] = ("none", "mean", "last")

# Added inside the root of the instance's standard deviation (RevIN, Kim et al. 2022).
REVIN_EPS = 1e-5
# Rows of one block of the blocked path: 2048 windows of length 1440 in float64 are 24 MB.
BLOCK_ROWS = 2048


class StatisticsFileError(ValueError):
    """A file of saved statistics is damaged or of another kind."""


def norm_vector(norm: str, lookback: int, width: int) -> Float[np.ndarray, " w"]:
    """The row ``q`` of the instance normaliser ``w' = w - 1 (q^T w)`` over a joint window of ``width`` values.

    ``"last"`` takes the newest value of the look-back (NLinear), ``"mean"`` its average (RevIN with a bias-free linear
    map: the standard deviation cancels), ``"none"`` takes nothing.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {NORMS}, got {norm!r}")
    q = np.zeros(width)
    if norm == "mean":
        q[:lookback] = 1.0 / lookback
    elif norm == "last":
        q[lookback - 1] = 1.0
    return q


@dataclass(frozen=True)
class WindowStats:
    """Sufficient statistics of all windows ``[x; y]`` of one or many series.

    Attributes:
        about_mean: ``sum v v^T`` with ``v`` the window less the mean of its channel, ``(L+H, L+H)``, float64.
        total: ``sum w``, ``(L+H,)``; what an intercept needs.
        count: number of windows N (channels counted separately), or the sum of weights.
        lookback: L.
        horizon: H.
        norm: instance normalisation already applied to the windows.
        lift: ``u`` of ``S = sum w w^T = sum v v^T + u 1^T + 1 u^T``, or ``None`` for zero. Instance normalisation removes both
            terms exactly, so a level that is far above the spread of a series costs no digits.
    """

    about_mean: Float[np.ndarray, "d d"]
    total: Float[np.ndarray, " d"]
    count: float
    lookback: int
    horizon: int
    norm: str = "none"
    lift: Float[np.ndarray, " d"] | None = None

    # -- building -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_series(
        cls,
        z: object,
        lookback: int,
        horizon: int,
        *,
        stride: int = 1,
        missing: Literal["error", "mask"] = "error",
        loss_space: Literal["original", "normalised"] = "original",
        method: Literal["auto", "displacement", "blocked"] = "auto",
        name: str = "z",
    ) -> WindowStats:
        """Statistics of every window of ``z`` (``(T,)`` or ``(T, C)``; each channel is a sample of its own).

        Args:
            z: the series; any real dtype and memory order.
            lookback: L.
            horizon: H.
            stride: distance between window starts; other than 1 takes the blocked path.
            missing: ``"error"`` refuses NaN or infinity; ``"mask"`` leaves out the windows that touch one.
            loss_space: ``"normalised"`` weights each window by ``1 / (var(x) + 1e-5)``, which is the loss RevIN
                minimises when it is taken before de-normalisation; the result then has norm ``"mean"``.
            method: ``"displacement"`` (stride 1, no gaps), ``"blocked"`` accumulation, or whichever fits.
            name: what errors call the series.

        Raises:
            ValueError: too few rows, NaN (named by column and row), an unknown option.
        """
        values = as_series(z, name)
        length, horizon = _positive(lookback, "lookback"), _positive(horizon, "horizon")
        _positive(stride, "stride")
        for option, value, known in (
            ("missing", missing, ("error", "mask")),
            ("loss_space", loss_space, ("original", "normalised")),
            ("method", method, ("auto", "displacement", "blocked")),
        ):
            if value not in known:
                raise ValueError(f"{option} must be one of {known}, got {value!r}")
        check_long_enough(values, length, horizon, name)
        holes = not np.isfinite(values).all()
        if holes and missing == "error":
            raise_missing(values, name)
        plain = stride == 1 and not holes and loss_space == "original"
        if method == "displacement" and not plain:
            raise ValueError("method='displacement' needs stride 1, no missing values and loss_space='original'")
        if method == "displacement" or (method == "auto" and plain):
            return _displacement(values, length, horizon)
        return _blocked(values, length, horizon, stride, loss_space == "normalised", name)

    def merge(self, other: WindowStats) -> WindowStats:
        """Statistics of both sets of windows together; how a fit is distributed or continued."""
        self._check_alike(other, "other")
        return replace(
            self, about_mean=self.about_mean + other.about_mean, total=self.total + other.total,
            count=self.count + other.count, lift=_sum(self.lift, other.lift),
        )  # fmt: skip

    def without(self, part: WindowStats) -> WindowStats:
        """Statistics of the windows that are left when those of ``part`` are taken out; undoes :meth:`merge`."""
        self._check_alike(part, "part")
        lift = None if part.lift is None else -part.lift
        return replace(
            self, about_mean=self.about_mean - part.about_mean, total=self.total - part.total,
            count=self.count - part.count, lift=_sum(self.lift, lift),
        )  # fmt: skip

    def _check_alike(self, other: WindowStats, argument: str) -> None:
        for name in ("lookback", "horizon", "norm"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"{argument}: statistics of {name}={theirs!r} do not go with {name}={mine!r}")

    def normalised(self, norm: str) -> WindowStats:
        """Statistics of the windows after instance normalisation: ``S' = M S M^T`` with ``M = I - 1 q^T``."""
        q = norm_vector(norm, self.lookback, len(self.total))
        if norm == self.norm or norm == "none":
            if norm != self.norm:
                raise ValueError(f"norm: these statistics are already normalised by {self.norm!r}")
            return self
        if self.norm != "none":
            raise ValueError(f"norm: these statistics are already normalised by {self.norm!r}")
        sq = self.about_mean @ q
        half = sq - 0.5 * (q @ sq)
        moment = self.about_mean - half
        moment -= half[:, None]
        return replace(self, about_mean=moment, total=self.total - self.total @ q, norm=norm, lift=None)

    def centred(self, at: Float[np.ndarray, " d"] | None = None) -> WindowStats:
        """Moments of ``w - at``; by default ``at`` is the mean window, and a fit is the fit with an unpenalised intercept.

        The loss of that fit on another part is that part's, centred ``at`` the mean window of the fit.
        """
        if at is None:
            at = self.total / self.count
        shift = np.outer(at, self.total)
        moment = self.moment - shift - shift.T + self.count * np.outer(at, at)
        return replace(self, about_mean=moment, total=self.total - self.count * at, lift=None)

    def shorter(self, lookback: int) -> WindowStats:
        """The same windows seen through a shorter look-back (its newest ``lookback`` values), without a new pass."""
        if not 1 <= lookback <= self.lookback:
            raise ValueError(f"lookback must be between 1 and {self.lookback}, got {lookback}")
        if self.norm != "none":
            raise ValueError("lookback: shorten before normalising; the instance mean depends on the look-back")
        cut = slice(self.lookback - lookback, None)
        lift = None if self.lift is None else self.lift[cut]
        return replace(self, about_mean=self.about_mean[cut, cut], total=self.total[cut], lookback=lookback, lift=lift)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def moment(self) -> Float[np.ndarray, "d d"]:
        """``S = sum w w^T``."""
        return self._block(slice(None), slice(None))

    def _block(self, rows: slice, columns: slice) -> np.ndarray:
        block = self.about_mean[rows, columns]
        return block if self.lift is None else block + self.lift[rows, None] + self.lift[columns]

    @property
    def gram(self) -> Float[np.ndarray, "l l"]:
        """``G = X^T X``."""
        return self._block(slice(self.lookback), slice(self.lookback))

    @property
    def cross(self) -> Float[np.ndarray, "l h"]:
        """``C = X^T Y``."""
        return self._block(slice(self.lookback), slice(self.lookback, None))

    @property
    def target(self) -> Float[np.ndarray, "h h"]:
        """``Y^T Y``."""
        return self._block(slice(self.lookback, None), slice(self.lookback, None))

    def sse(self, weight: Float[np.ndarray, "l h"], bias: Float[np.ndarray, " h"] | None = None) -> float:
        """Exact summed squared error of ``y = x W + b`` over all windows."""
        fit = self.gram @ weight
        error = np.trace(self.target) - 2.0 * np.vdot(weight, self.cross) + np.vdot(weight, fit)
        if bias is not None:
            mean_x, mean_y = self.total[: self.lookback], self.total[self.lookback :]
            error += self.count * bias @ bias + 2.0 * bias @ (mean_x @ weight - mean_y)
        return float(max(error, 0.0))

    def mse(self, weight: Float[np.ndarray, "l h"], bias: Float[np.ndarray, " h"] | None = None) -> float:
        """Exact mean squared error over windows, channels and steps."""
        return self.sse(weight, bias) / (self.count * self.horizon)

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an ``.npz`` with a checksum; the file appears whole or not at all."""
        target = Path(path)
        buffer = io.BytesIO()
        np.savez(
            buffer,
            about_mean=self.about_mean,
            total=self.total,
            lift=np.zeros(0) if self.lift is None else self.lift,
            meta=np.array([self.count, self.lookback, self.horizon, NORMS.index(self.norm)], dtype=np.float64),
            digest=np.frombuffer(self._digest(), dtype=np.uint8),
        )
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(buffer.getvalue())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WindowStats:
        """Read what :meth:`save` wrote; ``StatisticsFileError`` names a damaged file."""
        try:
            with np.load(path, allow_pickle=False) as file:
                count, lookback, horizon, norm = file["meta"]
                lift = file["lift"] if file["lift"].size else None
                sizes = float(count), int(lookback), int(horizon)
                stats = cls(file["about_mean"], file["total"], *sizes, NORMS[int(norm)], lift)
                digest = file["digest"].tobytes()
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StatisticsFileError(f"{path}: not a readable file of window statistics ({error})") from error
        if digest != stats._digest():
            raise StatisticsFileError(f"{path}: checksum does not match; the file is damaged")
        return stats

    def _digest(self) -> bytes:
        head = f"{self.count!r}/{self.lookback}/{self.horizon}/{self.norm}".encode()
        lift = b"" if self.lift is None else self.lift.tobytes()
        return hashlib.sha256(head + self.about_mean.tobytes() + self.total.tobytes() + lift).digest()


# -- accumulation -----------------------------------------------------------------------------------------------------


def _sum(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return b if a is None else a if b is None else a + b


def _displacement(values: Float[np.ndarray, "t c"], lookback: int, horizon: int) -> WindowStats:
    """Statistics by the displacement recursion."""
    level = values.mean(0)
    z = values - level
    steps, width = len(z), lookback + horizon
    count = steps - width + 1
    size = sfft.next_fast_len(steps, real=True)  # no lag below the width wraps around
    first_row = np.zeros(width)
    for column in z.T:  # one channel at a time: memory stays O(T) for hundreds of channels
        head = sfft.rfft(column[:count], size)
        first_row += sfft.irfft(head.conj() * sfft.rfft(column, size), size)[:width]
    # What enters minus what leaves when both offsets move on by one.
    entering, leaving = z[count:], z[: width - 1]
    change = np.hstack([entering, -leaving]) @ np.hstack([entering, leaving]).T
    moment = np.empty((width, width))
    moment[0] = moment[:, 0] = first_row
    for i in range(1, width):
        np.add(moment[i - 1, :-1], change[i - 1], out=moment[i, 1:])
    sums = np.concatenate([np.zeros((1, z.shape[1])), np.cumsum(z, 0)])
    totals = sums[count:] - sums[:width]  # of each channel
    return WindowStats(
        moment, totals.sum(1) + count * level.sum(), float(count * z.shape[1]), lookback, horizon,
        lift=totals @ level + 0.5 * count * (level @ level),
    )  # fmt: skip


def window_blocks(
    z: Float[np.ndarray, "t c"], width: int, stride: int = 1, rows: int = BLOCK_ROWS
) -> Iterator[Float[np.ndarray, "n w"]]:
    """Views of the windows of every channel, a block of rows at a time (nothing is copied here)."""
    for column in np.ascontiguousarray(z.T):
        windows = np.lib.stride_tricks.sliding_window_view(column, width)[::stride]
        for start in range(0, len(windows), rows):
            yield windows[start : start + rows]


def _blocked(z: np.ndarray, lookback: int, horizon: int, stride: int, weighted: bool, name: str) -> WindowStats:
    width = lookback + horizon
    moment, total, lift, count = np.zeros((width, width)), np.zeros(width), np.zeros(width), 0.0
    for column in z.T:
        seen = column[np.isfinite(column)]
        level = seen.mean() if seen.size else 0.0
        for block in window_blocks(column[:, None] - level, width, stride):
            block = block[np.isfinite(block).all(1)]
            weight = np.ones(len(block))
            if weighted:
                past = block[:, :lookback]
                weight = 1.0 / (past.var(1) + REVIN_EPS)
                block = (block - past.mean(1, keepdims=True)) * np.sqrt(weight)[:, None]
            mine, number = np.sqrt(weight) @ block, float(weight.sum())
            moment += block.T @ block
            total += mine if weighted else mine + number * level
            lift += level * mine + 0.5 * number * level**2
            count += number
    if count == 0:
        raise_no_window(name, width)
    if weighted:
        return WindowStats(moment, total, count, lookback, horizon, "mean")
    return WindowStats(moment, total, count, lookback, horizon, lift=lift)


# -- argument checks --------------------------------------------------------------------------------------------------


def as_series(z: object, name: str) -> Float[np.ndarray, "t c"]:
    """Any real array-like of ``(T,)`` or ``(T, C)`` as float64 ``(T, C)``; one clear error otherwise."""
    try:
        values = np.asarray(z)
        if values.dtype.kind in "cSUmM":
            raise TypeError(f"dtype {values.dtype}")
        values = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold real numbers, got something else ({error})") from error
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(f"{name} must be (T,) or (T, C), got shape {values.shape}")
    if values.shape[1] == 0:
        raise ValueError(f"{name} has no channel: shape {values.shape}")
    return values


def raise_missing(
    values: np.ndarray,
    name: str,
    columns: Sequence[object] | None = None,
    advice: str = "fill it, or pass missing='mask' to leave out the windows that touch it",
    first_row: int = 0,
) -> NoReturn:
    """Raise the error that names the first missing value by column and row (``first_row`` is the number of the first)."""
    row, column = np.argwhere(~np.isfinite(values))[0]
    label = columns[column] if columns else int(column)
    raise ValueError(f"{name}: column {label!r} holds {values[row, column]} at row {first_row + row}; {advice}")


def raise_no_window(name: str, width: int) -> NoReturn:
    """Raise the error for a series in which every window touches a missing value."""
    raise ValueError(f"{name}: no window of L + H = {width} values is free of missing values")


def check_long_enough(values: np.ndarray, lookback: int, horizon: int, name: str) -> None:
    """Raise unless at least one window fits."""
    if len(values) < lookback + horizon:
        raise ValueError(
            f"{name} has {len(values)} rows, but one window needs lookback + horizon = {lookback} + {horizon} = "
            f"{lookback + horizon}"
        )


def _positive(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)

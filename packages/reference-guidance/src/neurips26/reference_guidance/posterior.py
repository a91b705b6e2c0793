r"""The closed-form reference mean: what the endpoint would be if the data were exactly the reference set.

For a bridge ``x_t = a_t x_1 + s_t x_0`` and references ``d_1..d_M`` with prior ``pi``,

    l_i(x, t) = -||x - a_t d_i||^2 / (2 s_t^2 tau) + log pi_i,   w = softmax(l),   mu_ref(x, t) = sum_i w_i d_i.

``tau = 1`` is the exact posterior mean under the empirical distribution of the references (``metric="sum"``); the
authors' code divides the squared distance by the dimension ``D`` (``metric="mean"``, that is ``tau = D``), which keeps
the average soft in high dimension. Only differences of ``l`` matter, so ``||x||^2`` is dropped and

    l_i = (a / (s^2 tau)) <x, d_i> - a^2 ||d_i||^2 / (2 s^2 tau)

is accumulated in float64: in float32 the expanded squares are wrong by hundreds of nats at D = 3e5 and t = 0.95.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neurips26.reference_guidance.bridge import LinearBridge, VPBridge
from neurips26.reference_guidance.errors import BankMismatchError, EmptyBankError
from neurips26.shared.arrays import check_choice, check_int, check_real

__all__ = [
    "BANDWIDTH_FLOOR",
    "METRICS",
    "SCOPES",
    "TIME_CLIP",
    "PosteriorStats",
    "check_finite",
    "dense_mean",
    "reference_mean",
    "scales",
    "squared_norms",
]

#: ``t`` is kept this far from 0 and 1, and this much is added to ``s_t^2`` (the authors' values).
TIME_CLIP = 1e-4
BANDWIDTH_FLOOR = 1e-8
METRICS = ("sum", "mean")
SCOPES = ("global", "patch")

#: A number, or a tensor of them where samples or tokens differ.
Number = float | Tensor

#: Elements of the bank that are turned to float64 at a time when no chunk is given (256 MiB).
_BLOCK = 1 << 25


@dataclass(frozen=True)
class PosteriorStats:
    """What the softmax looked like, before any top-k cut.

    Attributes:
        entropy: entropy of the full softmax in nats, shape (b,) or (b, tokens).
        top1: its largest weight.
        indices: the references kept by top-k, best first, or ``None`` where all were used.
        logits: the log weights up to a constant per row.
    """

    entropy: Tensor
    top1: Tensor
    indices: Int[Tensor, "... k"] | None
    logits: Tensor

    @property
    def effective(self) -> Tensor:
        """Effective number of references, ``exp(entropy)``."""
        return self.entropy.exp()


def squared_norms(refs: Tensor, chunk: int | None = None) -> Float[Tensor, " m"]:
    """``||d_i||^2`` of every reference in float64; compute it once a bank and pass it on."""
    rows = chunk or max(1, _BLOCK // max(1, refs[0].numel()))
    parts = [refs[i : i + rows].flatten(1).double().square().sum(1) for i in range(0, refs.shape[0], rows)]
    return torch.cat(parts)


@torch.no_grad()
def reference_mean(
    x: Float[Tensor, "b *d"],
    refs: Float[Tensor, "m *d"],
    t: float | int | Tensor,
    *,
    temperature: float | int = 1.0,
    metric: str = "sum",
    topk: int | None = None,
    log_prior: Float[Tensor, " m"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    chunk: int | None = None,
    scope: str = "global",
    bridge: LinearBridge | VPBridge | None = None,
    norms: Float[Tensor, " m"] | None = None,
) -> tuple[Float[Tensor, "b *d"], PosteriorStats]:
    """Posterior mean of the endpoint under the reference set.

    Args:
        x: current samples.
        refs: references of the same shape as a sample; may lie on another device or in a mapped file.
        t: time in [0, 1] from noise to data: one number, one a sample (b,), or one an element or token (a tensor that
            broadcasts against ``x``, as ``per_token_timesteps`` needs).
        temperature: ``tau``; above 1 softens, below 1 sharpens towards the nearest reference.
        metric: ``"sum"`` (exact) or ``"mean"`` (squared distance divided by the dimension, as released).
        topk: keep the k largest weights and renormalise; ``None`` or ``>= m`` keeps all.
        log_prior: log prior weights, not necessarily normalised.
        mask: references that may be used, (m,) or (b, m).
        chunk: references per block of the streamed softmax; ``None`` picks blocks of about 256 MiB. The patch scope goes
            through the tokens in blocks of that size instead.
        scope: ``"global"`` (one softmax an image) or ``"patch"`` (one a token or pixel position; ours, not the paper's).
        bridge: the bridge of the flow; linear by default.
        norms: ``squared_norms(refs)`` where it is at hand.

    Returns:
        The mean in the dtype and on the device of ``x``, and the statistics of the full softmax.

    Raises:
        EmptyBankError: no reference, or none left by ``mask`` for some sample.
        BankMismatchError: references of another shape than a sample.
        ValueError: values that are not finite, or an argument out of range.
    """
    _check(x, refs, temperature, metric, topk, scope)
    _check_lengths(refs, log_prior=log_prior, norms=norms)
    m = refs.shape[0]
    k = _clamp_topk(topk, m)
    if chunk is not None:
        check_int(chunk, "chunk", minimum=1)
    device = x.device
    allowed = _allowed(mask, x.shape[0], m, device)
    prior = None if log_prior is None else check_finite(log_prior.to(device).double(), "log_prior")
    a, s = _coefficients(t, x, bridge or LinearBridge())
    if scope == "patch":
        return _per_patch(x, refs, a, s, float(temperature), metric, k, prior, allowed)

    flat = x.flatten(1).double()
    tau = float(temperature) * (flat.shape[1] if metric == "mean" else 1)
    slope, square = a / (s * s * tau), a * a / (2 * s * s * tau)
    rows = chunk or max(1, _BLOCK // flat.shape[1])
    per_sample = isinstance(square, float) or square.shape[1] == 1
    if per_sample and norms is None:
        norms = squared_norms(refs, rows)
    if rows >= m and per_sample:
        assert norms is not None
        whole = refs.flatten(1).to(device).double()
        mu, stats = dense_mean(flat, whole, norms.to(device, torch.float64), slope, square, k, prior, allowed)
        return _finished(mu, x, refs), stats
    mu, stats = _streamed_mean(flat, refs, norms if per_sample else None, slope, square, k, prior, allowed, rows)
    return _finished(mu, x, refs), stats


def _streamed_mean(
    flat: Tensor, refs: Tensor, norms: Tensor | None, slope: Number, square: Number, k: int | None,
    prior: Tensor | None, allowed: Tensor | None, rows: int,
) -> tuple[Tensor, PosteriorStats]:  # fmt: skip
    """The mean with ``rows`` references in float64 at a time; arguments as of :func:`dense_mean`.

    Without ``norms`` the factors are (b, D), one an element, and the squares are weighted element by element.
    """
    device = flat.device
    query, logits, running = flat * slope, [], None
    for start in range(0, refs.shape[0], rows):
        part = slice(start, start + rows)
        block = refs[part].flatten(1).to(device).double()
        if norms is None:
            l = query @ block.mT - square @ block.square().mT
        else:
            l = query @ block.mT - square * norms[part].to(device).double()
        if prior is not None:
            l = l + prior[part]
        if allowed is not None:
            l = l.masked_fill(~allowed[:, part], -math.inf)
        logits.append(l)
        if k is None:
            running = _accumulate(running, l, block)
    full = torch.cat(logits, 1)
    if k is None:
        assert running is not None
        return running[2] / running[1], _stats(full, None)
    best, indices = full.topk(k, dim=1)
    chosen = refs[indices.to(refs.device).flatten()].flatten(1).to(device).double()
    return (best.softmax(1)[:, None] @ chosen.reshape(*indices.shape, -1))[:, 0], _stats(full, indices)


def _finished(mu: Tensor, x: Tensor, refs: Tensor) -> Tensor:
    """The mean like ``x``; where it is not finite, the reference that made it so is named."""
    if not math.isfinite(float(mu.sum())):
        for i in range(refs.shape[0]):  # row by row: a bank may be larger than memory
            check_finite(refs[i], f"refs[{i}]")
    return mu.to(x.dtype).reshape(x.shape)


def dense_mean(
    flat: Tensor, rows: Tensor, norms: Tensor, slope: Number, square: Number, k: int | None,
    prior: Tensor | None = None, allowed: Tensor | None = None,
) -> tuple[Tensor, PosteriorStats]:  # fmt: skip
    """The mean over references that are at hand as one float64 matrix; nothing is checked: a sampler calls it every step.

    Args:
        flat: samples (b, D) in float64.
        rows: references (m, D) in float64, on the device of the samples.
        norms: ``||d_i||^2`` (m,).
        slope: factor of ``<x, d_i>`` in the logits, a number or (b, 1).
        square: factor of ``||d_i||^2``, likewise.
        k: references kept; ``None`` keeps all.
        prior: log prior weights (m,).
        allowed: references that may be used, (b, m).
    """
    logits = (flat @ rows.mT).mul_(slope)
    logits = logits.sub_(norms, alpha=square) if isinstance(square, float) else logits.sub_(square * norms)
    if prior is not None:
        logits += prior
    if allowed is not None:
        logits.masked_fill_(~allowed, -math.inf)
    if k is None:
        return logits.softmax(1) @ rows, _stats(logits, None)
    best, indices = logits.topk(k, dim=1)
    weight = best.softmax(1)
    if len(flat) == 1:
        mu = weight @ rows.index_select(0, indices[0])
    elif len(flat) * k < len(rows):  # copying the chosen rows is cheaper than reading all
        mu = (weight[:, None] @ rows[indices])[:, 0]
    else:
        mu = torch.zeros_like(logits).scatter_(1, indices, weight) @ rows
    return mu, _stats(logits, indices)


def _accumulate(
    running: tuple[Tensor, Tensor, Tensor] | None, l: Tensor, block: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One block of the streamed softmax: running maximum, denominator, numerator."""
    high = l.amax(1, keepdim=True)
    if running is not None:
        high = torch.maximum(high, running[0])
    shift = high.masked_fill(high == -math.inf, 0.0)  # a sample may have no allowed reference in this block
    weight = (l - shift).exp()
    den, num = weight.sum(1, keepdim=True), weight @ block
    if running is not None:
        old = (running[0] - shift).exp()
        den, num = den + old * running[1], num + old * running[2]
    return high, den, num


def _per_patch(
    x: Tensor, refs: Tensor, a: Number, s: Number, temperature: float, metric: str, k: int | None,
    prior: Tensor | None, allowed: Tensor | None,
) -> tuple[Tensor, PosteriorStats]:  # fmt: skip
    """One softmax a token, a block of tokens at a time; ``tau`` scales with the channels of a token, not with the image."""
    tokens, bank = _tokens(x).double(), _tokens(refs)
    if isinstance(a, Tensor) and isinstance(s, Tensor):
        if a.shape[1] > 1:  # one time an element: taken per token
            a, s = (_tokens(v.reshape(x.shape))[..., :1].double() for v in (a, s))
        else:
            a, s = a[..., None].expand(-1, tokens.shape[1], 1), s[..., None].expand(-1, tokens.shape[1], 1)
    tau = temperature * (tokens.shape[2] if metric == "mean" else 1)
    size = max(1, _BLOCK // (len(refs) * tokens.shape[2]))
    parts = []
    for start in range(0, tokens.shape[1], size):
        part = slice(start, start + size)
        here = tuple(v[:, part] if isinstance(v, Tensor) else v for v in (a, s))
        parts.append(_patch_block(tokens[:, part], bank[:, part].to(x.device).double(), *here, tau, k, prior, allowed))
    mu, logits, indices = (None if p[0] is None else torch.cat(p, 1) for p in zip(*parts))
    assert mu is not None and logits is not None
    return _finished(_untokens(mu, x).flatten(1), x, refs), _stats(logits, indices)


def _patch_block(
    tokens: Tensor, bank: Tensor, a: Number, s: Number, tau: float, k: int | None, prior: Tensor | None,
    allowed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Means (b, t, c), logits (b, t, m) and kept references of a block of tokens."""
    full = torch.einsum("btc,mtc->btm", tokens * (a / (s * s * tau)), bank)
    full = full - a * a / (2 * s * s * tau) * bank.square().sum(2).mT
    if prior is not None:
        full = full + prior
    if allowed is not None:
        full = full.masked_fill(~allowed[:, None], -math.inf)
    weight, indices = full.softmax(2), None
    if k is not None:
        best, indices = full.topk(k, dim=2)
        weight = torch.zeros_like(full).scatter(2, indices, best.softmax(2))
    return torch.einsum("btm,mtc->btc", weight, bank), full, indices


def _tokens(x: Tensor) -> Tensor:
    """(n, T, C) from packed (n, T, C) or spatial (n, C, ...) latents."""
    return x if x.ndim == 3 else x.flatten(2).mT if x.ndim > 3 else x[..., None]


def _untokens(tokens: Tensor, like: Tensor) -> Tensor:
    return (tokens.mT if like.ndim > 3 else tokens).reshape(like.shape)


def _stats(logits: Tensor, indices: Tensor | None) -> PosteriorStats:
    w = logits.softmax(-1)
    return PosteriorStats(torch.special.entr(w).sum(-1), w.amax(-1), indices, logits)


def scales(t: float, bridge: LinearBridge | VPBridge) -> tuple[float, float]:
    """``a_t`` and ``s_t`` of one time, with the clip and the floor of the authors."""
    if not 0.0 <= t <= 1.0:  # also refuses nan
        raise ValueError(f"t: expected times in [0, 1], got {t}")
    a, s = bridge.numbers(min(max(t, TIME_CLIP), 1 - TIME_CLIP))
    return a, math.sqrt(s * s + BANDWIDTH_FLOOR)


def _coefficients(t: float | int | Tensor, x: Tensor, bridge: LinearBridge | VPBridge) -> tuple[Number, Number]:
    """:func:`scales` of one time, or the same as (b, 1) or (b, D) in float64."""
    if not isinstance(t, Tensor) or t.ndim == 0:
        return scales(float(t), bridge)
    t = t.to(x.device, torch.float64)
    if not torch.isfinite(t).all() or (t < 0).any() or (t > 1).any():
        raise ValueError(f"t: expected times in [0, 1], got {t.flatten()[:4].tolist()}")
    t = t.clamp(TIME_CLIP, 1 - TIME_CLIP)
    if t.ndim == 1 and t.shape[0] == x.shape[0]:
        t = t[:, None]
    else:
        try:
            t = t.broadcast_to(x.shape).flatten(1)
        except RuntimeError as error:
            raise ValueError(
                f"t: expected one time, one a sample or a tensor like {tuple(x.shape)}, got {t.shape}"
            ) from error
    a, s = bridge.coefficients(t)
    return a, (s.square() + BANDWIDTH_FLOOR).sqrt()


def _clamp_topk(topk: int | None, m: int) -> int | None:
    if topk is None or topk == m:
        return None
    if topk > m:
        warnings.warn(f"topk: {topk} is more than the {m} references; using all of them", stacklevel=3)
        return None
    return topk


def _allowed(mask: Tensor | None, b: int, m: int, device: torch.device) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask: expected a tensor of booleans, got {getattr(mask, 'dtype', type(mask).__name__)}")
    if mask.shape not in ((m,), (b, m)):
        raise ValueError(f"mask: expected shape ({m},) or ({b}, {m}), got {tuple(mask.shape)}")
    mask = mask.to(device).broadcast_to(b, m)
    if not mask.any(1).all():
        raise EmptyBankError(
            f"mask: expected at least one reference for every sample, got none for sample {int((~mask.any(1)).nonzero()[0])}"
        )
    return mask


def _check_lengths(refs: Tensor, **vectors: Tensor | None) -> None:
    for name, vector in vectors.items():
        if vector is None:
            continue
        if not isinstance(vector, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(vector).__name__}")
        if vector.shape != refs.shape[:1]:
            raise ValueError(f"{name}: expected {refs.shape[0]} numbers, one a reference, got {tuple(vector.shape)}")


def _check(x: Tensor, refs: Tensor, temperature: float | int, metric: str, topk: int | None, scope: str) -> None:
    for name, value in (("x", x), ("refs", refs)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
        if value.ndim < 2 or not value.is_floating_point():
            raise ValueError(f"{name}: expected floats (n, ...), got {value.dtype} {tuple(value.shape)}")
    if refs.shape[0] == 0:
        raise EmptyBankError("refs: expected at least one reference, got 0")
    if refs.shape[1:] != x.shape[1:]:
        raise BankMismatchError(f"refs: expected references of shape {tuple(x.shape[1:])}, got {tuple(refs.shape[1:])}")
    check_choice(metric, "metric", METRICS)
    check_choice(scope, "scope", SCOPES)
    check_real(temperature, "temperature", minimum=0.0, inclusive=False)
    if topk is not None:
        check_int(topk, "topk", minimum=1)
    check_finite(x, "x")


def check_finite(x: Tensor, name: str) -> Tensor:
    """``x`` itself.

    Raises:
        ValueError: a number is not finite; the message gives its index.
    """
    if not math.isfinite(float(x.sum())):  # one pass; a sum may also overflow
        ok = torch.isfinite(x)
        if ok.all():
            return x
        index = tuple(int(i) for i in (~ok).nonzero()[0])
        raise ValueError(f"{name}: expected finite numbers, got {float(x[index])} at index {index}")
    return x

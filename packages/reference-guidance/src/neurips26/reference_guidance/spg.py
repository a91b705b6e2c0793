r"""Semi-Parametric Guidance: a generator that predicts the endpoint mean from a reference set it can swap.

    mu_ret  = a per-head, per-patch convex combination of reference patches        (the mean anchor)
    mu_base = (1 - g(t)) x_t + g(t) mu_ret                                        (the gate)
    mu      = mu_base + alpha(t) delta,  delta = refiner([x_t, stopgrad mu_base])  (the residual refiner)

and the velocity is ``(mu - x_t) / (1 - t)``. :class:`DiTMean` is the baseline of equal budget that predicts ``mu``
without a set. Time ``t`` runs from noise to data.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.embeddings import (
    TimestepEmbedding,
    apply_rotary_emb,
    get_2d_rotary_pos_embed,
    get_2d_sincos_pos_embed,
    get_timestep_embedding,
)
from diffusers.models.modeling_utils import ModelMixin
from jaxtyping import Bool, Float
from torch import Tensor, nn

from neurips26.reference_guidance.bridge import T_EPS, euler_sample
from neurips26.reference_guidance.errors import BankMismatchError, EmptyBankError
from neurips26.shared.arrays import check_choice, check_int

__all__ = ["T_EPS", "AnchorCache", "DiTMean", "MeanAnchor", "SPG", "SPGConfig", "SPGOutput", "euler_sample"]


@dataclass(frozen=True)
class SPGConfig:
    """Sizes of the generator; the defaults are the authors' AFHQv2 model on 32x16x16 latents.

    Attributes:
        channels, height, width: shape of a latent.
        patch: side of a patch of the anchor and of the refiner.
        dim: width of anchor and refiner.
        depth: refiner blocks.
        heads: refiner heads.
        anchor_heads: anchor heads; must divide ``dim`` and the numbers of a patch.
        time_dim: width of the time embedding and of the gates.
        query: ``"patch"`` (the query sees its own patch, as the authors do) or ``"global"`` (the whole image as well).
        gate: ``"learned"`` or ``"fixed"`` (g = 4t(1-t), alpha = t/2).
        attention: ``"softmax"`` or ``"entmax15"`` (extra ``entmax``).
        chunk: references per block of the streamed softmax.
    """

    channels: int = 32
    height: int = 16
    width: int = 16
    patch: int = 2
    dim: int = 768
    depth: int = 11
    heads: int = 12
    anchor_heads: int = 8
    time_dim: int = 256
    query: str = "patch"
    gate: str = "learned"
    attention: str = "softmax"
    chunk: int = 2048

    def __post_init__(self) -> None:
        check_choice(self.query, "query", ("patch", "global"))
        check_choice(self.gate, "gate", ("learned", "fixed"))
        check_choice(self.attention, "attention", ("softmax", "entmax15"))
        for name in (
            "channels",
            "height",
            "width",
            "patch",
            "dim",
            "depth",
            "heads",
            "anchor_heads",
            "time_dim",
            "chunk",
        ):
            check_int(getattr(self, name), name, minimum=1)
        for name, size in (("height", self.height), ("width", self.width)):
            if size % self.patch:
                raise ValueError(f"{name}: expected a multiple of patch {self.patch}, got {size}")
        numbers = self.channels * self.patch**2
        if self.dim % self.anchor_heads or numbers % self.anchor_heads:
            raise ValueError(
                f"anchor_heads: expected a divisor of dim {self.dim} and of {numbers}, got {self.anchor_heads}"
            )
        if self.dim % (4 * self.heads):
            raise ValueError(f"heads: expected dim {self.dim} / heads to be a multiple of 4, got {self.heads}")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.height // self.patch, self.width // self.patch

    @property
    def numbers(self) -> int:
        """Numbers in a patch."""
        return self.channels * self.patch**2


@dataclass
class AnchorCache:
    """Keys and values of a reference set, computed once; time modulates only the query.

    Attributes:
        keys: (heads * patches, head_dim, m), ready for one batched product.
        values: (heads * patches, m, numbers / heads), the raw patches.
        size: m.
        log_prior: log prior weights (m,), added to the logits; ``None`` where all references count alike.
    """

    keys: Tensor
    values: Tensor
    size: int
    log_prior: Tensor | None = None


@dataclass
class SPGOutput:
    """Predicted mean with its parts."""

    mean: Tensor
    base: Tensor
    retrieved: Tensor
    residual: Tensor


def patchify(x: Tensor, patch: int) -> Tensor:
    """(n, c, h, w) to (n, patches, c * patch^2), row-major."""
    return F.pixel_unshuffle(x, patch).flatten(2).mT


def unpatchify(tokens: Tensor, patch: int, grid: tuple[int, int]) -> Tensor:
    """Inverse of :func:`patchify`."""
    return F.pixel_shuffle(tokens.mT.reshape(tokens.shape[0], tokens.shape[2], *grid), patch)


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


class TimeEmbedding(nn.Module):
    """256 sines and cosines of t in [0, 1], then a two-layer network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = TimestepEmbedding(256, dim)

    def forward(self, t: Tensor) -> Tensor:
        """(b,) to (b, dim)."""
        return self.mlp(get_timestep_embedding(t, 256, flip_sin_to_cos=True, downscale_freq_shift=0))


class Gate(nn.Module):
    """``sigmoid(MLP(t))``, 1/2 at the start of training."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.SiLU(), nn.Linear(hidden, 1))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, t: Tensor) -> Tensor:
        """(b,) to (b, 1, 1, 1)."""
        return torch.sigmoid(self.net(t[:, None])).reshape(-1, 1, 1, 1)


class MeanAnchor(nn.Module):
    """One cross-attention over the reference set whose values are the raw patches: its output is a mean, not a feature.

    Patch n of the query attends only to patch n of each reference.
    """

    def __init__(self, config: SPGConfig) -> None:
        super().__init__()
        c = self.config = config
        self.query_in, self.key_in = nn.Linear(c.numbers, c.dim), nn.Linear(c.numbers, c.dim)
        self.query, self.key = nn.Linear(c.dim, c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)
        self.time = nn.Linear(c.time_dim, c.dim)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(c.dim, 2 * c.dim))
        whole = c.channels * c.height * c.width
        self.whole = nn.Linear(whole, c.dim) if c.query == "global" else None

    def cache(self, references: Float[Tensor, "m c h w"], log_prior: Float[Tensor, " m"] | None = None) -> AnchorCache:
        """Keys and values of a set; prior weights, which the authors' sets have not, as in the reference mean."""
        c = self.config
        if references.shape[0] == 0:
            raise EmptyBankError("references: expected at least one reference, got 0")
        if references.shape[1:] != (c.channels, c.height, c.width):
            raise BankMismatchError(
                f"references: expected (m, {c.channels}, {c.height}, {c.width}), got {tuple(references.shape)}"
            )
        patches = patchify(references, c.patch)
        m, n = patches.shape[:2]
        keys = F.rms_norm(
            self.key(self.key_in(patches)).reshape(m, n, c.anchor_heads, -1), (c.dim // c.anchor_heads,), eps=1e-6
        )
        values = patches.reshape(m, n, c.anchor_heads, -1)
        # (n, heads) leads, so that the whole retrieval is two batched products
        keys = keys.permute(1, 2, 3, 0).flatten(0, 1).float().contiguous()
        prior = None if log_prior is None else log_prior.to(keys.device, torch.float32)
        return AnchorCache(keys, values.permute(1, 2, 0, 3).flatten(0, 1).float().contiguous(), m, prior)

    def forward(self, x: Tensor, time: Tensor, bank: AnchorCache, mask: Tensor | None) -> Tensor:
        """Retrieved mean (b, c, h, w); ``mask`` (b, m) is True where a reference may be used."""
        c = self.config
        h = self.query_in(patchify(x, c.patch))
        if self.whole is not None:
            h = h + self.whole(x.flatten(1))[:, None]
        shift, scale = self.modulation(self.time(time)).chunk(2, dim=1)
        h = _modulate(F.rms_norm(h, (c.dim,), eps=1e-6), shift, scale)
        b, n = h.shape[:2]
        q = self.query(h).reshape(b, n, c.anchor_heads, -1)
        q = F.rms_norm(q, (q.shape[-1],), eps=1e-6).permute(1, 2, 0, 3).flatten(0, 1).float()
        q = q / math.sqrt(q.shape[-1])
        with torch.autocast(x.device.type, enabled=False):  # the softmax is accumulated in float32
            mu = self._attend(q, bank, mask)
        mu = mu.reshape(n, c.anchor_heads, b, -1).permute(2, 0, 1, 3).reshape(b, n, c.numbers)
        return unpatchify(mu.to(x.dtype), c.patch, c.grid)

    def _attend(self, q: Tensor, bank: AnchorCache, mask: Tensor | None) -> Tensor:
        """Softmax over the set, streamed in blocks: running maximum, denominator, numerator."""
        chunk = self.config.chunk

        def logits_of(part: slice, hidden: float = -math.inf) -> Tensor:
            logits = q @ bank.keys[..., part]
            if bank.log_prior is not None:
                logits = logits + bank.log_prior[part].clamp_min(hidden)
            return logits if mask is None else logits.masked_fill(~mask[:, part], hidden)

        if self.config.attention == "entmax15":
            from entmax import entmax15

            return entmax15(logits_of(slice(None), -1e4), dim=-1) @ bank.values
        if bank.size <= chunk:
            return logits_of(slice(None)).softmax(-1) @ bank.values
        high = den = num = None
        for s in range(0, bank.size, chunk):
            logits = logits_of(slice(s, s + chunk))
            top = logits.amax(-1, keepdim=True)
            top = top if high is None else torch.maximum(top, high)
            shift = top.masked_fill(top == -math.inf, 0.0)
            w = (logits - shift).exp()
            d, v = w.sum(-1, keepdim=True), w @ bank.values[:, s : s + chunk]
            if high is not None and den is not None and num is not None:
                old = (high - shift).exp()
                d, v = d + old * den, v + old * num
            high, den, num = top, d, v
        assert num is not None and den is not None
        return num / den


class Block(nn.Module):
    """A DiT block: adaLN-Zero, attention with normalised queries and keys and 2-D rotary positions, GELU network."""

    def __init__(self, dim: int, heads: int, time_dim: int, norm: str) -> None:
        super().__init__()
        self.heads, self.norm = heads, norm
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = nn.RMSNorm(dim // heads, eps=1e-6), nn.RMSNorm(dim // heads, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, 6 * dim))

    def _norm(self, x: Tensor) -> Tensor:
        size = (x.shape[-1],)
        return F.rms_norm(x, size, eps=1e-6) if self.norm == "rms" else F.layer_norm(x, size, eps=1e-6)

    def forward(self, x: Tensor, time: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """(b, n, dim) to the same."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(time).chunk(6, dim=1)
        h = self.qkv(_modulate(self._norm(x), shift1, scale1))
        q, k, v = h.reshape(*h.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary_emb(self.q_norm(q), rope), apply_rotary_emb(self.k_norm(k), rope)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1[:, None] * self.out(h)
        return x + gate2[:, None] * self.mlp(_modulate(self._norm(x), shift2, scale2))


class Transformer(nn.Module):
    """Patches in, latents out: the refiner of SPG and the body of the baseline."""

    def __init__(self, config: SPGConfig, inputs: int, depth: int, norm: str) -> None:
        super().__init__()
        c = self.config = config
        self.norm = norm
        self.embed = nn.Linear(inputs * c.patch**2, c.dim)
        self.blocks = nn.ModuleList(Block(c.dim, c.heads, c.time_dim, norm) for _ in range(depth))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(c.time_dim, 2 * c.dim))
        self.head = nn.Linear(c.dim, c.numbers)
        position = get_2d_sincos_pos_embed(c.dim, c.grid, output_type="pt").float()
        crops = ((0, 0), (c.grid[0], c.grid[1]))
        cos, sin = get_2d_rotary_pos_embed(c.dim // c.heads, crops, c.grid, output_type="pt")
        for name, value in (("position", position), ("cos", cos.float()), ("sin", sin.float())):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(b, inputs, h, w) to (b, channels, h, w)."""
        c = self.config
        h = self.embed(patchify(x, c.patch)) + self.position
        for block in self.blocks:
            h = block(h, time, (self.cos, self.sin))
        shift, scale = self.modulation(time).chunk(2, dim=1)
        size = (c.dim,)
        h = F.rms_norm(h, size, eps=1e-6) if self.norm == "rms" else F.layer_norm(h, size, eps=1e-6)
        return unpatchify(self.head(_modulate(h, shift, scale)), c.patch, c.grid)


def _initialise(model: nn.Module) -> None:
    """Xavier everywhere, zero where adaLN-Zero and the outputs ask for it, small time networks."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, (Block, Transformer, MeanAnchor)):
            nn.init.zeros_(module.modulation[1].weight)
        if isinstance(module, Transformer):
            nn.init.zeros_(module.head.weight)
        if isinstance(module, Gate):
            nn.init.zeros_(module.net[2].weight)
        if isinstance(module, TimeEmbedding):
            nn.init.normal_(module.mlp.linear_1.weight, std=0.02)
            nn.init.normal_(module.mlp.linear_2.weight, std=0.02)


class SPG(ModelMixin, ConfigMixin):
    """The semi-parametric generator. Build with ``SPG(**vars(SPGConfig(...)))`` or ``SPG.from_sizes(config)``."""

    @register_to_config
    def __init__(
        self, channels: int = 32, height: int = 16, width: int = 16, patch: int = 2, dim: int = 768, depth: int = 11,
        heads: int = 12, anchor_heads: int = 8, time_dim: int = 256, query: str = "patch", gate: str = "learned",
        attention: str = "softmax", chunk: int = 2048,
    ) -> None:  # fmt: skip
        super().__init__()
        self.sizes = SPGConfig(
            channels, height, width, patch, dim, depth, heads, anchor_heads, time_dim, query, gate, attention, chunk
        )
        self.time = TimeEmbedding(time_dim)
        self.anchor = MeanAnchor(self.sizes)
        self.refiner = Transformer(self.sizes, 2 * channels, depth, "rms")
        learned = gate == "learned"
        self.blend, self.amount = (Gate(time_dim), Gate(time_dim)) if learned else (None, None)
        _initialise(self)

    @classmethod
    def from_sizes(cls, config: SPGConfig) -> SPG:
        """A new model of these sizes."""
        return cls(**asdict(config))

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        t: Float[Tensor, " b"],
        bank: AnchorCache | Float[Tensor, "m c h w"],
        mask: Bool[Tensor, "b m"] | None = None,
    ) -> SPGOutput:
        """Predict the endpoint mean.

        Args:
            x: noisy latents.
            t: their times in [0, 1].
            bank: the reference set, or its cached keys.
            mask: True where a reference may be used.
        """
        c = self.sizes
        if x.shape[1:] != (c.channels, c.height, c.width) or t.shape != x.shape[:1]:
            raise ValueError(
                f"x, t: expected (b, {c.channels}, {c.height}, {c.width}) and (b,), got {tuple(x.shape)} and {tuple(t.shape)}"
            )
        if not bool(((t >= 0) & (t <= 1)).all()):
            raise ValueError(f"t: expected times in [0, 1], got {t.flatten().tolist()[:4]}")
        if not isinstance(bank, AnchorCache):
            bank = self.anchor.cache(bank)
        if mask is not None and not bool(mask.any(1).all()):
            raise EmptyBankError("mask: expected at least one reference for every sample")
        time = self.time(t)
        retrieved = self.anchor(x, time, bank, mask)
        if self.blend is not None and self.amount is not None:
            g, alpha = self.blend(t), self.amount(t)
        else:
            g, alpha = (4 * t * (1 - t)).reshape(-1, 1, 1, 1), (t / 2).reshape(-1, 1, 1, 1)
        base = (1 - g) * x + g * retrieved
        residual = alpha * self.refiner(torch.cat([x, base.detach()], 1), time)
        return SPGOutput(base + residual, base, retrieved, residual)


class DiTMean(ModelMixin, ConfigMixin):
    """The baseline of equal budget: a DiT that predicts the endpoint mean. One block more in place of the anchor."""

    @register_to_config
    def __init__(
        self, channels: int = 32, height: int = 16, width: int = 16, patch: int = 2, dim: int = 768, depth: int = 12,
        heads: int = 12, time_dim: int = 256,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = SPGConfig(channels, height, width, patch, dim, depth, heads, 1, time_dim)
        self.time = TimeEmbedding(time_dim)
        self.body = Transformer(sizes, channels, depth, "layer")
        _initialise(self)

    @classmethod
    def of_equal_budget(cls, config: SPGConfig) -> DiTMean:
        """The baseline of an SPG: its anchor's place is taken by one more block."""
        c = config
        return cls(c.channels, c.height, c.width, c.patch, c.dim, c.depth + 1, c.heads, c.time_dim)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Endpoint mean of noisy latents ``x`` at times ``t``."""
        return self.body(x, self.time(t))

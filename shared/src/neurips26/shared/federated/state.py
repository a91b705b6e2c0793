"""What clients and server exchange: named tensors, and the LoRA schema on top of them.

The transport, the byte meter, the private store and the checkpoints know only :data:`Tensors`, a flat mapping
``"<field>/<name>" -> tensor``; a *field* is what a method declares that it sends (``A``, ``B``, ``head``, or for another
kind of method ``bias``, ``mask``, ...). :class:`AdapterState` is the LoRA schema: every client may have its own rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from neurips26.shared.arrays import check_int
from neurips26.shared.federated import linalg

__all__ = ["AdapterState", "LoraFactors", "Tensors", "clone", "field_of", "num_bytes", "select"]

#: ``"<field>/<name>"`` to tensor.
Tensors = dict[str, Tensor]


def field_of(key: str) -> str:
    """The field of a key: what stands before the first slash."""
    return key.split("/", 1)[0]


def select(tensors: Mapping[str, Tensor], *fields: str) -> Tensors:
    """The entries of these fields, in order."""
    return {key: value for key, value in tensors.items() if field_of(key) in fields}


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the values alone, without any header."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def clone(tensors: Mapping[str, Tensor]) -> Tensors:
    """Detached copies on the CPU."""
    return {key: value.detach().to("cpu", copy=True) for key, value in tensors.items()}


@dataclass(frozen=True)
class LoraFactors:
    """One module's update ``scaling * B @ A``: ``A`` is (r, n), ``B`` is (m, r)."""

    A: Tensor
    B: Tensor
    scaling: float = 1.0

    def __post_init__(self) -> None:
        if self.A.ndim != 2 or self.B.ndim != 2 or self.A.shape[0] != self.B.shape[1]:
            raise ValueError(
                f"A, B: expected shapes (r, n) and (m, r), got {tuple(self.A.shape)} and {tuple(self.B.shape)}"
            )

    @property
    def rank(self) -> int:
        """The rank r."""
        return self.A.shape[0]

    def delta(self) -> Tensor:
        """The dense update (m, n)."""
        return self.scaling * (self.B @ self.A)

    def rescaled(self, scaling: float) -> LoraFactors:
        """The same update written with another scaling: the ratio goes into B."""
        if scaling == self.scaling:
            return self
        return LoraFactors(self.A, self.B * (self.scaling / scaling), scaling)


@dataclass(frozen=True)
class AdapterState:
    """LoRA factors by module name, and the tensors of the task's head."""

    factors: dict[str, LoraFactors] = field(default_factory=dict)
    head: Tensors = field(default_factory=dict)

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def modules(self) -> list[str]:
        """Names of the adapted modules, in order."""
        return list(self.factors)

    def delta(self, module: str) -> Tensor:
        """The dense update of one module."""
        return self.factors[module].delta()

    def to_tensors(self, fields: Iterable[str] = ("A", "B", "head")) -> Tensors:
        """The state as transport tensors; the scaling is not sent (both sides know the rank's)."""
        chosen = set(fields)
        out: Tensors = {}
        for name, factors in self.factors.items():
            if "A" in chosen:
                out[f"A/{name}"] = factors.A
            if "B" in chosen:
                out[f"B/{name}"] = factors.B
        if "head" in chosen:
            out.update({f"head/{name}": value for name, value in self.head.items()})
        return out

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], scaling: float = 1.0) -> AdapterState:
        """The inverse of :meth:`to_tensors` when both factors are there.

        Raises:
            ValueError: a module has one factor only; the message names it.
        """
        a = {key[2:]: value for key, value in tensors.items() if key.startswith("A/")}
        b = {key[2:]: value for key, value in tensors.items() if key.startswith("B/")}
        if a.keys() != b.keys():
            raise ValueError(
                f"tensors: expected A and B of every module, one is missing of {sorted(a.keys() ^ b.keys())}"
            )
        head = {key[5:]: value for key, value in tensors.items() if key.startswith("head/")}
        return cls({name: LoraFactors(a[name], b[name], scaling) for name in a}, head)

    def num_bytes(self, *fields: str) -> int:
        """Bytes of these fields (all by default)."""
        return num_bytes(self.to_tensors(fields or ("A", "B", "head")))

    def allclose(self, other: AdapterState, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether modules, ranks, updates' factors and heads agree."""
        mine, theirs = self.to_tensors(), other.to_tensors()
        return mine.keys() == theirs.keys() and all(
            value.shape == theirs[key].shape and torch.allclose(value, theirs[key], rtol=rtol, atol=atol)
            for key, value in mine.items()
        )

    # --- changing ----------------------------------------------------------------------------------------------------

    def with_scaling(self, scaling: float) -> AdapterState:
        """The same updates with this scaling."""
        return replace(self, factors={k: f.rescaled(scaling) for k, f in self.factors.items()})

    def truncate(self, r: int) -> AdapterState:
        """The first ``r`` rows of A and columns of B."""
        check_int(r, "r", minimum=0)
        return replace(self, factors={k: LoraFactors(f.A[:r], f.B[:, :r], f.scaling) for k, f in self.factors.items()})

    def pad(self, r: int) -> AdapterState:
        """Zero rows and columns up to rank ``r``."""

        def padded(f: LoraFactors) -> LoraFactors:
            check_int(r, "r", minimum=f.rank)
            more = r - f.rank
            a = torch.cat([f.A, f.A.new_zeros(more, f.A.shape[1])])
            b = torch.cat([f.B, f.B.new_zeros(f.B.shape[0], more)], dim=1)
            return LoraFactors(a, b, f.scaling)

        return replace(self, factors={k: padded(f) for k, f in self.factors.items()})

    @staticmethod
    def stack(states: Sequence[AdapterState], weights: Sequence[float]) -> AdapterState:
        """The exact weighted sum of updates as one state of the summed rank, with scaling 1."""
        _same_modules(states)
        factors = {}
        for name in states[0].factors:
            parts = [s.factors[name] for s in states]
            a = torch.cat([f.A for f in parts])
            b = torch.cat([w * f.scaling * f.B for f, w in zip(parts, weights, strict=True)], dim=1)
            factors[name] = LoraFactors(a, b)
        return AdapterState(factors, average([s.head for s in states], weights))

    def lowrank_svd(self, module: str) -> tuple[Tensor, Tensor, Tensor]:
        """Singular triplets of one module's update through its factors: U (m, k), S (k,), V^T (k, n), k <= r."""
        f = self.factors[module]
        return linalg.factor_svd(f.B * f.scaling, f.A)

    # --- PEFT --------------------------------------------------------------------------------------------------------

    @classmethod
    def from_peft(cls, model: Any, adapter: str = "default") -> AdapterState:
        """Read the LoRA layers of a PEFT model (or of a model with injected layers)."""
        layers = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A") and adapter in m.lora_A}
        if not layers:
            raise ValueError(f"adapter: expected an adapter of the model, found no LoRA layer named {adapter!r}")
        return cls(
            {
                name: LoraFactors(
                    layer.lora_A[adapter].weight.detach().clone(),
                    layer.lora_B[adapter].weight.detach().clone(),
                    float(layer.scaling[adapter]),
                )
                for name, layer in layers.items()
            }
        )

    def into_peft(self, model: Any, adapter: str = "default") -> None:
        """Copy into an existing adapter of equal ranks; any missing, surplus or ill-shaped module is an error."""
        layers = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A") and adapter in m.lora_A}
        if layers.keys() != self.factors.keys():
            odd = sorted(layers.keys() ^ self.factors.keys())
            raise ValueError(f"model: expected LoRA layers at the state's modules, they differ in {odd}")
        for name, f in self.factors.items():
            layer = layers[name]
            if layer.lora_A[adapter].weight.shape != f.A.shape or layer.lora_B[adapter].weight.shape != f.B.shape:
                raise ValueError(f"model: expected rank {f.rank} at {name}, got {layer.r[adapter]}")
            with torch.no_grad():
                layer.lora_A[adapter].weight.copy_(f.A)
                layer.lora_B[adapter].weight.copy_(f.B)
            layer.scaling[adapter] = f.scaling


def average(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """Weighted sum of equal tensor sets, accumulated in float64 in the given order and cast back."""
    if not states:
        return {}
    keys = states[0].keys()
    if any(s.keys() != keys for s in states):
        raise ValueError("states: expected the same tensors of every client")
    out = {}
    for key in keys:
        total = torch.zeros(states[0][key].shape, dtype=torch.float64)
        for state, weight in zip(states, weights, strict=True):
            total += weight * state[key].double()
        out[key] = total.to(states[0][key].dtype)
    return out


def _same_modules(states: Sequence[AdapterState]) -> None:
    if not states:
        raise ValueError("states: expected at least one, got none")
    for state in states[1:]:
        odd = state.factors.keys() ^ states[0].factors.keys()
        if odd:
            raise ValueError(f"states: expected the same modules of every client, they differ in {sorted(odd)}")

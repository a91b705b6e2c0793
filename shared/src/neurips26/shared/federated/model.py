"""A backbone with PEFT's LoRA layers, one adapter per rank, so that clients of any rank share one model in memory."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neurips26.shared.arrays import check_choice, check_int, check_real
from neurips26.shared.federated.state import AdapterState, LoraFactors

__all__ = ["LoraModel", "LoraSpec"]


@dataclass(frozen=True)
class LoraSpec:
    """The clients' ranks and the scaling s of an update ``s B A``.

    Args:
        ranks: one rank a client, by partition id; 0 means that the client trains the head only.
        alpha: numerator of the scaling.
        scaling: ``alpha/r`` (Hu et al. 2022), ``rslora`` (alpha/sqrt(r), Kalajdzievski 2023) or ``constant`` (alpha).
    """

    ranks: tuple[int, ...]
    alpha: float = 16.0
    scaling: str = "constant"

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("ranks: expected one rank a client, got none")
        for rank in self.ranks:
            check_int(rank, "ranks", minimum=0)
        check_real(self.alpha, "alpha", minimum=0, inclusive=False)
        check_choice(self.scaling, "scaling", ("alpha/r", "rslora", "constant"))

    @property
    def max_rank(self) -> int:
        """The largest rank of the federation."""
        return max(self.ranks)

    @property
    def mixed(self) -> bool:
        """Whether clients differ in rank."""
        return len(set(self.ranks)) > 1

    def scale(self, r: int) -> float:
        """The scaling s at rank ``r``."""
        if self.scaling == "constant" or r == 0:
            return self.alpha
        return self.alpha / (r if self.scaling == "alpha/r" else r**0.5)


class LoraModel:
    """Adapters, base weights and head of one module, set and read by name.

    Args:
        module: the backbone; its parameters are frozen here.
        targets: full names of the ``nn.Linear`` (or GPT-2 ``Conv1D``) modules to adapt.
        head: full names of the parameters that belong to the task's head.

    Raises:
        ValueError: a target or head parameter does not exist (near names are given), or a target shares its weight with
            another module, which a merged update would change too.
    """

    def __init__(self, module: nn.Module, targets: Sequence[str], head: Sequence[str] = ()) -> None:
        self.module, self.targets = module.requires_grad_(False), list(targets)
        modules, parameters = dict(module.named_modules()), dict(module.named_parameters())
        for name in self.targets:
            _known(name, modules, "targets")
        for name in head:
            _known(name, parameters, "head")
        _untied(module, self.targets)
        self._parameters = {name: parameters[name] for name in head}
        self._linear = {name: modules[name] for name in self.targets}
        # GPT-2's Conv1D stores the transpose of a Linear's weight.
        self._transposed = {name: type(layer).__name__ == "Conv1D" for name, layer in self._linear.items()}
        self._shapes = {name: self._shape(layer) for name, layer in self._linear.items()}
        # Nothing is ever merged into a quantised weight: its change is kept beside it and added to the output.
        quantised = [name for name, layer in self._linear.items() if not layer.weight.is_floating_point()]
        self._base = {name: self._weight(name).detach().clone() for name in self.targets if name not in quantised}
        self._beside: dict[str, Tensor] = {}
        for name in quantised:
            self._linear[name].register_forward_hook(self._adding(name))
        self._changed = False
        self._layers: dict[str, Any] = {}
        self._ranks: set[int] = set()
        self.rank = 0

    def _weight(self, name: str) -> Tensor:
        weight = self._linear[name].weight
        return weight.T if self._transposed[name] else weight

    @staticmethod
    def _shape(layer: Any) -> tuple[int, int]:
        if hasattr(layer, "out_features"):  # a 4-bit weight is packed: its own shape says nothing
            return int(layer.out_features), int(layer.in_features)
        n, m = layer.weight.shape
        return int(m), int(n)

    def _adding(self, name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            change = self._beside.get(name)
            return output if change is None else output + (inputs[0].to(change.dtype) @ change.T).to(output.dtype)

        return hook

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """(m, n) of every adapted module: outputs and inputs."""
        return dict(self._shapes)

    @property
    def base(self) -> dict[str, Tensor]:
        """The pretrained weights of the adapted modules (those that are not quantised)."""
        return self._base

    # --- base ---------------------------------------------------------------------------------------------------------

    def set_delta(self, delta: Mapping[str, Tensor] | None) -> None:
        """Make the base weights ``W_0 + delta`` (float32 sum, then cast); None restores ``W_0``.

        Beside a quantised weight the change stays in float32.
        """
        if delta is None and not self._changed:
            return
        with torch.no_grad():
            for name, base in self._base.items():
                if delta is not None and name in delta:
                    self._weight(name).copy_(base.float() + delta[name].to(base.device).float())
                else:
                    self._weight(name).copy_(base)
            self._beside = {
                name: delta[name].to(self._linear[name].weight.device).float()
                for name in self.targets
                if delta is not None and name in delta and name not in self._base
            }
        self._changed = delta is not None

    # --- adapters -----------------------------------------------------------------------------------------------------

    def set_adapters(self, state: AdapterState) -> None:
        """Install the factors (one rank for all modules) as the active adapter; no factors: no adapter."""
        ranks = {f.rank for f in state.factors.values()}
        if len(ranks) > 1:
            raise ValueError(f"state: expected one rank for all modules, got {sorted(ranks)}")
        self.rank = ranks.pop() if ranks else 0
        if self.rank == 0:
            for layer in self._layers.values():
                layer.enable_adapters(False)
            return
        for name, f in state.factors.items():
            _known(name, self._shapes, "state")
            m, n = self._shapes[name]
            if f.A.shape[1] != n or f.B.shape[0] != m:
                raise ValueError(f"state: expected a ({m}, {n}) update at {name}, got ({f.B.shape[0]}, {f.A.shape[1]})")
        adapter = self._adapter(self.rank)
        with torch.no_grad():
            for name, f in state.factors.items():
                layer = self._layers[name]
                layer.lora_A[adapter].weight.copy_(f.A)
                layer.lora_B[adapter].weight.copy_(f.B)
                layer.scaling[adapter] = f.scaling
        for layer in self._layers.values():
            layer.enable_adapters(True)
            layer.set_adapter(adapter)

    def adapters(self) -> AdapterState:
        """Copies of the active factors."""
        if self.rank == 0:
            return AdapterState()
        a = f"r{self.rank}"
        return AdapterState(
            {
                name: LoraFactors(
                    layer.lora_A[a].weight.detach().clone(),
                    layer.lora_B[a].weight.detach().clone(),
                    float(layer.scaling[a]),
                )
                for name, layer in self._layers.items()
            }
        )

    def _adapter(self, r: int) -> str:
        """The adapter of rank ``r``, injected by PEFT when it is first asked for."""
        if r not in self._ranks:
            from peft import (
                LoraConfig,
                inject_adapter_in_model,
            )  # here, because it brings transformers and seconds of import

            config = LoraConfig(r=r, lora_alpha=r, lora_dropout=0.0, bias="none", target_modules=self.targets)
            with warnings.catch_warnings():  # PEFT warns of a second adapter, and of GPT-2's Conv1D, which it handles
                warnings.simplefilter("ignore", UserWarning)
                inject_adapter_in_model(config, self.module, adapter_name=f"r{r}")
            self._ranks.add(r)
            modules = dict(self.module.named_modules())
            self._layers = {name: modules[name] for name in self.targets}
            for layer in self._layers.values():  # factors stay float32 on whatever base
                layer.lora_A[f"r{r}"].float()
                layer.lora_B[f"r{r}"].float()
            for parameter in self._parameters.values():
                parameter.requires_grad_(False)
        return f"r{r}"

    # --- head ---------------------------------------------------------------------------------------------------------

    def head(self) -> dict[str, Tensor]:
        """Copies of the head's parameters."""
        return {name: value.detach().clone() for name, value in self._parameters.items()}

    def set_head(self, head: Mapping[str, Tensor]) -> None:
        """Copy into the head's parameters; names and shapes must be the same."""
        if head.keys() != self._parameters.keys():
            raise ValueError(f"head: expected {sorted(self._parameters)}, got {sorted(head)}")
        with torch.no_grad():
            for name, value in head.items():
                if value.shape != self._parameters[name].shape:
                    raise ValueError(
                        f"head: expected shape {tuple(self._parameters[name].shape)} of {name}, got {tuple(value.shape)}"
                    )
                self._parameters[name].copy_(value)

    # --- training -----------------------------------------------------------------------------------------------------

    def trainable(self, fields: Iterable[str]) -> dict[str, nn.Parameter]:
        """Switch gradients on for these fields (``A``, ``B``, ``head``) alone and return the parameters by key."""
        wanted = {check_choice(field, "fields", ("A", "B", "head", "base")) for field in fields}
        for layer in self._layers.values():
            layer.requires_grad_(False)
        chosen: dict[str, nn.Parameter] = {}
        if self.rank:
            a = f"r{self.rank}"
            for name, layer in self._layers.items():
                if "A" in wanted:
                    chosen[f"A/{name}"] = layer.lora_A[a].weight
                if "B" in wanted:
                    chosen[f"B/{name}"] = layer.lora_B[a].weight
        if "base" in wanted:
            chosen |= {f"base/{name}": self._linear[name].weight for name in self.targets}
        for name, parameter in self._parameters.items():
            parameter.requires_grad_("head" in wanted)
            if "head" in wanted:
                chosen[f"head/{name}"] = parameter
        for parameter in chosen.values():
            parameter.requires_grad_(True)
        return chosen


def _untied(module: nn.Module, targets: Iterable[str]) -> None:
    owners: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for names in owners.values():
        tied = [name for name in names if name.removesuffix(".weight") in targets]
        if tied and len(names) > 1:
            raise ValueError(f"targets: expected weights that no other module shares, {tied[0]} is one of {names}")


def _known(name: str, options: Iterable[str], argument: str) -> None:
    options = list(options)
    if name not in options:
        near = difflib.get_close_matches(name, options, n=3, cutoff=0.3)
        raise ValueError(f"{argument}: expected a name in the model, got {name!r} (near: {', '.join(near) or 'none'})")

# ruff: noqa: D102  what overrides is documented in its base class
"""Methods that average factors: FedIT, FedProx, FFA-LoRA, RoLoRA, FedSA-LoRA, zero-padding, HetLoRA, Fed-PLoRA, FLoRA-NA.

Notation: client i holds B_i (m, r_i), A_i (r_i, n) and scaling s_i; p_i are the weights of the round's participants and
sum to one. On the server s_i is inside B_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from neurips26.shared.arrays import check_real
from neurips26.shared.federated.method import Client, ClientUpdate, Payload, Setup
from neurips26.shared.federated.methods.base import FactorMethod, initial_a, renormalised
from neurips26.shared.federated.state import AdapterState, LoraFactors, Tensors, average, clone
from neurips26.shared.seeding import rng

__all__ = ["FFA", "Centralized", "FLoRANA", "FedIT", "FedPLoRA", "FedProx", "FedSA", "HetLoRA", "RoLoRA", "ZeroPad"]


def _mean(states: list[AdapterState], weights: list[float]) -> AdapterState:
    return AdapterState.from_tensors(average([s.to_tensors(("A", "B")) for s in states], weights))


class FedIT(FactorMethod):
    """FedAvg on the factors: ``A = sum p_i A_i``, ``B = sum p_i B_i`` (Zhang et al. 2023, arXiv 2305.05644).

    Inexact: the mean of products is not the product of means. Mixed ranks: refused.
    """

    name = "fedit"

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        return _mean(states, weights)


class Centralized(FedIT):
    """LoRA on the pooled data: FedIT with one client that holds everything. The upper bar."""

    name = "centralized"

    def begin(self, setup: Setup) -> None:
        if setup.num_clients != 1:
            raise ValueError(
                f"centralized: expected a task of one client with all data, got {setup.num_clients} clients"
            )
        super().begin(setup)


class FedProx(FedIT):
    """FedIT with ``(mu/2) ||theta - theta_received||^2`` over the trained tensors in each client's loss (Li et al. 2020)."""

    name = "fedprox"

    def __init__(self, mu: float = 0.01) -> None:
        self.mu = check_real(mu, "mu", minimum=0)

    def extra_loss(self, client: Client) -> Tensor | None:
        apart = [(p - client.start[key]).square().sum() for key, p in client.parameters.items()]
        return 0.5 * self.mu * torch.stack(apart).sum()


class ZeroPad(FactorMethod):
    """Mixed ranks by zero-padding to the largest, then the weighted mean of the factors: the naive way.

    Rows that few clients own shrink, because the others vote zero.
    """

    name, mixed_ranks = "zeropad", True

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        r = self.setup.lora.max_rank
        return _mean([s.pad(r) for s in states], weights)


class HetLoRA(ZeroPad):
    """Zero-padding with weights ``p_i ~ ||B_i A_i||_F`` over all modules (Cho et al., EMNLP 2024, arXiv 2401.06432).

    Optional self-pruning (``gamma < 1``): the loss gets ``lam * ||A[k:]||_F ||B[:, k:]||_F`` of each module with
    ``k = floor(gamma r_i)``; a client whose sum of these after training is below that of what it received sends the
    first k rows and columns only and goes on with rank k >= 1. Off by default. Weights and truncation are as the paper's
    Figure 2 has them. Penalty, comparison and new rank are as in three public implementations, which agree but for the
    least rank (1 here, 2 in one of them); a fourth prunes a fixed share of the rank one terms of the smallest norm
    instead, with no penalty. The text of the paper's algorithm we could not read.
    """

    name = "hetlora"

    def __init__(self, gamma: float = 1.0, lam: float = 0.0) -> None:
        self.gamma = check_real(gamma, "gamma", minimum=0, maximum=1)
        self.lam = check_real(lam, "lam", minimum=0)
        self.pruned: dict[int, int] = {}

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        self.pruned = {}

    def _rank(self, pid: int) -> int:
        return self.pruned.get(pid, super()._rank(pid))

    def downlink(self, round: int, pid: int) -> Payload:
        payload = super().downlink(round, pid)
        return Payload(payload.tensors, {"rank": self._rank(pid)})

    def receive(self, client: Client) -> None:
        self.pruned[client.pid] = int(client.received.config.get("rank", client.rank))
        client.rank = self.pruned[client.pid]
        client.scale = self.setup.lora.scale(client.rank)
        super().receive(client)

    def _tails(self, tensors: Any, r: int) -> Tensor | None:
        k = int(self.gamma * r)
        if k >= r or k < 1:
            return None
        names = [key[2:] for key in tensors if key.startswith("A/")]
        return torch.stack([tensors[f"A/{n}"][k:].norm() * tensors[f"B/{n}"][:, k:].norm() for n in names]).sum()

    def extra_loss(self, client: Client) -> Tensor | None:
        tail = self._tails(client.parameters, client.rank) if self.lam else None
        return None if tail is None else self.lam * tail

    def reply(self, client: Client) -> Payload:
        payload = super().reply(client)
        after, before = self._tails(payload.tensors, client.rank), self._tails(client.received.tensors, client.rank)
        if after is None or before is None or not after < before:
            return payload
        k = int(self.gamma * client.rank)
        kept = {key: _first(key, value, k) for key, value in payload.tensors.items()}
        return Payload(kept, payload.config | {"rank": k})

    def expected(self, round: int, pid: int) -> dict[str, tuple[int, ...]]:
        return {key: shape for key, shape in super().expected(round, pid).items() if key.startswith("head/")}

    def problem(self, round: int, pid: int, tensors: Tensors, config: Mapping[str, Any]) -> str | None:
        r, old = int(config.get("rank", self._rank(pid))), self._rank(pid)
        if r > old or (old > 0 and r < 1):
            return f"its rank is {r}, expected 1 to {old}"
        for key, shape in super().expected(round, pid).items():
            if not key.startswith("head/"):
                wanted = (r, shape[1]) if key.startswith("A/") else (shape[0], r)
                if key not in tensors or tuple(tensors[key].shape) != wanted:
                    return f"{key}: expected shape {wanted} at rank {r}"
        return None

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        super().aggregate(round, updates)
        for update in updates:
            if "rank" in update.config:
                self.pruned[update.pid] = int(update.config["rank"])

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        norms = [norm(state) for state in states]
        total = sum(norms)
        return super().combine(states, [n / total for n in norms] if total > 0 else weights)

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        return super().state_dict()[0], {"pruned": {str(k): v for k, v in self.pruned.items()}}

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        super().load_state_dict(tensors, config)
        self.pruned = {int(k): v for k, v in config["pruned"].items()}


def _first(key: str, value: Tensor, k: int) -> Tensor:
    if key.startswith("A/"):
        return value[:k].contiguous()
    return value[:, :k].contiguous() if key.startswith("B/") else value


def norm(state: AdapterState) -> float:
    """Frobenius norm of all modules' ``B A`` together, from r x r products."""
    squares = [((f.B.T @ f.B).double() * (f.A @ f.A.T).double()).sum() for f in state.factors.values()]
    return float(torch.stack(squares).sum().clamp(min=0).sqrt())


class FFA(FactorMethod):
    """One common A, drawn from the seed and frozen for ever; B is trained and averaged (Sun et al., ICLR 2024, 2403.12313).

    Exact: ``sum p_i B_i A`` is ``(sum p_i B_i) A``. A is never sent. Mixed ranks: the first r_i rows of the common A,
    B padded with zeros, which is exact too.
    """

    name, mixed_ranks, uplink = "ffa", True, ("B", "head")

    def downlink(self, round: int, pid: int) -> Payload:
        tensors = self._for_client(pid).to_tensors(("B",)) if self._rank(pid) else {}
        return Payload(tensors | self._head_payload())

    def _received(self, client: Client) -> AdapterState:
        return self._with_common_a(client.received.tensors, client.rank, client.scale)

    def _with_common_a(self, tensors: Any, r: int, scale: float) -> AdapterState:
        if not r:
            return AdapterState()
        top = self.setup.lora.max_rank
        return AdapterState(
            {
                name: LoraFactors(initial_a(self.setup.seed, name, top, n)[:r], tensors[f"B/{name}"], scale)
                for name, (_, n) in self.setup.shapes.items()
            }
        )

    def trained_fields(self, client: Client) -> tuple[str, ...]:
        return ("B", "head")

    def _effective(self, update: ClientUpdate) -> AdapterState:
        r = self._rank(update.pid)
        return self._with_common_a(update.tensors, r, self._scale(update.pid)).with_scaling(1.0)

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        r = self.setup.lora.max_rank
        mean = average([s.pad(r).to_tensors(("B",)) for s in states], weights)
        return AdapterState({k: LoraFactors(f.A, mean[f"B/{k}"]) for k, f in self.state.factors.items()})


class RoLoRA(FactorMethod):
    """Odd rounds train and average B with A fixed, even rounds A with B fixed (Chen et al., 2409.02346).

    Exact in every round, because one factor is common. Only the active factor travels up, and down only what changed
    since the client's last round. Mixed ranks: refused.
    """

    name = "rolora"

    def begin(self, setup: Setup) -> None:
        super().begin(setup)
        self._synced: dict[int, int] = dict.fromkeys(range(setup.num_clients), 0)
        self._changed: dict[str, int] = {"A": 0, "B": 0}

    @staticmethod
    def active(round: int) -> str:
        """The factor of this round."""
        return "B" if round % 2 else "A"

    def downlink(self, round: int, pid: int) -> Payload:
        newer = [f for f in ("A", "B") if self._changed[f] > self._synced[pid]]
        tensors = self._for_client(pid).to_tensors(newer)
        return Payload(
            tensors | self._head_payload(), {"since": self._synced[pid], "through": max(self._changed.values())}
        )

    def receive(self, client: Client) -> None:
        kept = client.private.get("factors")
        if kept is None and client.received.config["since"] > 0:
            raise RuntimeError(f"client {client.pid}: its factors are gone; the server will send them again")
        known = kept[0] if kept else {}
        if not kept:
            for name, (m, n) in self.setup.shapes.items():
                known[f"A/{name}"] = initial_a(self.setup.seed, name, self.setup.lora.max_rank, n)
                known[f"B/{name}"] = torch.zeros(m, client.rank)
        known |= {key: v for key, v in client.received.tensors.items() if key[:2] in ("A/", "B/")}
        client.private.put("factors", known)
        client.model.set_delta(None)
        client.model.set_adapters(AdapterState(AdapterState.from_tensors(known, client.scale).factors))
        self._receive_head(client)

    def trained_fields(self, client: Client) -> tuple[str, ...]:
        return (self.active(client.round), "head")

    def reply(self, client: Client) -> Payload:
        state = AdapterState(client.model.adapters().factors, client.model.head())
        return Payload(clone(state.to_tensors((self.active(client.round), "head"))))

    def expected(self, round: int, pid: int) -> dict[str, tuple[int, ...]]:
        other = "A/" if self.active(round) == "B" else "B/"
        return {key: shape for key, shape in super().expected(round, pid).items() if not key.startswith(other)}

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        self._average_head(updates)
        factor = self.active(round)
        taking = renormalised(updates)
        if not taking:
            return
        keys = [f"{factor}/{name}" for name in self.setup.shapes]
        scale = self.setup.lora.scale(self.setup.lora.max_rank) if factor == "B" else 1.0
        mean = average([{k: u.tensors[k] * scale for k in keys} for u, _ in taking], [w for _, w in taking])
        self.state = AdapterState.from_tensors(self.state.to_tensors(("A", "B")) | mean)
        self._changed[factor] = round
        for update in updates:
            self._synced[update.pid] = round - 1

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        raise NotImplementedError

    def forget(self, pid: int) -> None:
        """The client answered with an error: send it everything next time."""
        self._synced[pid] = -1 if max(self._changed.values()) else 0

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        return super().state_dict()[0], {
            "synced": {str(k): v for k, v in self._synced.items()},
            "changed": self._changed,
        }

    def load_state_dict(self, tensors: Tensors, config: dict[str, Any]) -> None:
        super().load_state_dict(tensors, config)
        self._synced = {int(k): v for k, v in config["synced"].items()}
        self._changed = config["changed"]


class FedSA(FactorMethod):
    """A is trained and averaged, B is trained and stays with its client (Guo et al., ICLR 2025, 2410.01463).

    There is no global model: each client's is ``W_0 + s B_i A``. The head is shared. Mixed ranks: refused.
    """

    name, uplink, has_global = "fedsa", ("A", "head"), False

    def downlink(self, round: int, pid: int) -> Payload:
        return Payload(self._for_client(pid).to_tensors(("A",)) | self._head_payload())

    def _received(self, client: Client) -> AdapterState:
        kept = client.private.get("b")
        b = kept[0] if kept else {f"B/{n}": torch.zeros(m, client.rank) for n, (m, _) in self.setup.shapes.items()}
        return AdapterState.from_tensors(client.received.tensors | b, client.scale)

    def reply(self, client: Client) -> Payload:
        state = AdapterState(client.model.adapters().factors, client.model.head())
        client.private.put("b", state.to_tensors(("B",)))
        return Payload(clone(state.to_tensors(("A", "head"))))

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        self._average_head(updates)
        keys = [f"A/{name}" for name in self.setup.shapes]
        mean = average([{k: u.tensors[k] for k in keys} for u in updates], [u.weight for u in updates])
        self.state = AdapterState.from_tensors(self.state.to_tensors(("A", "B")) | mean)

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        raise NotImplementedError


class FedPLoRA(FactorMethod):
    """Parallel one-rank modules with select-and-fold (Zhang, Hu, Xu, ICLR 2026, arXiv 2602.16936).

    The update is a sum of R one-rank modules ``b_j a_j``. In each round client i draws r_i of them, trains those, and
    folds the others into its base weights, so that it starts from the exact global model. Module j becomes the mean over
    the clients that trained it: ``a_j = sum_{i: j in S_i} p_i a_j^i / sum_{i: j in S_i} p_i``, and b_j likewise.
    Down go all R modules, up the r_i trained ones. The choice is uniform, from the seed.

    Checked against three accounts of the paper's sections 3.2 to 3.5 (its own text and code we could not read): the
    decomposition, the uniform choice, the folding and the separate means of a_j and b_j over the clients that trained j.
    There the mean is plain: one account gives the bound of the aggregation noise with its factor ``1 / |Q_j|``, Q_j the
    clients that trained j. ``plain=True`` is that; the default has the weights p_i, as all methods here have, and is the
    same where clients have equally many examples. That a module which nobody trained stays as it is, is our reading.

    Args:
        plain: every client that trained a module counts the same in its mean.
    """

    name, mixed_ranks = "fedplora", True

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain

    def selected(self, round: int, pid: int) -> list[int]:
        """The one-rank modules that this client trains in this round."""
        top = self.setup.lora.max_rank
        chosen = rng(self.setup.seed, "select", round, pid).choice(top, size=self._rank(pid), replace=False)
        return sorted(int(j) for j in chosen)

    def downlink(self, round: int, pid: int) -> Payload:
        return Payload(self.state.to_tensors(("A", "B")) | self._head_payload())

    def receive(self, client: Client) -> None:
        whole = AdapterState.from_tensors(client.received.tensors)
        mine = self.selected(client.round, client.pid)
        others = [j for j in range(self.setup.lora.max_rank) if j not in mine]
        client.model.set_delta({k: f.B[:, others] @ f.A[others] for k, f in whole.factors.items()})
        factors = {
            k: LoraFactors(f.A[mine], f.B[:, mine] / client.scale, client.scale) for k, f in whole.factors.items()
        }
        client.model.set_adapters(AdapterState(factors if mine else {}))
        self._receive_head(client)

    def aggregate(self, round: int, updates: list[ClientUpdate]) -> None:
        self._average_head(updates)
        taking = renormalised(updates)
        states = [(self._effective(u), self.selected(round, u.pid), 1.0 if self.plain else w) for u, w in taking]
        share = torch.zeros(self.setup.lora.max_rank, dtype=torch.float64)
        for _, mine, w in states:
            share[mine] += w
        factors = {}
        for name, old in self.state.factors.items():
            a, b = torch.zeros_like(old.A, dtype=torch.float64), torch.zeros_like(old.B, dtype=torch.float64)
            for state, mine, w in states:
                a[mine] += w * state.factors[name].A.double()
                b[:, mine] += w * state.factors[name].B.double()
            trained = share > 0
            a[trained] /= share[trained, None]
            b[:, trained] /= share[trained]
            a = torch.where(trained[:, None], a, old.A.double())
            b = torch.where(trained, b, old.B.double())
            factors[name] = LoraFactors(a.float(), b.float())
        self.state = AdapterState(factors)

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        raise NotImplementedError


class FLoRANA(FactorMethod):
    """Surrogate averages nearly equal to the exact sum, at FedIT's bytes (arXiv 2509.26399).

    Per module, mixing weights P and Q are sought with ``B = sum P_i B_i``, ``A = sum Q_i A_i`` and
    ``|| sum p_i B_i A_i - B A ||_F`` least. Here by alternating least squares from ``P = Q = p``, each half in closed form
    from r x r products. Never worse than FedIT. Mixed ranks: refused.

    Checked against the abstract (the objective) and the public reviews of its ICLR submission (P and Q are two vectors of
    one scalar a client, which combine the clients' matrices linearly), not against its text. The reviews miss an account of
    how P and Q are found and whether each layer has its own: least squares and a pair a module are our choice.
    """

    name = "florana"

    def __init__(self, sweeps: int = 20) -> None:
        self.sweeps = sweeps

    def combine(self, states: list[AdapterState], weights: list[float]) -> AdapterState:
        factors = {}
        for name in states[0].factors:
            a = torch.stack([s.factors[name].A for s in states]).double()
            b = torch.stack([s.factors[name].B for s in states]).double()
            factors[name] = LoraFactors(*self._surrogates(a, b, torch.tensor(weights, dtype=torch.float64)))
        return AdapterState(factors)

    def _surrogates(self, a: Tensor, b: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Mean factors in float32 from stacks a (K, r, n) and b (K, m, r)."""
        aa = torch.einsum("krn,lsn->klrs", a, a)  # A_k A_l^T
        bb = torch.einsum("kmr,lms->klrs", b, b)  # B_k^T B_l
        left, right = p.clone(), p.clone()
        for _ in range(self.sweeps):
            left = _half(
                bb, torch.einsum("k,l,klrs->rs", right, right, aa), torch.einsum("l,jlrs->jrs", right, aa), p, left
            )
            right = _half(
                aa, torch.einsum("k,l,klrs->rs", left, left, bb), torch.einsum("l,jlrs->jrs", left, bb), p, right
            )
        return torch.einsum("k,krn->rn", right, a).float(), torch.einsum("k,kmr->mr", left, b).float()


def _half(own: Tensor, other: Tensor, cross: Tensor, p: Tensor, old: Tensor) -> Tensor:
    """Best mixing weights of one factor with the other fixed: the normal equations of size K.

    ``own[k, l]`` are the (r, r) products of the factor's stack, ``other`` the fixed factor's with itself and
    ``cross[j]`` client j's with the fixed factor.
    """
    gram = torch.einsum("klrs,rs->kl", own, other)
    # <sum_j p_j B_j A_j, B_k A> = sum_j p_j <B_j^T B_k, A_j A^T>, and the same with the roles exchanged.
    target = torch.einsum("j,jkrs,jrs->k", p, own, cross)
    best = torch.linalg.lstsq(gram, target[:, None], driver="gelsd").solution[:, 0]
    return best if bool(torch.isfinite(best).all()) and float(gram.diagonal().sum()) > 0 else old

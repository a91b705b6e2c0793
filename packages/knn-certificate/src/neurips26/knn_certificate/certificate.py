"""The certificate: three terms, their counts and limits, what is assumed, and the way to recompute it all.

For a sample ``S``, a part of it ``S'``, networks ``f = f_S`` and ``f' = f_S'`` and the k-NN decoder ``g`` over the features
of ``f'`` with memory ``S'``, every point ``(x, y)`` satisfies

    1{f(x) != y}  <=  1{g(x) != y}  +  1{f'(x) != g(x)}  +  1{f(x) != f'(x)}
                        geometry         disagreement          stability

and the first two may be counted as one event, *joint* ``= 1{g(x) != y or f'(x) != g(x)}``, which is never more than their
sum. Counted on points that neither ``f'`` nor ``g`` has seen, each rate has an exact binomial limit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from neurips26.knn_certificate import bounds

__all__ = ["Certificate", "Term", "terms_row", "verify"]


@dataclass(frozen=True)
class Term:
    """One rate: how many of ``n`` points showed the event, and its upper limit at ``delta`` (1 = nothing is known)."""

    count: int
    n: int
    delta: float
    slack: str
    upper: float

    @property
    def estimate(self) -> float:
        """Observed rate."""
        return self.count / self.n

    @classmethod
    def of(cls, events: Bool[np.ndarray, " m"], delta: float, slack: str) -> Term:
        """Count events and bound their rate."""
        count, n = int(events.sum()), int(events.size)
        return cls(count, n, delta, slack, bounds.upper(count, n, delta, slack))


@dataclass(frozen=True)
class Certificate:
    """An upper bound on a classifier's test error with the terms it is made of.

    Attributes:
        bound: the certified error; at most this with probability ``1 - delta`` under ``assumptions``.
        certified: which classifier the bound is about.
        geometry: decoder wrong.
        disagreement: network and decoder differ.
        stability: network on all data and network on ``S'`` differ; ``None`` where it is not part of the bound.
        joint: geometry or disagreement, the event that the bound counts.
        additive_bound: limit of the three terms taken one by one at ``delta`` over their number (never smaller in
            expectation; the breakdown that people read).
        holdout_bound: Clopper-Pearson limit of the network of ``S'`` on the same points. It is always tighter than the
            certificate: the certificate's use is the breakdown, and in mode ``loo`` that it needs no held-out labels.
        mode: ``blocked``, ``folds`` or ``loo``.
        rigorous: whether the bound is proved under ``assumptions``.
        assumptions: what must hold.
        notes: warnings that belong to the figures.
        n_train: points in the decoder's memory.
        n_classes: classes.
        k: neighbours.
        metric: distance.
        delta: probability with which the bound may fail.
        details: per-class table and settings.
        events: the events themselves, so that the counts can be recomputed.
    """

    bound: float
    certified: str
    geometry: Term
    disagreement: Term
    stability: Term | None
    joint: Term | None
    additive_bound: float
    holdout_bound: float | None
    mode: str
    rigorous: bool
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    n_train: int
    n_classes: int
    k: int
    metric: str
    delta: float
    details: dict[str, Any] = field(default_factory=dict, repr=False)
    events: dict[str, Bool[np.ndarray, " m"]] = field(default_factory=dict, repr=False)

    @property
    def vacuous(self) -> bool:
        """Whether guessing among the classes would promise as much."""
        return self.bound >= 1 - 1 / self.n_classes

    def summary(self) -> str:
        """The terms with their counts and limits, and the hold-out bound beside the certificate."""
        lines = [
            f"{self.certified}: test error at most {self.bound:.4f} with probability {1 - self.delta:g}"
            + ("" if self.rigorous else "  (NOT a proved bound)")
            + ("  (vacuous)" if self.vacuous else ""),
            f"  {'term':<14}{'estimate':>10}{'count':>8}{'of':>8}{'limit':>10}{'delta':>9}",
        ]
        for name in ("geometry", "disagreement", "joint", "stability"):
            t = getattr(self, name)
            if t is not None:
                lines.append(f"  {name:<14}{t.estimate:>10.4f}{t.count:>8}{t.n:>8}{t.upper:>10.4f}{t.delta:>9.4f}")
        lines.append(f"  three terms added one by one: {self.additive_bound:.4f}")
        if self.holdout_bound is not None:
            lines.append(f"  plain hold-out on the same points: {self.holdout_bound:.4f} (always tighter)")
        lines.append(
            f"  mode {self.mode}, k = {self.k}, {self.metric}, memory of {self.n_train}, {self.n_classes} classes"
        )
        lines += [f"  assumes: {a}" for a in self.assumptions]
        lines += [f"  note: {a}" for a in self.notes]
        return "\n".join(lines)

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON with everything :func:`verify` needs; also written to ``path`` where given."""
        row = {f: getattr(self, f) for f in self.__dataclass_fields__ if f not in ("events",)}
        for name in ("geometry", "disagreement", "stability", "joint"):
            row[name] = None if row[name] is None else {**vars(row[name]), "estimate": row[name].estimate}
        row["assumptions"], row["notes"] = list(self.assumptions), list(self.notes)
        row["vacuous"] = self.vacuous
        row["events"] = {
            name: {"n": int(bits.size), "hex": np.packbits(bits).tobytes().hex()} for name, bits in self.events.items()
        }
        text = json.dumps(row, indent=1, default=_plain)
        if path is not None:
            from neurips26.shared.runs import atomic_write_text

            atomic_write_text(path, text + "\n")
        return text

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The certificate of a JSON text.

        Raises:
            ValueError: not a certificate.
        """
        try:
            row = json.loads(text)
            row.pop("vacuous")
            for name in ("geometry", "disagreement", "stability", "joint"):
                if row[name] is not None:
                    row[name].pop("estimate")
                    row[name] = Term(**row[name])
            row["assumptions"], row["notes"] = tuple(row["assumptions"]), tuple(row["notes"])
            row["events"] = {
                name: np.unpackbits(np.frombuffer(bytes.fromhex(b["hex"]), np.uint8))[: b["n"]].astype(bool)
                for name, b in row["events"].items()
            }
            return cls(**row)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"text: expected the JSON of a certificate, got something else ({error!r})") from error

    def plot(self, path: str | Path, test_error: float | None = None) -> None:
        """A stacked bar of the estimates and limits, the hold-out bound and, where known, the test error."""
        from neurips26.knn_certificate.pictures import stacked_terms

        stacked_terms({"certificate": self}, path, {} if test_error is None else {"certificate": test_error})


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def verify(certificate: Certificate) -> list[str]:
    """Recompute a certificate from its events: counts, limits, the bound, the flags. Empty when all agrees."""
    problems: list[str] = []

    def compare(what: str, got: Any, want: Any) -> None:
        same = abs(got - want) <= 1e-9 if isinstance(want, float) and got is not None else got == want
        if not same:
            problems.append(f"{what}: expected {want} from the events, got {got}")

    c = certificate
    for name in ("geometry", "disagreement", "joint", "stability"):
        term: Term | None = getattr(c, name)
        if term is None:
            continue
        if name not in c.events:
            problems.append(f"{name}: expected its events, got none")
            continue
        compare(f"{name}.count", term.count, int(c.events[name].sum()))
        compare(f"{name}.n", term.n, int(c.events[name].size))
        if term.slack in bounds.SLACKS:
            compare(f"{name}.upper", term.upper, bounds.upper(term.count, term.n, term.delta, term.slack))
        elif term.slack in _LOO:
            compare(f"{name}.upper", term.upper, min(1.0, term.estimate + _LOO[term.slack](term.n, c.k, term.delta)))
    if problems:
        return problems
    if c.mode == "folds":
        sizes = c.details["fold_sizes"]
        parts = np.split(c.events["joint"], np.cumsum(sizes)[:-1])
        share = c.delta / len(sizes)
        limits = [bounds.upper(int(p.sum()), p.size, share, c.details["slack"]) for p in parts]
        compare("bound", c.bound, float(np.mean(limits)))
    else:
        assert c.mode == "loo" or c.joint is not None
        used = [c.geometry, c.disagreement] if c.mode == "loo" else [c.joint]
        used += [c.stability] if c.stability is not None and c.details.get("stability_in_bound", False) else []
        total = sum(t.delta for t in used if t is not None) * c.details.get("choices_paid", 1)
        if total > c.delta * (1 + 1e-9) and c.rigorous:
            problems.append(f"delta: expected the terms to share {c.delta}, got {total}")
        compare("bound", c.bound, float(min(1.0, sum(t.upper for t in used if t is not None))))
    if c.mode != "loo" and c.joint is not None and "geometry" in c.events:
        union = c.events["geometry"] | c.events["disagreement"]
        if c.details.get("stability") == "double-deletion":
            union = union | c.events["stability"]
        compare("joint events", bool((union == c.events["joint"]).all()), True)
    return problems


def terms_row(certificate: Certificate, test_error: float) -> dict[str, float]:
    """The figures of a blocked certificate as one flat row, with the test error it is compared with."""
    c = certificate
    if c.joint is None or c.holdout_bound is None:
        raise ValueError(f"certificate: expected one of mode 'blocked' or 'folds', got {c.mode!r}")
    return {
        "certificate": c.bound,
        "test error": test_error,
        "geometry": c.geometry.estimate,
        "disagreement": c.disagreement.estimate,
        "joint": c.joint.estimate,
        "stability": c.stability.estimate if c.stability else 0.0,
        "three terms one by one": c.additive_bound,
        "hold-out": c.holdout_bound,
    }


_LOO = {
    "rogers-wagner": bounds.rogers_wagner,
    "devroye-wagner": bounds.devroye_wagner,
    "hoeffding-heuristic": lambda n, k, delta: bounds.hoeffding_slack(n, delta),
    "none": lambda n, k, delta: 0.0,
}

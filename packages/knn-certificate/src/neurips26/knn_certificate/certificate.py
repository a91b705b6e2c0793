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

#: What a certificate may assume.
IID = "the points are independent draws from the distribution the error is about"
BLOCK = "the block was drawn at random and neither f' nor k, metric or layer was chosen with it"
POOL = "no training saw the unlabelled pool"
MONOTONE = "deleting a second block changes predictions at least as often as deleting the first (monotone stability)"
FOLDS = "the folds were drawn at random"
FROZEN = "the representation never saw these labels"
#: What a certificate may be about.
WITHOUT_BLOCK, OF_ALL, HEAD_OF_ALL = (
    "the network trained without the block",
    "the network trained on all data",
    "the head trained on all data",
)


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
        holdout_bound: Clopper-Pearson limit of the network of ``S'`` on the block. In mode ``blocked`` it is always tighter
            than the certificate: the certificate's use is the breakdown, and in mode ``loo`` that all labels serve the
            decoder.
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
        stated: of a certificate that was read: what its text says and the events imply, for :func:`verify`.
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
    stated: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

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
            what = self.details.get("holdout_of", "on the same points")
            lines.append(
                f"  plain hold-out {what}: {self.holdout_bound:.4f}" + (" (always tighter)" if self.joint else "")
            )
        lines.append(
            f"  mode {self.mode}, k = {self.k}, {self.metric}, memory of {self.n_train}, {self.n_classes} classes"
        )
        hardest = sorted((r for r in self.details.get("classes", ()) if r["joint"]), key=lambda r: -r["joint"])[:3]
        if hardest:
            lines.append("  hardest classes: " + ", ".join(f"{r['class']} ({r['joint']:.2f})" for r in hardest))
        lines += [f"  assumes: {a}" for a in self.assumptions]
        lines += [f"  note: {a}" for a in self.notes]
        return "\n".join(lines)

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON with everything :func:`verify` needs; also written to ``path`` where given."""
        row = {f: getattr(self, f) for f in self.__dataclass_fields__ if f not in ("events", "stated")}
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
            row["stated"] = {"vacuous": row.pop("vacuous")}
            for name in ("geometry", "disagreement", "stability", "joint"):
                if row[name] is not None:
                    row["stated"][name] = row[name].pop("estimate")
                    row[name] = Term(**row[name])
            row["assumptions"], row["notes"] = tuple(row["assumptions"]), tuple(row["notes"])
            row["events"] = {
                name: np.unpackbits(np.frombuffer(bytes.fromhex(b["hex"]), np.uint8))[: b["n"]].astype(bool)
                for name, b in row["events"].items()
            }
            return cls(**row)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"text: expected the JSON of a certificate, got something else ({error!r})") from error

    def plot(self, path: str | Path, test_error: float | None = None) -> None:
        """A stacked bar of the estimates and limits, the hold-out bound and, where known, the test error."""
        from neurips26.knn_certificate.pictures import stacked_terms

        stacked_terms({"certificate": self}, path, {} if test_error is None else {"certificate": test_error})


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def verify(certificate: Certificate) -> list[str]:
    """Recompute a certificate from its events: counts, estimates, limits, all three bounds, the flags, what it is about and
    what it assumes. Empty when all agrees.

    That the events are those of the network and the data named, no computation on them can tell.
    """
    c, problems = certificate, []

    def compare(what: str, got: Any, want: Any) -> None:
        number = isinstance(got, (int, float))
        same = number and abs(got - want) <= 1e-9 if isinstance(want, float) else got == want
        if not same:
            problems.append(f"{what}: expected {want} from the events, got {got}")

    if c.mode not in _SAME_POINTS:
        return [f"mode: expected one of {', '.join(_SAME_POINTS)}, got {c.mode!r}"]
    if c.joint is None and c.mode != "loo":
        return [f"joint: expected its counts in mode {c.mode}, got none"]
    terms: dict[str, Term] = {n: t for n in _TERMS if (t := getattr(c, n)) is not None}
    needed = [*terms, *(["holdout"] if c.holdout_bound is not None else [])]
    problems += [f"{name}: expected its events, got none" for name in needed if name not in c.events]
    same = _SAME_POINTS[c.mode] + (("stability",) if c.details.get("stability") == "double-deletion" else ())
    sizes = {c.events[n].size for n in same if n in c.events}
    if len(sizes) > 1:
        problems.append(f"events: expected one number of certification points, got {sorted(sizes)}")
    if problems:
        return problems
    for name, term in terms.items():
        compare(f"{name}.count", term.count, int(c.events[name].sum()))
        compare(f"{name}.n", term.n, int(c.events[name].size))
        if term.slack in bounds.SLACKS:
            compare(f"{name}.upper", term.upper, bounds.upper(term.count, term.n, term.delta, term.slack))
        else:
            slack = _LOO[term.slack](term.n, c.k, term.delta)
            compare(f"{name}.upper", term.upper, min(1.0, term.estimate + slack))
    if problems:
        return problems
    {"blocked": _verify_blocked, "folds": _verify_folds, "loo": _verify_loo}[c.mode](c, compare)
    doubts = any(t.slack in ("none", "hoeffding-heuristic") for t in terms.values())
    compare("rigorous", c.rigorous, not doubts and not any("not certified" in note for note in c.notes))
    about, assumed = _standing(c)
    compare("certified", c.certified, about)
    # That features are frozen is the caller's word: it may stand on any certificate of a head.
    extra = {FROZEN} & set(c.assumptions) if c.mode == "blocked" else set()
    compare("assumptions", set(c.assumptions), assumed | extra)
    seen = {row["class"] for row in c.details.get("classes", ())}
    if c.n_classes < max(len(seen), 2):
        problems.append(
            f"n_classes: expected at least {max(len(seen), 2)} from the table of classes, got {c.n_classes}"
        )
    for name, said in c.stated.items():
        compare(
            name if name == "vacuous" else f"{name}.estimate", said, getattr(terms.get(name), "estimate", c.vacuous)
        )
    return problems


def _standing(c: Certificate) -> tuple[str, set[str]]:
    """What a certificate of this mode is about, and what it assumes."""
    if c.mode == "folds":
        return f"a head drawn at random from the {len(c.details['fold_sizes'])} cross-validated ones", {
            IID,
            FOLDS,
            FROZEN,
        }
    if c.mode == "loo":
        return HEAD_OF_ALL, {IID, FROZEN}
    extra = {"unlabeled": {POOL}, "double-deletion": {MONOTONE}}.get(c.details.get("stability", ""), set())
    return OF_ALL if extra else WITHOUT_BLOCK, {IID, BLOCK} | extra


_TERMS = ("geometry", "disagreement", "joint", "stability")
#: Events that are counted on the same points.
_SAME_POINTS = dict.fromkeys(("blocked", "folds"), ("geometry", "disagreement", "joint", "holdout")) | {"loo": ()}


def _verify_blocked(c: Certificate, compare: Any) -> None:
    assert c.joint is not None
    union = c.events["geometry"] | c.events["disagreement"]
    if c.details.get("stability") == "double-deletion":
        union = union | c.events["stability"]
    compare("joint events", bool((union == c.events["joint"]).all()), True)
    used = [c.joint]
    if c.stability is not None and c.details["stability_in_bound"]:
        used.append(c.stability)
    compare("delta", sum(t.delta for t in used), c.delta)
    compare("bound", c.bound, float(min(1.0, sum(t.upper for t in used))))
    apart = [t for t in (c.geometry, c.disagreement, c.stability) if t is not None]
    limits = [bounds.upper(t.count, t.n, c.delta / len(apart), c.details["slack"]) for t in apart]
    compare("additive_bound", c.additive_bound, float(min(1.0, sum(limits))))
    compare("holdout_bound", c.holdout_bound, _limit(c.events["holdout"], c.delta))


def _verify_folds(c: Certificate, compare: Any) -> None:
    sizes, slack = c.details["fold_sizes"], c.details["slack"]
    share = c.delta / len(sizes)
    parts = {n: np.split(c.events[n], np.cumsum(sizes)[:-1]) for n in ("geometry", "disagreement", "joint", "holdout")}
    union = c.events["geometry"] | c.events["disagreement"]
    compare("joint events", bool((union == c.events["joint"]).all()), True)
    compare("bound", c.bound, float(np.mean([_limit(p, share, slack) for p in parts["joint"]])))
    apart = [
        min(1.0, _limit(g, share / 2, slack) + _limit(d, share / 2, slack))
        for g, d in zip(parts["geometry"], parts["disagreement"])
    ]
    compare("additive_bound", c.additive_bound, float(np.mean(apart)))
    compare("holdout_bound", c.holdout_bound, float(np.mean([_limit(p, share) for p in parts["holdout"]])))


def _verify_loo(c: Certificate, compare: Any) -> None:
    if c.disagreement.slack != "none":
        compare("delta", (c.geometry.delta + c.disagreement.delta) * c.details["choices_paid"], c.delta)
    total = float(min(1.0, c.geometry.upper + c.disagreement.upper))
    compare("bound", c.bound, total)
    compare("additive_bound", c.additive_bound, total)
    if c.holdout_bound is not None:
        compare("holdout_bound", c.holdout_bound, _limit(c.events["holdout"], c.delta))


def _limit(events: np.ndarray, delta: float, slack: str = "clopper-pearson") -> float:
    return bounds.upper(int(events.sum()), int(events.size), delta, slack)


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

"""Certificates: the inequality they rest on, known values, recomputation, refusals."""

import copy
import json
import warnings
from collections import UserDict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from neurips26.knn_certificate import (
    Certificate,
    bounds,
    certify,
    certify_arrays,
    certify_features,
    extract_features,
    verify,
)
from neurips26.knn_certificate.blocked import choose_k, random_block
from neurips26.knn_certificate.coverage import PROTOCOLS, draw_classes, one_repeat
from neurips26.knn_certificate.labels import encode_labels

HEAD = LogisticRegression(max_iter=200)
of_frozen = partial(certify_features, representation="frozen")


@pytest.fixture(scope="module")
def gaussians():
    X, y = draw_classes(600, 4, 8, 1, "tests")
    pool, _ = draw_classes(250, 4, 8, 1, "tests pool")
    return X, y, pool


@given(st.integers(0, 2**31 - 1))
@settings(max_examples=40, deadline=None)
def test_the_inequality_holds_at_every_point(seed):
    rng = np.random.default_rng(seed)
    y, f, f_part, g = rng.integers(0, 3, (4, 200))
    geometry, disagreement, stability = g != y, f_part != g, f != f_part
    joint = geometry | disagreement
    assert ((f != y) <= (joint | stability)).all()
    assert ((f != y).astype(int) <= joint.astype(int) + stability).all()
    assert (joint.astype(int) <= geometry.astype(int) + disagreement).all()


def test_counts_and_limits_by_hand():
    """Memory on a line; the block's decoder answers are read off it."""
    memory, labels = np.array([[0.0], [1.0], [10.0], [11.0]]), np.array([0, 0, 1, 1])
    block = np.repeat(np.array([[0.4], [10.4], [0.6], [10.6]]), 50, axis=0)
    truth = np.repeat([0, 1, 1, 1], 50)  # the third group is decoded wrongly
    network = np.repeat([0, 0, 0, 1], 50)  # and the second group is where network and decoder differ
    c = certify_arrays(memory, labels, block, truth, network, k=1, metric="euclidean")
    assert (c.geometry.count, c.disagreement.count, c.joint.count, c.joint.n) == (50, 50, 100, 200)
    assert c.bound == pytest.approx(bounds.clopper_pearson(100, 200, 0.05))
    assert c.holdout_bound == pytest.approx(bounds.clopper_pearson(100, 200, 0.05))
    assert c.additive_bound == pytest.approx(2 * bounds.clopper_pearson(50, 200, 0.025))
    assert c.rigorous and not c.details.get("stability")
    table = {row["class"]: row for row in c.details["classes"]}
    assert table[0]["n"] == 50 and table[1]["geometry"] == pytest.approx(1 / 3)


def test_pool_and_double_deletion(gaussians):
    X, y, pool = gaussians
    paid = of_frozen(X, y, head=HEAD, unlabeled=pool, k=5)
    assert paid.stability.delta == pytest.approx(0.025) and paid.stability.n == 250
    assert paid.bound == pytest.approx(paid.joint.upper + paid.stability.upper)
    doubled = of_frozen(X, y, head=HEAD, stability="double-deletion", k=5)
    assert doubled.joint.count >= doubled.stability.count
    assert any("monotone stability" in a for a in doubled.assumptions)
    assert of_frozen(X, y, head=HEAD, k=5).certified == "the network trained without the block"


@pytest.mark.parametrize("mode", ["blocked", "folds", "loo"])
def test_json_round_trip_and_tampering(gaussians, mode, tmp_path):
    X, y, pool = gaussians
    c = of_frozen(X, y, head=HEAD, unlabeled=None if mode == "folds" else pool, mode=mode, k=5)
    c.to_json(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    again = Certificate.from_json(text)
    assert verify(c) == [] and verify(again) == []
    assert again.bound == c.bound and again.geometry == c.geometry
    row = json.loads(text)
    row["bound"] = 0.5 * row["bound"]
    assert any(p.startswith("bound") for p in verify(Certificate.from_json(json.dumps(row))))
    row = json.loads(text)
    row["geometry"]["count"] += 1
    assert any(p.startswith("geometry.count") for p in verify(Certificate.from_json(json.dumps(row))))
    broken = {**json.loads(text), "events": {"geometry": {"n": 3, "hex": "zz"}}}
    for other in ("{}", "nonsense", json.dumps(broken)):
        with pytest.raises(ValueError, match="^text: expected the JSON of a certificate"):
            Certificate.from_json(other)


@pytest.mark.parametrize(
    ("mode", "change", "problem"),
    [
        ("blocked", {"holdout_bound": 0.001}, "holdout_bound"),
        ("folds", {"holdout_bound": 0.001}, "holdout_bound"),
        ("loo", {"holdout_bound": 0.001}, "holdout_bound"),
        ("blocked", {"additive_bound": 0.001}, "additive_bound"),
        ("folds", {"additive_bound": 0.001}, "additive_bound"),
        ("blocked", {"delta": 0.01}, "delta"),
        ("blocked", {"mode": "sworn"}, "mode"),
        ("blocked", {"joint": None}, "joint"),
    ],
)
def test_every_figure_is_recomputed(gaussians, mode, change, problem):
    X, y, pool = gaussians
    c = of_frozen(X, y, head=HEAD, unlabeled=None if mode == "folds" else pool, mode=mode, k=5)
    assert verify(c) == []
    assert any(p.startswith(problem) for p in verify(replace(c, **change)))


@pytest.mark.parametrize("mode", ["blocked", "folds", "loo"])
def test_what_a_text_states_is_compared(gaussians, mode):
    """Estimates, flags, what it is about and what it assumes: none may be rewritten in the file."""
    X, y, pool = gaussians
    text = of_frozen(X, y, head=HEAD, unlabeled=None if mode == "folds" else pool, mode=mode, k=5).to_json()
    assert verify(Certificate.from_json(text)) == []

    def problems(change):
        row = json.loads(text)
        change(row)
        return " ".join(verify(Certificate.from_json(json.dumps(row))))

    assert problems(lambda row: row.update(vacuous=not row["vacuous"])).startswith("vacuous: expected")
    assert "geometry.estimate: expected" in problems(lambda row: row["geometry"].update(estimate=0.0))
    assert "assumptions: expected" in problems(lambda row: row.update(assumptions=[]))
    assert "certified: expected" in problems(lambda row: row.update(certified="foo"))
    assert "n_classes: expected" in problems(lambda row: row.update(n_classes=1))


def test_frozen_stands_among_the_assumptions(gaussians):
    X, y, pool = gaussians
    for more in ({"unlabeled": pool}, {"mode": "folds"}, {"mode": "loo", "unlabeled": pool}):
        assert "the representation never saw these labels" in of_frozen(X, y, head=HEAD, k=5, **more).assumptions


def test_flags_and_events_are_recomputed(gaussians):
    X, y, pool = gaussians
    c = of_frozen(X, y, head=HEAD, unlabeled=pool, mode="loo", k=5, slack="hoeffding-heuristic")
    assert verify(replace(c, rigorous=True)) == ["rigorous: expected False from the events, got True"]
    blocked = of_frozen(X, y, head=HEAD, unlabeled=pool, k=5)
    short = {**blocked.events, "geometry": blocked.events["geometry"][:-1]}
    assert verify(replace(blocked, events=short))[0].startswith("events: expected one number")
    bare = {name: e for name, e in blocked.events.items() if name != "holdout"}
    assert verify(replace(blocked, events=bare)) == ["holdout: expected its events, got none"]


@pytest.mark.parametrize("mode", ["blocked", "folds", "loo"])
def test_hold_out_stands_beside_every_certificate(gaussians, mode):
    X, y, pool = gaussians
    c = of_frozen(X, y, head=HEAD, unlabeled=None if mode == "folds" else pool, mode=mode, k=5)
    assert f"{c.holdout_bound:.4f}" in c.summary() and "plain hold-out" in c.summary()
    if mode == "loo":
        kept, held = random_block(600, 0.2, 0)
        wrong = int((HEAD.fit(X[kept], y[kept]).predict(X[held]) != y[held]).sum())
        assert c.holdout_bound == pytest.approx(bounds.clopper_pearson(wrong, 120))


def test_memorised_labels_are_named():
    """Features that carry the training labels, but not the block's: leave-one-out on the memory misleads."""
    rng = np.random.default_rng(0)
    y, y_block = rng.integers(0, 4, 300), rng.integers(0, 4, 150)
    memory, block = np.eye(4)[y] + 0.01 * rng.normal(size=(300, 4)), rng.normal(size=(150, 4))
    c = certify_arrays(memory, y, block, y_block, y_block)
    assert any(n.startswith("leave-one-out on the training points reads 0.000, the block 0.7") for n in c.notes)
    assert "hardest classes: " in c.summary()
    fair = certify_arrays(memory, y, memory[:150], y[:150], y[:150])
    assert not any("leave-one-out" in n for n in fair.notes)


def test_bound_moves_with_delta_and_slack(gaussians):
    X, y, pool = gaussians
    at = {d: of_frozen(X, y, head=HEAD, unlabeled=pool, k=5, delta=d).bound for d in (0.01, 0.05, 0.2)}
    assert at[0.01] > at[0.05] > at[0.2]
    by = {s: of_frozen(X, y, head=HEAD, k=5, slack=s).bound for s in bounds.SLACKS}
    assert by["clopper-pearson"] <= by["kl"] <= by["hoeffding"]
    c = of_frozen(X, y, head=HEAD, unlabeled=pool, k=5)
    for term in (c.geometry, c.disagreement, c.joint, c.stability):
        assert term.upper >= term.estimate
    assert c.holdout_bound is not None and c.holdout_bound <= c.bound


def test_constant_classifier_and_random_labels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    y = np.arange(1000) % 2
    c = certify_arrays(X[:500], y[:500], X[500:], y[500:], np.zeros(500, int), k=5)
    assert c.holdout_bound == pytest.approx(bounds.clopper_pearson(250, 500))
    assert c.vacuous
    noise = of_frozen(X, rng.integers(0, 2, 1000), head=HEAD, k=5)
    assert noise.bound >= 0.5


def test_violations_are_rare():
    """200 draws: at delta 0.05 more than 18 violations have probability below 1%."""
    assert one_repeat(0, "misused")["bound"] < 0.5 < one_repeat(0, "misused")["risk"] == 0.75
    for protocol in (*PROTOCOLS, "loo-hoeffding"):
        got = one_repeat(0, protocol, test=4_000)
        assert 0.08 < got["risk"] < 0.2 and got["risk"] < got["bound"] < 1
    rows = [one_repeat(seed, "none", n=200, test=4_000) for seed in range(200)]
    assert sum(r["risk"] > r["bound"] for r in rows) <= 18


def test_leave_one_out_needs_a_frozen_representation(gaussians):
    X, y, pool = gaussians
    with pytest.raises(ValueError, match="^representation: expected 'frozen', got 'trained'"):
        certify_features(X, y, mode="loo", representation="trained")
    with pytest.raises(ValueError, match="^representation: expected 'frozen', got 'trained'"):
        certify_features(X, y, representation="trained")  # a block that the features were trained on is no block
    proved = of_frozen(X, y, head=HEAD, unlabeled=pool, mode="loo", k=5)
    assert proved.rigorous
    assert proved.geometry.upper == pytest.approx(
        min(1, proved.geometry.estimate + bounds.rogers_wagner(600, 5, 0.025))
    )
    chosen = of_frozen(X, y, head=HEAD, unlabeled=pool, mode="loo", k="auto")
    assert chosen.details["choices_paid"] == 6
    assert chosen.geometry.delta == chosen.disagreement.delta == pytest.approx(0.05 / 2 / 6)
    heuristic = of_frozen(X, y, head=HEAD, unlabeled=pool, mode="loo", k=5, slack="hoeffding-heuristic")
    assert not heuristic.rigorous and "NOT a proved bound" in heuristic.summary()
    assert not of_frozen(X, y, head=HEAD, mode="loo", k=5).rigorous  # disagreement counted in sample


def test_choosing_k_on_the_certified_points_is_paid_for(gaussians):
    X, y, pool = gaussians
    c = of_frozen(X, y, head=HEAD, unlabeled=pool, mode="loo", slack="hoeffding-heuristic")
    assert c.geometry.delta == pytest.approx(0.025 / 6)
    free = of_frozen(X, y, head=HEAD, unlabeled=pool)  # blocked: k is chosen on the memory alone
    assert free.joint.delta == pytest.approx(0.025)


def test_overlap_of_pool_and_training_is_reported(gaussians):
    X, y, _ = gaussians
    with pytest.warns(UserWarning, match="shares 600 points"):
        c = of_frozen(X, y, head=HEAD, unlabeled=X, k=5)
    assert not c.rigorous and any("not certified" in n for n in c.notes)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (np.float64, np.float32),
        (np.float32, np.float64),
        (np.float64, np.float16),
        (np.float64, torch.float32),
        (torch.bfloat16, np.float64),
    ],
)
@pytest.mark.parametrize("mode", ["blocked", "loo"])
def test_overlap_is_seen_through_types(gaussians, mine, theirs, mode):
    def as_type(x, kind):
        return torch.from_numpy(x).to(kind) if isinstance(kind, torch.dtype) else x.astype(kind)

    X, y, pool = gaussians
    with pytest.warns(UserWarning, match="shares 600 points"):
        c = of_frozen(as_type(X, mine), y, head=HEAD, unlabeled=as_type(X, theirs), k=5, mode=mode)
    assert not c.rigorous
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_frozen(as_type(X, mine), y, head=HEAD, unlabeled=as_type(pool, theirs), k=5, mode=mode)
        of_frozen(np.round(X).astype(int), y, head=HEAD, unlabeled=np.round(pool) + 0.25, k=5)  # whole and not whole


def test_small_block_and_pruned_grid_warn():
    X, y = draw_classes(40, 2, 3, 0, "small")
    with pytest.warns(UserWarning) as caught:
        of_frozen(X, y, head=HEAD)
    text = " | ".join(str(w.message) for w in caught)
    assert "only 8 certification points" in text and "dropped, the memory has 32 points" in text


@pytest.mark.parametrize(
    "labels",
    [np.array(["b", "a", "b"]), np.array([7, -3, 7], np.int8), np.eye(2)[[1, 0, 1]], torch.tensor([9, 2, 9])],
)
def test_labels_of_any_kind(labels):
    classes, codes = encode_labels(labels)
    assert codes.tolist() == [1, 0, 1] and classes.size == 2


def test_rare_classes_are_named():
    """A class with one point that falls into the block has no memory: its point counts as an error, and a note says so."""
    memory, labels = np.array([[0.0], [1.0], [10.0], [11.0]]), np.array(["a", "a", "b", "b"])
    block = np.repeat(np.array([[0.4], [10.4]]), 60, axis=0)
    truth = np.repeat(np.array(["a", "b"]), 60)
    truth[-1] = "c"
    c = certify_arrays(memory, labels, block, truth, np.repeat(np.array(["a", "b"]), 60), k=1, metric="euclidean")
    assert c.geometry.count == 1 and c.n_classes == 3
    assert any("without a memory point, always decoded wrongly: ['c']" in n for n in c.notes)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, np.float16])
def test_half_precision_features(gaussians, kind):
    X, y, pool = gaussians
    half = torch.tensor(X).to(kind) if isinstance(kind, torch.dtype) else X.astype(kind)
    c = of_frozen(half, y, head=HEAD, unlabeled=pool.astype(np.float32), k=5)
    assert abs(c.bound - of_frozen(X, y, head=HEAD, unlabeled=pool, k=5).bound) < 0.05
    assert verify(c) == []


def test_order_of_classes_in_the_file_does_not_matter():
    """Sorted data: the first fifth would be classes that the memory never saw."""
    X, y = draw_classes(600, 10, 8, 3, "sorted")
    order = np.argsort(y, kind="stable")
    c = of_frozen(X[order], y[order], head=HEAD, k=5)
    assert c.geometry.estimate < 0.6 and not any("without a memory point" in n for n in c.notes)


def test_blocks_are_random_and_disjoint():
    kept, held = random_block(1000, 0.2, seed=3)
    assert held.size == 200 and np.intersect1d(kept, held).size == 0
    assert held.min() < 100 and held.max() > 900
    assert not (random_block(1000, 0.2, seed=4)[1] == held).all()


def test_chosen_k_is_the_best_and_smallest():
    X = np.array([[0.0], [1.0], [2.1], [10.0], [11.0], [12.1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert choose_k(X, np.array([0, 0, 0, 1, 1, 1]), (1, 2, 5))[0] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.full((600, 8), np.nan)}, "^X: expected finite numbers, got nan"),
        ({"X": np.ones((600, 8))}, "^X: expected features that differ between points"),
        ({"y": np.zeros(5)}, "^y: expected 600 labels as rows of X, got 5"),
        ({"y": np.zeros(600)}, "^y: expected at least 2 classes, got 1"),
        ({"block": 1.5}, "^block: expected a finite number > 0"),
        ({"k": 10_000}, r"^k: expected at most 480"),
        ({"slack": "bernstein"}, "^slack: expected one of 'clopper-pearson'"),
        ({"stability": "unlabeled"}, "^unlabeled: expected features of a pool"),
        ({"unlabeled": np.ones((3, 2))}, r"^unlabeled: expected shape"),
        ({"unlabeled": np.empty((0, 8))}, r"^unlabeled: expected"),
        ({"mode": "folds", "unlabeled": np.ones((30, 8))}, "^unlabeled: expected none in mode 'folds'"),
        ({"mode": "folds", "stability": "double-deletion"}, "^stability: expected none in mode 'folds'"),
        ({"representation": None}, r"^representation: expected 'frozen' .* or 'trained' .*, got None"),
        ({"mode": "folds", "folds": 1}, "^folds: expected an integer >= 2"),
        ({"metric": "manhattan"}, "^metric: expected one of"),
        ({"k": 0}, "^k: expected an integer >= 1, got 0"),
        ({"k": 2.5}, "^k: expected an integer, got 2.5"),
        ({"delta": 0.0}, "^delta: expected a finite number > 0"),
        ({"mode": "loo", "slack": "kl"}, "^slack: expected one of 'rogers-wagner'"),
        ({"mode": "loo", "metric": "whitened"}, "^metric: expected one of 'cosine', 'euclidean', got 'whitened'"),
        ({"X": np.zeros((600, 8, 2))}, r"^X: expected shape \(n, d\), got \(600, 8, 2\)"),
        ({"X": np.zeros((0, 8))}, "^X: expected at least one element"),
        ({"X": sparse.csr_matrix((600, 8))}, "^X: expected an array of numbers, got dtype object"),
        ({"X": np.full((600, 8), "a")}, "^X: expected an array of numbers, got dtype <U1"),
        ({"y": np.linspace(0, 1, 600)}, "^y: expected class labels, got numbers with fractions, 0.0016"),
        ({"y": [None, "a"] * 300}, "^y: expected labels of one kind and none missing, got None"),
        ({"y": np.array([1, "a"] * 300, dtype=object)}, "^y: expected labels of one kind .*, got kinds int, str"),
        ({"y": np.full(600, np.nan)}, "^y: expected labels, got nan"),
        ({"head": LinearRegression()}, "^head: expected an unfitted scikit-learn classifier, got LinearRegression"),
        ({"device": "cuda:77"}, "^device: expected a torch device of this machine, got 'cuda:77'"),
        ({"device": "gpu"}, "^device: expected a torch device of this machine, got 'gpu'"),
    ],
)
@pytest.mark.bad_input
def test_one_clear_error(gaussians, change, message):
    X, y, _ = gaussians
    arguments = {"X": X, "y": y, "head": HEAD, "k": 5, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        of_frozen(arguments.pop("X"), arguments.pop("y"), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool_predictions": (np.zeros(9, int),)}, "^pool_predictions: expected those of the full network .*, got 1"),
        ({"pool_predictions": (np.zeros(9, int), np.zeros(8, int))}, "^pool_predictions: expected two arrays"),
        (
            {"block_predictions": np.full(200, "a")},
            "^block_predictions: expected numbers as in memory_labels, got text",
        ),
        ({"block_predictions": np.zeros(3, int)}, "^block_predictions: expected 200 entries, got 3"),
        ({"block_features": np.ones((200, 5))}, "^block_features: expected 8 columns as in memory_features, got 5"),
        ({"memory_features": np.full((400, 8), np.inf)}, "^memory_features: expected finite numbers, got inf"),
        ({"k": 401}, r"^k: expected at most 400 \(the points that may answer\), got 401"),
        (
            {"pool_predictions": (np.zeros(9, int),) * 2, "deleted_predictions": np.zeros(200, int)},
            "^deleted_predictions: expected None beside pool_predictions, got both",
        ),
    ],
)
@pytest.mark.bad_input
def test_arrays_that_do_not_fit(gaussians, change, message):
    X, y, _ = gaussians
    arguments = {
        "memory_features": X[:400],
        "memory_labels": y[:400],
        "block_features": X[400:],
        "block_labels": y[400:],
        "block_predictions": y[400:],
        "k": 3,
        **change,
    }
    with pytest.raises((ValueError, TypeError), match=message):
        certify_arrays(**arguments)


def test_labels_in_any_script(gaussians):
    X, y, pool = gaussians
    names = np.array(["猫", "собака", "chien 🐶", ""])
    c = of_frozen(X, names[y], head=HEAD, unlabeled=pool, k=5)
    assert c.joint == of_frozen(X, y, head=HEAD, unlabeled=pool, k=5).joint
    assert {row["class"] for row in c.details["classes"]} == set(names)
    assert Certificate.from_json(c.to_json()).details["classes"] == c.details["classes"]


# torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))


def train_net(subset, seed):
    torch.manual_seed(seed)
    model, loader = Net(), DataLoader(subset, 64, shuffle=True, generator=torch.Generator().manual_seed(seed))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(4):
        for x, y in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return model


@pytest.fixture(scope="module")
def torch_data(gaussians):
    X, y, pool = gaussians
    return TensorDataset(torch.tensor(X).float(), torch.tensor(y)), TensorDataset(torch.tensor(pool).float())


def test_certify_a_torch_model(torch_data):
    data, pool = torch_data
    model = train_net(data, 0)
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    c = certify(
        model,
        DataLoader(data, 64, shuffle=True),
        unlabeled_loader=DataLoader(pool, 64),
        train_fn=train_net,
        k=5,
        check_train_fn=True,
    )
    assert c.rigorous and verify(c) == [] and c.bound < 0.75 and c.n_train == 480
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    again = certify(model, DataLoader(data, 32), unlabeled_loader=DataLoader(pool, 64), train_fn=train_net, k=5)
    assert again.bound == c.bound  # neither shuffling nor batch size matters


def test_frozen_torch_model_in_mode_loo(torch_data):
    data, pool = torch_data
    model = train_net(data, 0)
    with pytest.raises(ValueError, match="^train_fn: expected a function"):
        certify(model, DataLoader(data, 64))
    with pytest.raises(ValueError, match="^representation: expected 'frozen'"):
        certify(model, DataLoader(data, 64), mode="loo")
    c = certify(model, DataLoader(data, 64), unlabeled_loader=DataLoader(pool, 64), representation="frozen", k=3)
    assert c.mode == "loo" and verify(c) == []


def test_mode_loo_checks_that_the_features_stay(torch_data):
    data, pool = torch_data
    model = train_net(data, 0)

    def head_only(subset, seed):
        part = copy.deepcopy(model)
        part.head.load_state_dict(train_net(subset, seed).head.state_dict())
        return part

    arguments = {"unlabeled_loader": DataLoader(pool, 64), "representation": "frozen", "mode": "loo", "k": 3}
    c = certify(model, DataLoader(data, 64), train_fn=head_only, **arguments)
    assert "of the model without 20% of the points" in c.summary() and c.holdout_bound is not None and verify(c) == []
    with pytest.raises(ValueError, match="^representation: expected features that stay as they are"):
        certify(model, DataLoader(data, 64), train_fn=train_net, **arguments)


def test_interrupted_certificates_continue(torch_data, tmp_path):
    data, pool = torch_data
    model, trained = train_net(data, 0), []

    def counted(subset, seed):
        trained.append(len(subset))
        return train_net(subset, seed)

    def run(seed):
        return certify(
            model, DataLoader(data, 64), train_fn=counted, stability="double-deletion", k=5, seed=seed, work=tmp_path
        )

    first = run(0)
    assert trained == [480, 360]
    assert run(0).to_json() == first.to_json() and trained == [480, 360]
    run(1)
    assert trained == [480, 360, 480, 360]


class Texts(Dataset):
    """Sentences of numbers, as a mapping or as a pair."""

    def __init__(self, X, y, pairs=False):
        self.texts, self.y, self.pairs = [" ".join(f"{v:.4f}" for v in row) for row in X], y, pairs

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return (self.texts[i], int(self.y[i])) if self.pairs else {"text": self.texts[i], "labels": int(self.y[i])}


class OfTexts(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, text):
        return self.net(torch.tensor([[float(v) for v in t.split()] for t in text]))


def fit_texts(subset, seed):
    torch.manual_seed(seed)
    model = OfTexts(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)))
    items = [subset[i] for i in range(len(subset))]
    texts, y = ([item[k] for item in items] for k in (("text", "labels") if isinstance(items[0], dict) else (0, 1)))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(texts), torch.tensor(y)).backward()
        optimiser.step()
    return model


@pytest.mark.parametrize("pairs", [False, True])
def test_batches_of_raw_texts(gaussians, tmp_path, pairs):
    """Texts are told apart: in a work folder, between pool and training data, and on a second reading."""
    X, y, pool = gaussians
    data, unlabeled = Texts(X, y, pairs), Texts(pool, np.zeros(len(pool), int), pairs)
    model = fit_texts(data, 0)

    def run(pool, **more):
        loaders = (DataLoader(d, 64) for d in (data, pool))
        first, second = loaders
        return certify(model, first, unlabeled_loader=second, train_fn=fit_texts, k=5, **more)

    plain = run(unlabeled)
    assert plain.rigorous and plain.bound < 0.5
    assert run(unlabeled, work=tmp_path).to_json() == plain.to_json() == run(unlabeled, work=tmp_path).to_json()
    with pytest.warns(UserWarning, match="shares 600 points"):
        assert not run(data).rigorous


def test_batches_that_cannot_be_told_apart():
    data = [{"x": i, "labels": 0} for i in range(8)]
    loader = DataLoader(data, 4, collate_fn=lambda rows: {"x": object(), "labels": [0] * len(rows)})
    with pytest.raises(ValueError, match="^loader: expected batches of tensors, arrays or lists .* got object"):
        extract_features(Net(), loader)


def test_work_of_other_data_or_another_function_is_not_used(torch_data, tmp_path):
    data, _ = torch_data
    model, trained = train_net(data, 0), []

    def counted(subset, seed):
        trained.append(len(subset))
        return train_net(subset, seed)

    def another(subset, seed):
        trained.append(len(subset))
        return train_net(subset, seed + 1)

    def run(given, train_fn=counted):
        return certify(model, DataLoader(given, 64), train_fn=train_fn, k=5, work=tmp_path)

    x, y = data.tensors
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    others = [TensorDataset(x, y.flip(0)), TensorDataset(x[order], y[order]), TensorDataset(x + 1, y)]
    run(data)
    for i, other in enumerate(others):
        got = run(other)
        assert trained == [480] * (i + 2)
        assert got.to_json() == certify(model, DataLoader(other, 64), train_fn=train_net, k=5).to_json()
    run(data)
    assert len(trained) == 4
    run(data, another)
    assert len(trained) == 5


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            torch.tensor([0, 1, 9, 2]),
            r"^labels: expected numbers 0 to 3 of the model's outputs, or one-hot rows, got \[0, 9\]",
        ),
        (torch.tensor([-1, 0, 1, 2]), r"^labels: expected numbers 0 to 3 .* got \[-1, 2\]"),
        (torch.zeros(4, 3), r"^labels: expected numbers 0 to 3 .* got shape \(480, 3\)"),
    ],
)
def test_labels_that_are_no_outputs(torch_data, labels, message):
    x = torch_data[0].tensors[0]
    data = TensorDataset(x, labels.repeat_interleave(150, dim=0))
    with pytest.raises(ValueError, match=message):
        certify(Net(), DataLoader(data, 64), train_fn=lambda subset, seed: Net(), k=5)


def test_outputs_without_a_label_keep_their_number(torch_data):
    """Labels 0 and 2 of four outputs: the decoder speaks of the same numbers as the network."""
    x, y = torch_data[0].tensors
    some = (y == 0) | (y == 2)
    data = TensorDataset(x[some], y[some])
    c = certify(train_net(data, 0), DataLoader(data, 64), representation="frozen", k=3)
    assert c.n_classes == 4 and c.disagreement.estimate < 0.5
    hot = TensorDataset(x[some], nn.functional.one_hot(y[some], 4))
    assert certify(train_net(data, 0), DataLoader(hot, 64), representation="frozen", k=3).geometry == c.geometry


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": HEAD},
            "^model: expected a torch module, got LogisticRegression; scikit-learn heads go to certify_feat",
        ),
        ({"train_loader": [1, 2]}, "^train_loader: expected a torch DataLoader, got list"),
        ({"unlabeled_loader": np.ones(3)}, "^unlabeled_loader: expected a torch DataLoader, got ndarray"),
        ({"train_fn": lambda subset, seed: None}, "^train_fn: expected it to return a torch module, got NoneType"),
        ({"device": "cuda:77"}, "^device: expected a torch device of this machine, got 'cuda:77'"),
        ({"k": -1}, "^k: expected an integer >= 1, got -1"),
        ({"slack": "rogers-wagner"}, "^slack: expected one of 'clopper-pearson'"),
        ({"stability": "unlabeled"}, "^unlabeled_loader: expected a loader for stability 'unlabeled', got None"),
        ({"feature_layer": "tail"}, "^layer: expected the name of a module"),
    ],
)
@pytest.mark.bad_input
def test_models_that_cannot_be_certified(torch_data, change, message):
    """Every one before a training starts, the returned model apart."""
    arguments = {
        "model": Net(),
        "train_loader": DataLoader(torch_data[0], 64),
        "train_fn": lambda s, seed: Net(),
        **change,
    }
    with pytest.raises((ValueError, TypeError), match=message):
        certify(arguments.pop("model"), arguments.pop("train_loader"), **arguments)


class TwoInputs(Net):
    def forward(self, x, gate):
        return super().forward(x * gate)


def test_batches_of_several_inputs(torch_data):
    x, y = torch_data[0].tensors
    model = TwoInputs()
    got = extract_features(model, DataLoader(TensorDataset(x, torch.ones(600, 1), y), 50))
    assert (got.labels == y.numpy()).all() and got.features.shape == (600, 32)


class PerToken(nn.Module):
    """Its head runs on every position; the logits are those of the last one, or their mean."""

    def __init__(self, pooled):
        super().__init__()
        self.embed, self.head, self.pooled = nn.Linear(4, 16), nn.Linear(16, 3), pooled

    def forward(self, x):
        every = self.head(self.embed(x.view(len(x), 2, 4)))
        return every.mean(1) if self.pooled else every[:, -1]


def test_heads_on_every_token(torch_data):
    x = torch_data[0].tensors[0]
    model = PerToken(pooled=False)
    got = extract_features(model, DataLoader(TensorDataset(x), 50))
    with torch.no_grad():
        np.testing.assert_allclose(got.features, model.embed(x[:, 4:]).numpy(), atol=1e-6)
    with pytest.raises(ValueError, match=r"^layer: expected 'auto' to see one vector a point, got shape \(50, 2, 16\)"):
        extract_features(PerToken(pooled=True), DataLoader(TensorDataset(x), 50))


def test_outputs_that_are_no_logits(torch_data):
    x = torch_data[0].tensors[0]
    with pytest.raises(ValueError, match=r"^model: expected logits of shape \(batch, classes >= 2\), got \(50, 1\)"):
        extract_features(nn.Linear(8, 1), DataLoader(TensorDataset(x), 50))


def test_train_fn_that_ignores_its_subset_or_seed(torch_data):
    data, pool = torch_data
    model = train_net(data, 0)
    with pytest.warns(UserWarning, match="does train_fn use its subset"):
        certify(model, DataLoader(data, 64), train_fn=lambda subset, seed: model, k=5)
    calls = []

    def unseeded(subset, seed):
        calls.append(1)
        return train_net(subset, len(calls))

    with pytest.raises(ValueError, match="^train_fn: expected the same model"):
        certify(model, DataLoader(data, 64), train_fn=unseeded, k=5, check_train_fn=True)


def test_extraction(torch_data, tmp_path):
    data, _ = torch_data
    model = train_net(data, 0).train()
    got = extract_features(model, DataLoader(data, 50, shuffle=True), shards=tmp_path)
    assert model.training and got.features.shape == (600, 32) and got.n_outputs == 4
    assert (got.labels == data.tensors[1].numpy()).all()
    with torch.no_grad():
        model.eval()
        np.testing.assert_allclose(got.features, model.body(data.tensors[0]).numpy(), atol=1e-6)
    shards = sorted(tmp_path.rglob("*.npz"))
    shards[3].unlink()  # an interrupted pass: one shard is made again, the others are read
    np.savez(shards[0], features=np.zeros((50, 32), np.float32), logits=np.ones((50, 4), np.float32))
    again = extract_features(model, DataLoader(data, 50), shards=tmp_path).features
    assert (again[50:] == got.features[50:]).all() and not again[:50].any()
    other = extract_features(train_net(data, 1), DataLoader(data, 50), shards=tmp_path)  # another model: other shards
    assert not (other.features == got.features).all() and other.features[:50].any()
    as_dict = DataLoader(
        data,
        50,
        collate_fn=lambda rows: {"x": torch.stack([r[0] for r in rows]), "labels": torch.stack([r[1] for r in rows])},
    )
    assert (extract_features(model, as_dict).features == got.features).all()


def test_batches_of_any_mapping_and_empty_loaders(torch_data):
    data, _ = torch_data
    model = train_net(data, 0)
    mapped = DataLoader(
        data,
        50,
        collate_fn=lambda rows: UserDict(x=torch.stack([r[0] for r in rows]), labels=torch.stack([r[1] for r in rows])),
    )
    assert (extract_features(model, mapped).features == extract_features(model, DataLoader(data, 50)).features).all()
    nothing = TensorDataset(torch.empty(0, 8))
    with pytest.raises(ValueError, match="^loader: expected at least one point, got an empty data set"):
        certify(model, DataLoader(data, 64), unlabeled_loader=DataLoader(nothing, 5), train_fn=train_net, k=5)


def test_broken_networks_are_named(torch_data):
    data, _ = torch_data
    model = train_net(data, 0)
    with torch.no_grad():
        model.body[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="^features: expected finite numbers"):
        extract_features(model, DataLoader(data, 50))
    with pytest.raises(ValueError, match=r"^layer: expected a model with an nn.Linear"):
        extract_features(nn.ReLU(), DataLoader(data, 50))


def test_random_augmentation_and_streams_are_refused(torch_data):
    class Noisy(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return torch.randn(8), 0

    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(8), 0

    with pytest.raises(ValueError, match="^loader: expected the same inputs on a second reading"):
        extract_features(Net(), DataLoader(Noisy(), 5))
    with pytest.raises(TypeError, match="^loader: expected a data set with length and index"):
        extract_features(Net(), DataLoader(Stream(), 5))
    with pytest.raises(ValueError, match="^layer: expected the name of a module"):
        extract_features(Net(), DataLoader(torch_data[0], 5), layer="nope")

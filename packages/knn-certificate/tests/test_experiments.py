"""Ablation, weight noise, diagnostics, effects, other bounds, the command line: small and with known answers."""

import functools
import warnings

import numpy as np
import pytest
import torch

from neurips26.knn_certificate import (
    Certificate,
    ablation,
    baselines,
    claims,
    cli,
    datasets,
    diagnostics,
    effects,
    experiments,
)
from neurips26.knn_certificate.blocked import certify_arrays
from neurips26.knn_certificate.networks import MLP, AdamW, build, features_of, predict, train
from neurips26.knn_certificate.weight_noise import CURVES, perturbed, weight_noise
from neurips26.shared.context import Context


def test_partners_are_mutual_and_foreign_or_alike():
    y = np.repeat(np.arange(5), [20, 22, 18, 20, 20])
    foreign = ablation.partners(y, 0, same_class=False)
    assert (y[foreign] != y).all() and (foreign[foreign] == np.arange(100)).all()
    alike = ablation.partners(y, 0, same_class=True)
    assert (y[alike] == y).all() and (alike != np.arange(100)).all() and (alike[alike] == np.arange(100)).all()
    with pytest.raises(ValueError, match="^y: expected no class with more than half"):
        ablation.partners(np.array([0, 0, 0, 1]), 0, same_class=False)


def test_randomised_labels():
    y = np.repeat(np.arange(10), 100)
    assert (ablation.randomise_labels(y, 0.0, 1) == y).all()
    assert (ablation.randomise_labels(y, 1.0, 1) != y).mean() == pytest.approx(0.9, abs=0.03)
    assert (ablation.randomise_labels(y, 0.5, 1) != y).mean() == pytest.approx(0.45, abs=0.04)


def test_rainbow_groups_hold_one_point_of_every_class():
    y = np.repeat(np.arange(4), 6)
    groups = ablation.rainbow_groups(y, 0)
    assert all(sorted(y[groups == g]) == [0, 1, 2, 3] for g in range(6))


def test_contrastive_losses_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # Partner equal to the anchor: candidates are [itself-as-partner 1, the other's partner 0, the other 0].
    expected = -np.log(np.exp(10) / (np.exp(10) + 2))
    assert float(ablation.info_nce(z, z)) == pytest.approx(expected, abs=1e-6)
    pair = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    got = float(ablation.group_loss(pair, torch.tensor([0, 0, 1])))
    assert got == pytest.approx(-np.log(np.exp(10) / (np.exp(10) + 1)), abs=1e-6)


@pytest.mark.slow
def test_random_labels_are_memorised_and_not_certified():
    d = datasets.digits()
    got = ablation.ablate_geometry(
        d.X[:200], d.y[:200], d.X[1000:1200], d.y[1000:1200], "labels", steps=300, hidden=256, batch=160, seed=1
    )
    assert got.train_accuracy >= 0.99 and got.test_error > 0.8 and got.bound > 0.85


def test_training_repeats_itself():
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    a, b = (train(build(lambda: MLP(4, 3, 8), 5), x, y, steps=20, seed=2) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    assert features_of(a, x).shape == (60, 8)


@pytest.mark.slow
def test_optimiser_is_torch_s():
    x, y = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3
    ours, theirs = (build(lambda: MLP(4, 3, 8), 1) for _ in range(2))
    step, peer = AdamW(list(ours.parameters()), 0.1), torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(6):
        step.step(torch.nn.functional.cross_entropy(ours(x), y), 1e-2)
        peer.zero_grad()
        torch.nn.functional.cross_entropy(theirs(x), y).backward()
        peer.step()
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_weight_noise_at_zero_changes_nothing():
    d = datasets.digits()
    x, y = torch.from_numpy(d.X[:300]).float(), torch.from_numpy(d.y[:300])
    model = train(build(lambda: MLP(64, 10, 32), 0), x, y, steps=150, seed=0)
    rows = weight_noise(model, d.X[:300], d.y[:300], d.X[300:500], d.y[300:500], [0.0, 1.0], draws=2)
    clean = {r["curve"]: r["accuracy"] for r in rows if r["scale"] == 0.0}
    assert set(clean) == set(CURVES)
    own = float((predict(model, torch.from_numpy(d.X[300:500]).float()) == d.y[300:500]).mean())
    assert clean["readout"] == clean["readout, all weights noisy"] == pytest.approx(own)
    assert clean["k-NN re-embedded"] == clean["k-NN clean memory"]
    noisy = perturbed(model, 1.0, 3)
    assert not torch.equal(noisy.head.weight, model.head.weight)


@pytest.mark.parametrize("kind", ["std", "rms", "filter"])
def test_size_of_the_noise(kind):
    model = torch.nn.Linear(400, 300)
    with torch.no_grad():
        model.weight.copy_(1.0 + torch.arange(300.0)[:, None] / 100 + torch.randn(300, 400))
    added = (perturbed(model, 0.5, 1, kind=kind).weight - model.weight).detach()
    w = model.weight.detach()
    wanted = {"std": w.std(), "rms": w.pow(2).mean().sqrt(), "filter": w.pow(2).mean(dim=1).sqrt()}[kind]
    torch.testing.assert_close(added.std(dim=1), 0.5 * wanted.expand(300), rtol=0.2, atol=0.0)
    with pytest.raises(ValueError, match="^kind: expected one of 'std', 'rms', 'filter', got 'layer'"):
        perturbed(model, 0.5, 1, kind="layer")


def test_collapse_dimension_hubs():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    points = np.eye(3)[y]
    assert diagnostics.neural_collapse(points, y) == pytest.approx(0.0, abs=1e-9)
    loose = diagnostics.neural_collapse(points + 0.3 * rng.normal(size=(300, 3)), y)
    assert loose > diagnostics.neural_collapse(points + 0.1 * rng.normal(size=(300, 3)), y) > 0
    plane = np.pad(rng.random((2_000, 2)), ((0, 0), (0, 6)))
    assert diagnostics.intrinsic_dimension(plane) == pytest.approx(2.0, abs=0.2)
    assert diagnostics.hubness(rng.normal(size=(500, 100)), metric="euclidean") > diagnostics.hubness(
        rng.normal(size=(500, 2)), metric="euclidean"
    )


def test_exchangeability():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(300, 5)), rng.normal(size=(200, 5))
    same = diagnostics.exchangeability(a, b, rng.integers(0, 3, 300), rng.integers(0, 3, 200))
    assert not same.doubtful and same.auc == pytest.approx(0.5, abs=0.12) and not same.sorted_labels
    moved = diagnostics.exchangeability(a, b + 1.0, np.sort(rng.integers(0, 3, 300)))
    assert moved.doubtful and moved.auc > 0.8 and moved.sorted_labels
    assert diagnostics.exchangeability(a, a[:50]).shared == 50


def test_neighbours_of_a_point_and_monitor():
    memory, labels = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), np.array(["a", "a", "b"])
    assert [label for _, label in diagnostics.why(memory, labels, [1.0, 0.05], k=2)] == ["a", "a"]
    monitor = diagnostics.GeometryMonitor(k=1)
    block = np.repeat(memory, 50, axis=0)
    codes = np.repeat([0, 0, 1], 50)
    row = monitor(memory, np.array([0, 0, 1]), block, codes, codes)
    assert row["joint"] == 0.0 and len(monitor.rows) == 1


def test_other_bounds():
    d = datasets.digits()
    x, y = torch.from_numpy(d.X[:200]).float(), torch.from_numpy(d.y[:200])
    start = build(lambda: MLP(64, 10, 32), 0)
    model = train(build(lambda: MLP(64, 10, 32), 0), x, y, steps=60, seed=0)
    assert baselines.spectral_bound(model, x, y) > 1.0
    bound = baselines.pac_bayes_bound(model, start, x, y, draws=2)
    assert 0.3 < bound <= 1.0
    assert baselines._invert(0.1, 0.0) == pytest.approx(0.1, abs=1e-6)


def cell(value, seed=0, method="m", **factors):
    return {"factors": factors, "seed": seed, "method": method, "value": value}


def test_effects():
    rows = [cell(-0.1 if s < 3 else 0.05, s, "bound - risk", protocol="a") for s in range(100)]
    rows += [cell(0.05, s, "bound - risk", protocol="b") for s in range(100)]
    assert effects.worst_violation_rate(rows, 0.95)[0] == pytest.approx(0.03)
    sweep = []
    for s in range(5):
        for i, name in enumerate("abcd"):
            sweep += [cell(i / 10, s, "held-out decoder", condition=name), cell(i / 5, s, "test error", condition=name)]
    assert effects.held_out_rank_correlation(sweep, 0.95)[0] == pytest.approx(1.0)
    for c in sweep:
        c["factors"]["train_accuracy"] = 0.5 if c["factors"]["condition"] == "d" else 1.0
        if c["factors"]["condition"] == "d":
            c["value"] = -1.0
    assert effects.held_out_rank_correlation(sweep, 0.95)[0] == pytest.approx(1.0)  # not memorised: left out
    shifts = [cell(0.5, s, "target shift", intervention="x") for s in range(6)]
    shifts += [cell(0.1 + 0.01 * s, s, "target shift", intervention="y") for s in range(6)]
    assert effects.smallest_shift(shifts, 0.95)[0] == pytest.approx(0.125)


def test_claims_of_the_ablation(tmp_path, monkeypatch):
    """All of them from seven short trainings of small networks: what is compared with what, notes and pictures."""
    real = experiments.ablation.__wrapped__
    monkeypatch.setattr(experiments, "ablation", functools.cache(lambda *a: real(*a[:3], 60, 24, 12)))

    def context(tier, name):
        return Context("knn-certificate", tier, name, tmp_path / name)

    hurt = claims.cross_pairs_hurt(context("cpu", "cross-pairs-hurt"))
    by = {(c["factors"]["condition"], c["seed"]): c["value"] for c in hurt.cells if c["method"] == "test error"}
    assert hurt.ours.values == pytest.approx([by["cross-pairs", s] for s in hurt.seeds], rel=1e-6)
    assert hurt.baselines["plain training"].values == pytest.approx([by["clean", s] for s in hurt.seeds], rel=1e-6)
    tracks = claims.geometry_tracks_generalization(context("cpu", "tracks"))
    assert len(tracks.cells) == 10 * 7 * 4 and all(f.stat().st_size > 5_000 for f in tracks.figures)
    strengths = claims.tune_rainbow(context("tune", "rainbow"))
    assert len(strengths.cells) == 3 * 2 * 3 and strengths.chosen["rainbow"]["strength"] in (3.0, 5.0, 10.0)
    assert len(claims.tune_random_labels(context("tune", "random-labels")).cells) == (4 + 2) * 2 * 3


def test_pictures(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = rng.normal(size=(200, 2)) + 3 * y[:, None]
    c = certify_arrays(x[:100], y[:100], x[100:], y[100:], y[100:], k=3)
    c.plot(tmp_path / "c.png", test_error=0.02)
    assert (tmp_path / "c.png").stat().st_size > 5_000


def test_command_line(tmp_path, capsys):
    d = datasets.digits()
    np.savez(tmp_path / "train.npz", X=d.X[:900], y=d.y[:900])
    np.savez(tmp_path / "pool.npz", X=d.X[900:])
    out = tmp_path / "c.json"
    arguments = [
        "certify",
        str(tmp_path / "train.npz"),
        "--unlabeled",
        str(tmp_path / "pool.npz"),
        "--frozen",
        "--out",
        str(out),
    ]
    assert cli.main(arguments) == 0
    assert "plain hold-out on the same points" in capsys.readouterr().out
    assert cli.main(["verify", str(out)]) == 0
    c = Certificate.from_json(out.read_text())
    assert not c.vacuous and c.rigorous
    assert cli.main(["report", str(out), str(tmp_path / "c.html"), "--test-error", "0.03"]) == 0
    page = (tmp_path / "c.html").read_text("utf-8")
    assert f"test error at most {c.bound:.4f}" in page and "agree with the events" in page
    assert "no training saw the unlabelled pool" in page and page.count("<tr>") == 1 + 4 + 1 + 10
    assert 'src="data:image/png;base64,' in page and "http" not in page
    out.write_text(out.read_text().replace('"bound": 0.', '"bound": 0.0', 1))
    assert cli.main(["verify", str(out)]) == 1
    assert cli.main(["report", str(out), str(tmp_path / "c.html")]) == 0
    assert "does NOT agree with its events: bound: expected" in (tmp_path / "c.html").read_text("utf-8")
    with pytest.raises(ValueError, match="expected a JSON certificate, got a file that is no text"):
        cli.main(["report", str(tmp_path / "train.npz"), str(tmp_path / "c.html")])
    assert cli.main(["noise", "--n", "300", "--draws", "1"]) == 0
    assert "k-NN re-embedded" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main(["ablate", "none", "--n", "120"]) == 0
    assert capsys.readouterr().out.endswith("note: only 24 certification points: slack dominates\n")
    with pytest.raises(ValueError, match=r"^pool.npz: expected arrays X, y, got X"):
        cli.main(["certify", str(tmp_path / "pool.npz")])
    with pytest.raises(ValueError, match="^representation: expected 'frozen'"):
        cli.main(["certify", str(tmp_path / "train.npz"), "--mode", "loo"])

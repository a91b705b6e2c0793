from dataclasses import replace

import numpy as np
import pytest

from neurips26 import tempo
from neurips26.shared.context import Context
from neurips26.shared.record import NotTestable
from neurips26.tempo import checkpoint, claims, footprint, pictures, pretrain, shifts
from neurips26.tempo.claims import cells, tuning

GAINS = (
    claims.gain_under_shift,
    claims.gain_under_moderate_shift,
    claims.gain_is_adaptation,
    claims.stabilises_severe_shift,
    claims.hard_first,
    claims.near_failure_gain,
    claims.gain_under_mild_shift,
    claims.gain_with_informed_critic,
    claims.several_architectures,
    claims.critic_ranks_actors,
)


@pytest.mark.parametrize("fn", GAINS)
def test_a_failed_gate_withholds_every_gain_and_is_the_reason(fn, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "failed_gates", lambda name="": "go1-joystick fails K1 (falls 25.0 %)")
    monkeypatch.setattr(cells, "rollout", lambda *a, **k: pytest.fail("adaptation was run"))
    with pytest.raises(NotTestable, match=r"K1 \(falls 25.0 %\)"):
        fn(Context("tempo", "cpu", fn.claim.id, tmp_path))
    assert fn.claim.needs == ()


def test_the_shipped_card_says_which_gates_failed():
    why, meta = cells.failed_gates(), tempo.load("go1-joystick").meta
    assert (why == "") == (meta.status == cells.PASSED) == all(meta.card["gates"]["passed"].values())
    for name, ok in meta.card["gates"]["passed"].items():
        assert (f"{name} (" in why) == (not ok)
    assert "comes with the package" in cells.failed_gates("go1-joystick-transformer")


def fake_table():
    rng = np.random.default_rng(0)
    row = lambda: {"returns": rng.uniform(10, 20, 4), "gap": 0.1, "curve": rng.random(60), "spread": rng.random(60), "pairs": rng.random((30, 2))}  # noqa: E731, E501 # fmt: skip
    return {(n, m): row() for n in ("nominal", *shifts.SHIFTS) for m in ("none", "naive", "tempo", "zero")}


def test_pictures_are_drawn(tmp_path):
    table, methods = fake_table(), ("none", "naive", "tempo", "zero")
    made = [
        pictures.gains({1: table, 3: table}, methods, tmp_path / "a.png"),
        pictures.curves(table, tmp_path / "b.png", 25, 500),
        pictures.overestimation(table, tmp_path / "c.png"),
        pictures.latencies([{k: np.geomspace(0.2, 2, 199) for k in ("with", "without")}], tmp_path / "d.png"),
        pictures.settings(
            {0.0: [(0.1, 0.2), (-1.0, 2.0)], 0.1: [(0.3, 0.1), (-2.0, 3.0)]}, (1e-5, 1e-3), tmp_path / "e.png"
        ),
        pictures.replayed({"tempo": np.full(30, 1 / 30)}, cells.VALUES, tmp_path / "f.png"),
    ]
    assert all(p.stat().st_size > 5000 for p in made)


@pytest.mark.parametrize("robot", ["go1", "g1"])
def test_a_skeleton_needs_no_opengl(robot):
    world = tempo.Runtime(robot, [0], shift=shifts.RoughTerrain(0.05))
    world.reset()
    picture = np.asarray(pictures.skeleton(world, label="frozen"))
    assert picture.shape == (180, 240, 3) and 0.02 < (picture < 128).any(-1).mean() < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["gif", "png"])
def test_frozen_and_adapted_side_by_side(suffix, tmp_path):
    from PIL import Image

    policy = checkpoint.untrained("go2", width=8)
    path = pictures.animation(policy, shifts.Payload(2.0), tmp_path / f"film.{suffix}", ticks=40, every=10, episodes=2)
    film = Image.open(path)
    assert film.size == (480, 180) and film.n_frames >= 2


@pytest.mark.slow
def test_distillation_imitates_the_actor(ckpt):
    student, error = pretrain.distil(
        ckpt.actor, ckpt.mean, ckpt.std, "simba", "go1", width=16, rounds=2, robots=2, ticks=60, updates=150, batch=64
    )
    assert set(student) == {"embed", "blocks", "norm", "out"} and error < 0.35


def test_every_tuned_method_tries_as_many_settings_and_the_package_holds_what_was_chosen():
    assert {len(grid) for grid in tuning.GRIDS.values()} == {20}
    for method, grid in tuning.GRIDS.items():
        assert cells.chosen(method) in grid
    assert cells.chosen("tempo, informed") in tuning.JOINT and cells.chosen("none") == {}


def test_what_is_replayed_follows_the_priorities():
    """One robot with the values 0 (hard) and 1 (easy): (1 + .02) against .02, to the power of alpha."""
    zeros, on = np.zeros((1, 101, 1), np.float32), np.ones((1, 101, 1), bool)
    flags = np.zeros((1, 1), bool)
    scores = np.full((1, 4), np.nan)
    scores[0, :2] = 0.0, 1.0
    run = tempo.Rollout(zeros, zeros, zeros, on, flags, flags, zeros, *(np.zeros(1) for _ in range(3)), scores)
    run = replace(run, **{k: getattr(run, k)[:, :100] for k in ("reward", "tracking", "angular", "alive", "q")})
    hard = np.searchsorted(cells.VALUES, 0.0, side="right") - 1
    for alpha, share in (
        (0.0, 0.5),
        (0.6, 1.02**0.6 / (1.02**0.6 + 0.02**0.6)),
        (-0.6, 0.02**0.6 / (1.02**0.6 + 0.02**0.6)),
    ):
        found = cells.measured(run, alpha)["replayed"]
        assert found[hard] == pytest.approx(share, abs=1e-3) and found.sum() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
def test_memory_is_measured_in_the_process_itself():
    rows = {m: footprint.footprint("go1-joystick", m, 40, 0) for m in ("frozen", "tempo")}
    assert 0.5 < rows["tempo"]["arrays"] - rows["frozen"]["arrays"] < 4
    for row in rows.values():
        assert row["resident"] > 50 and abs(row["growth"]) < 4

import numpy as np
import pytest

from neurips26 import tempo
from neurips26.shared.context import Context
from neurips26.shared.record import NotTestable
from neurips26.tempo import checkpoint, claims, pictures, pretrain, shifts

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
    monkeypatch.setattr(claims, "failed_gates", lambda name="": "go1-joystick fails K1 (falls 25.0 %)")
    monkeypatch.setattr(claims, "rollout", lambda *a, **k: pytest.fail("adaptation was run"))
    with pytest.raises(NotTestable, match=r"K1 \(falls 25.0 %\)"):
        fn(Context("tempo", "cpu", fn.claim.id, tmp_path))
    assert fn.claim.needs == ()


def test_the_shipped_card_says_which_gates_failed():
    why, meta = claims.failed_gates(), tempo.load("go1-joystick").meta
    assert (why == "") == (meta.status == claims.PASSED) == all(meta.card["gates"]["passed"].values())
    for name, ok in meta.card["gates"]["passed"].items():
        assert (f"{name} (" in why) == (not ok)
    assert "comes with the package" in claims.failed_gates("go1-joystick-transformer")


def fake_table():
    rng = np.random.default_rng(0)
    row = lambda: {"returns": rng.uniform(10, 20, 4), "gap": 0.1, "curve": rng.random(60), "spread": rng.random(60), "pairs": rng.random((30, 2))}  # noqa: E731, E501 # fmt: skip
    return {(n, m): row() for n in ("nominal", *shifts.SHIFTS) for m in ("none", "naive", "tempo", "zero")}


def test_pictures_are_drawn(tmp_path):
    table, methods = fake_table(), ("none", "naive", "tempo", "zero")
    made = [
        pictures.gains(table, methods, tmp_path / "a.png"),
        pictures.curves(table, tmp_path / "b.png", 25, 500),
        pictures.overestimation(table, tmp_path / "c.png"),
        pictures.latencies([{k: np.geomspace(0.2, 2, 199) for k in ("with", "without")}], tmp_path / "d.png"),
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

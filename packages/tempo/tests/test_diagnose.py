import jax
import numpy as np
import pytest

from neurips26.tempo import critic, diagnose, pictures
from neurips26.tempo.claims import cells
from neurips26.tempo.diagnose import changed_actors


@pytest.mark.slow
def test_changed_actors_are_what_their_names_say(ckpt):
    obs = np.random.default_rng(0).normal(size=(300, 48)).astype(np.float32)
    actors = changed_actors(ckpt, obs)
    assert len(actors) == 14 and next(iter(actors)) == "frozen"
    assert (np.tanh(_raw(ckpt, actors["output x 0"], obs)) == 0).all(), "standing still"
    np.testing.assert_allclose(
        _raw(ckpt, actors["output x 1.2"], obs), 1.2 * _raw(ckpt, actors["frozen"], obs), rtol=1e-4, atol=1e-6
    )
    value = jax.jit(diagnose._value(ckpt))
    mean = {k: float(value(v, jax.numpy.asarray(obs)).mean()) for k, v in actors.items()}
    assert mean["up 1e-3"] > mean["up 1e-4"] > mean["frozen"] > mean["down 1e-3"]
    moved, control = (
        np.abs(np.asarray(actors[k][0]["w"]) - np.asarray(actors["frozen"][0]["w"]))
        for k in ("up 1e-3", "random as up 1e-3")
    )
    np.testing.assert_allclose(control, moved, atol=1e-6)
    assert mean["random as up 1e-3"] < mean["up 1e-3"]
    frozen, noisy = (actors[k][0]["w"] for k in ("frozen", "noise 0.1 (1)"))
    relative = np.sqrt(np.mean((np.asarray(noisy) - np.asarray(frozen)) ** 2) / np.mean(np.asarray(frozen) ** 2))
    assert relative == pytest.approx(0.1, rel=0.1)


def _raw(ckpt, theta, obs):
    from neurips26.tempo import networks

    return np.asarray(networks.get(ckpt.meta.arch).apply(theta, jax.numpy.asarray(obs)))


@pytest.mark.slow
def test_a_condition_is_measured_and_drawn(ckpt, tmp_path):
    row = diagnose.diagnose(ckpt, "payload", range(6), ticks=110, control=ckpt)
    assert row["control_rank"] == row["rank"] and row["control_bias"] == row["bias"], "the same critics"
    assert np.shape(row["value"]) == np.shape(row["returns"]) == (6, 14) and len(row["rank"]) == 6
    assert np.all(np.abs(row["rank"]) <= 1) and row["rise"] >= 0
    assert pictures.ranking({"payload": row}, tmp_path / "r.png").stat().st_size > 5000


def test_gains_are_relative_to_the_frozen_actor(ckpt):
    assert diagnose._gain(np.array([2.0, 3.0, 1.0]), 1) == pytest.approx(50.0)
    with pytest.raises(ValueError, match="multiple of 6"):
        diagnose.diagnose(ckpt, "nominal", range(7))


def test_cells_are_means_over_groups_of_robots(tmp_path):
    from neurips26.shared.context import Context

    ctx = Context("tempo", "cpu", "x", tmp_path)
    rows = cells.rows(ctx, np.arange(16.0), "tempo", shift="payload")
    assert [r["value"] for r in rows] == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5, 14.5]
    assert [r["seed"] for r in rows] == [20_300 + 2 * k for k in range(8)]


@pytest.mark.slow
def test_refitted_critics_learn_a_return_that_the_old_ones_did_not_know(ckpt):
    from neurips26.tempo import gates, shifts

    shift = shifts.Payload(40.0)
    new = critic.refit(ckpt, shift, rounds=1, robots=4, ticks=100, updates=300)
    assert new.meta.card["refitted"] == {
        "target": "mean", "rounds": 1, "robots": 4, "ticks": 100, "updates": 300, "seed": 0, "shift": shifts.describe(shift)
    }  # fmt: skip
    seen = gates.visits(ckpt, range(4), 110, shift=shift)
    before, after = (gates.calibration(c, seen, 20)["q_mean"] for c in (ckpt, new))
    assert 0 < after < 0.9 * before, "a robot that falls at once earns next to nothing"
    for a, b in zip(jax.tree.leaves(new.actor), jax.tree.leaves(ckpt.actor), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_target_of_the_twins_is_named():
    assert critic.CriticConfig(target="mean").target == "mean"
    with pytest.raises(ValueError, match="target"):
        critic.CriticConfig(target="max")

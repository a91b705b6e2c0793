from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from neurips26 import tempo
from neurips26.tempo import TestTimeAdapter, cli, critic, gates, ppo, shifts, storage
from neurips26.tempo.evaluate import rollout

SMALL = dict(batch_size=4, update_every=2, warmup=4, memory=tempo.ScoreMemory(16))


@pytest.mark.slow
def test_lockstep_robots_equal_single_adapters(ckpt):
    run = rollout(ckpt, "tempo", shifts.Nominal(), [5, 6], ticks=12, lr=1e-3, **SMALL)
    for i, seed in enumerate((5, 6)):
        env = tempo.JoystickEnv("go1", seed=seed, episode_length=12)
        adapter = TestTimeAdapter(ckpt, seed=seed, lr=1e-3, **SMALL)
        obs, _ = env.reset()
        rewards, values = [], []
        for _ in range(12):
            action, info = adapter.step(obs)
            obs, reward, *_ = env.step(action)
            rewards.append(reward)
            values.append(info["q"])
        np.testing.assert_allclose(run.q[0, :, i], values, atol=2e-4)
        np.testing.assert_allclose(run.reward[0, :, i], rewards, atol=1e-4)


@pytest.mark.slow
def test_blocks_of_robots_and_their_compaction_change_nothing(ckpt, monkeypatch):
    """Five robots in one block, and in blocks of two that are dealt anew as robots fall, over two episodes."""
    import sys

    module = sys.modules["neurips26.tempo.evaluate"]
    monkeypatch.setattr(module, "LANES", 8)
    settings = SMALL | {"lr": 1e-3, "ticks": 30, "episodes": 2}
    shift = shifts.Combined((shifts.RoughTerrain(0.3), shifts.Payload(40.0)))
    whole = rollout(ckpt, "tempo", shift, range(5), **settings)
    monkeypatch.setattr(module, "LANES", 2)
    parts = rollout(ckpt, "tempo", shift, range(5), **settings)
    assert whole.fallen[0].sum() > 0, "some fall, so that blocks are dealt anew"
    np.testing.assert_array_equal(parts.alive, whole.alive)
    np.testing.assert_allclose(parts.reward, whole.reward, atol=1e-3)
    np.testing.assert_allclose(parts.drift, whole.drift, rtol=1e-3)


@pytest.mark.slow
def test_robots_that_fall_are_rolled_back(ckpt):
    """The observation of the fall reaches the guard, although the robot's episode is over."""
    shift = shifts.Combined((shifts.RoughTerrain(0.3), shifts.Payload(40.0)))
    run = rollout(ckpt, "tempo", shift, range(4), ticks=60, lr=1e-2, restore_on_fall=True, **SMALL)
    assert run.fallen.any() and (run.rollbacks == run.fallen.sum(0)).all()
    assert (run.drift[run.fallen[0]] == 0).all() and (run.updates > 0).all()


def test_frozen_runs_repeat_and_realised_returns_are_discounted_sums(ckpt):
    a = rollout(ckpt, "none", shifts.Nominal(), [1, 2, 3], ticks=20)
    b = rollout(ckpt, "none", shifts.Nominal(), [1, 2, 3], ticks=20)
    np.testing.assert_array_equal(a.reward, b.reward)
    assert a.drift.max() == 0
    expected = sum(0.9**k * a.reward[0, 4 + k, 1] for k in range(5))
    assert a.realised(0.9, 5)[0, 4, 1] == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(a.returns(), a.reward.sum((0, 1)) * 50, rtol=1e-5)


def test_zero_action_stands_and_the_table_pairs_it(ckpt):
    table = tempo.evaluate(ckpt, ("nominal",), ("none", "zero"), range(3), ticks=60, episodes=1)
    rows = {r["method"]: r for r in table.rows}
    assert rows["zero"]["falls"] == 0 and rows["zero"]["return"] > 5 and rows["none"]["gain"] == 0
    text = str(table)
    assert "zero" in text and "95 % interval" in text
    assert np.isnan(rows["none"]["gap"]) and "+0.000" not in text, "100 ticks of return were not seen"
    with pytest.raises(ValueError, match="methods"):
        tempo.evaluate(ckpt, ("nominal",), ("best",), range(2))


def test_calibration_regresses_the_command_out(ckpt):
    """A critic that knows the command alone has no correlation left."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(130, 8, 48)).astype(np.float32)
    seen = {"obs": obs, "action": np.zeros((130, 8, 12), np.float32), "active": np.ones((130, 8), bool)}
    seen["reward"] = np.tile(np.abs(obs[:1, :, 45]) * 0.01, (130, 1))
    result = gates.calibration(ckpt, seen)
    assert set(result) >= {"pearson", "bias", "end_mass", "q_std"} and abs(result["pearson"]) < 0.3
    assert gates.greedy_gain(ckpt, obs[0]) >= 0


@pytest.mark.parametrize("kind", ["categorical", "gaussian", "scalar"])
def test_calibration_takes_every_kind_of_critic_and_sees_the_whole_return(make_checkpoint, kind):
    """A reward of 1 for ever is worth 1 / (1 - gamma); 100 ticks of it are 4.8 % less."""
    rng = np.random.default_rng(0)
    seen = {
        "obs": rng.normal(size=(210, 4, 48)).astype(np.float32),
        "action": np.zeros((210, 4, 12), np.float32),
        "reward": np.ones((210, 4)),
        "active": np.ones((210, 4), bool),
    }
    result = gates.calibration(make_checkpoint(kind=kind), seen)
    part, whole = (result["q_mean"] / (1 + result[k]) for k in ("bias", "bias_whole"))
    assert whole == pytest.approx(1 / 0.03, rel=1e-5) and part == pytest.approx(whole * (1 - 0.97**100), rel=1e-5)


def test_status_follows_the_gates():
    passed = dict.fromkeys(("K1", "K2", "K3", "K4"), True)
    k1 = {"tracking": 0.7, "margin_low": 6.0, "angular": 0.4, "margin": 7.0}
    assert gates.status_of({"K1": k1, "passed": passed}) == "walks; gates passed"
    assert gates.status_of({"K1": k1, "passed": passed | {"K2": False}}) == "walks; K2 failed"
    low = k1 | {"tracking": 0.27, "margin_low": 0.5, "margin": 1.0}
    assert gates.status_of({"K1": low, "passed": passed | {"K1": False}}).startswith("stands and turns")


def test_distilled_actors_are_judged_on_robots_of_their_own(ckpt):
    """How long to distil was decided after a look at the robots of the trained ones."""
    card = {"distilled": {"arch": "simba"}}
    judged = range(gates.first_robot(ckpt), gates.first_robot(ckpt) + gates.EPISODES)
    assert gates.first_robot(replace(ckpt, meta=replace(ckpt.meta, card=card))) not in judged


def test_step_sizes_follow_the_divergence():
    cfg = ppo.PPOConfig(desired_kl=0.02, lr_min=1e-5, lr_max=1e-3)
    lr = jnp.float32(1e-4)
    after = [float(ppo.adapted_lr(cfg, lr, jnp.float32(kl))) for kl in (0.05, 0.02, 0.005)]
    np.testing.assert_allclose(after, [1e-4 / 1.2, 1e-4, 1.2e-4], rtol=1e-6)
    assert float(ppo.adapted_lr(cfg, jnp.float32(1e-3), jnp.float32(0.0))) == pytest.approx(1e-3)


def test_reflection_is_its_own_inverse_and_generalised_advantages_are_sums():
    for order, sign in ppo.symmetry("Go1JoystickFlatTerrain").values():
        x = np.random.default_rng(0).normal(size=len(order))
        np.testing.assert_array_equal((x[order] * sign)[order] * sign, x)
    one = jnp.ones((3, 1))
    adv = ppo.gae(one, 0 * one, 0 * one, jnp.array([[0.0], [1.0], [0.0]]), 0.5, 0.5)
    np.testing.assert_allclose(adv[:, 0], [1.25, 1.0, 1.0])


@pytest.mark.slow
def test_ppo_resumes_exactly(tmp_path):
    pytest.importorskip("envpool")
    cfg = ppo.PPOConfig(num_envs=4, unroll=8, segment=2, total_steps=4 * 8 * 4, actor_hidden=(8,), value_hidden=(8,))
    ppo.train(cfg, tmp_path / "a", verbose=False)
    ppo.train(cfg, tmp_path / "b", max_segments=1, verbose=False)
    ppo.train(cfg, tmp_path / "b", verbose=False)
    with np.load(tmp_path / "a" / "checkpoint.npz") as a, np.load(tmp_path / "b" / "checkpoint.npz") as b:
        assert all(np.array_equal(a[k], b[k]) for k in a.files)
    rows = [(tmp_path / d / "metrics.jsonl").read_text().count("\n") for d in "ab"]
    assert rows[0] == rows[1] == 2
    with pytest.raises(ValueError, match="other settings of lr"):
        ppo.train(ppo.PPOConfig(**(vars(cfg) | {"lr": 0.1})), tmp_path / "a", verbose=False)


@pytest.mark.slow
def test_critic_fit_resumes_and_separates_falls(ckpt, tmp_path):
    cfg = critic.CriticConfig(robots=2, ticks=30, rounds=2, updates=10, batch=8, width=8)
    whole = critic.fit(ckpt.actor, "mlp", ckpt.mean, ckpt.std, cfg, tmp_path / "a", {})
    short = critic.CriticConfig(**(vars(cfg) | {"rounds": 1}))
    critic.fit(ckpt.actor, "mlp", ckpt.mean, ckpt.std, short, tmp_path / "b", {})
    again = critic.fit(ckpt.actor, "mlp", ckpt.mean, ckpt.std, cfg, tmp_path / "b", {})
    assert whole.digest() == again.digest()


def test_tree_files_name_what_is_wrong(tmp_path):
    storage.save_tree(tmp_path / "t.npz", {"a": np.ones(3)}, {"n": 1})
    tree, extra = storage.load_tree(tmp_path / "t.npz", {"a": np.zeros(3)})
    assert extra == {"n": 1} and np.array_equal(tree["a"], np.ones(3))
    with pytest.raises(ValueError, match="shape"):
        storage.load_tree(tmp_path / "t.npz", {"a": np.zeros(4)})
    with pytest.raises(ValueError, match="missing"):
        storage.load_tree(tmp_path / "t.npz", {"b": np.zeros(3)})


@pytest.mark.parametrize("robot", [*(pytest.param(r, marks=pytest.mark.slow) for r in ("go1", "go2")), "g1"])
def test_every_robot_walks_or_falls_and_adapts(robot):
    """Random weights where no checkpoint comes with the package: each robot runs, earns or falls, and its actor moves."""
    name = f"{robot}-joystick"
    policy = tempo.load(name) if name in tempo.available() else tempo.untrained(robot, width=8)
    run = rollout(policy, "tempo", shifts.of_severity(robot, "payload", 1), [0, 1], ticks=24, lr=1e-3, **SMALL)
    assert np.isfinite(run.reward).all() and run.alive[0, 0].all() and (run.drift > 0).all()
    assert run.alive.sum() == 48 or run.fallen.any()


def test_command_line(capsys):
    assert cli.main(["shifts"]) == 0 and "Slippery(friction=0.1)" in capsys.readouterr().out
    assert cli.main(["assets", "--robots", "go2"]) == 0 and "15.21 kg" in capsys.readouterr().out
    assert cli.main(["eval", "--shift", "payload", "--robots", "2", "--ticks", "20", "--methods", "none", "zero"]) == 0
    out = capsys.readouterr().out
    assert "nominal" in out and "payload" in out and "checkpoint:" in out
    assert cli.main(["eval", "--robot", "g1", "--robots", "1", "--ticks", "3", "--methods", "zero"]) == 0
    assert "random weights" in capsys.readouterr().out
    assert cli.main(["eval", "--checkpoint", "nowhere"]) == 2 and "go1-joystick" in capsys.readouterr().err


def test_one_robot_has_a_gain_but_no_interval(ckpt, capsys):
    seen = []
    table = tempo.evaluate(ckpt, ("nominal",), ("zero",), [0], ticks=20, episodes=1, on_row=seen.append)
    frozen, zero = table.rows
    assert seen == table.rows and zero["gain"] == pytest.approx(100 * (zero["return"] / frozen["return"] - 1), rel=1e-4)
    assert np.isnan(zero["gain_low"]) and "nan" not in str(table) and np.isnan(table.resolution())
    assert (
        cli.main(
            ["eval", "--shift", "nominal", "--robots", "1", "--ticks", "3", "--episodes", "1", "--methods", "zero"]
        )
        == 0
    )
    assert "One robot cannot tell" in capsys.readouterr().out
    assert (
        cli.main(
            ["eval", "--shift", "nominal", "--robots", "2", "--ticks", "3", "--episodes", "1", "--methods", "zero"]
        )
        == 0
    )
    assert "chance" not in capsys.readouterr().out, "nothing adapts in this table"


@pytest.mark.slow
def test_an_adapted_robot_goes_on_from_its_file(tmp_path, capsys):
    file = tmp_path / "state.npz"
    assert cli.main(f"adapt --ticks 60 --save {file}".split()) == 0
    assert cli.main(f"adapt --ticks 5 --restore {file}".split()) == 0
    assert f"goes on from {file}: drift 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("eval --robot go2 --checkpoint go1-joystick", "checkpoint: expected one of go2"),
        ("eval --robots 0", "robots"),
        ("eval --severity 9 --shift nominal", "severity"),
        ("eval --checkpoint nofile", "checkpoint: expected a file, or one of"),
        ("adapt --save /tmp", "save: expected a file, got the directory"),
        ("adapt --restore /nowhere/x.npz", "restore: expected a file that --save wrote"),
        ("adopt --record /nowhere", "record: expected a tune record"),
        ("eval --severity 4", "severity"),
        ("eval --shift wind", "shift: expected one of"),
        ("adapt --ticks 0", "ticks"),
        ("adapt --save /nowhere/x.npz", "save: expected a file in an existing directory"),
        ("adapt --gif film.mp4", "gif: expected a name ending in"),
        ("bench --ticks 1", "ticks"),
        ("diagnose --robots 7", "seeds: expected a multiple of 6"),
        ("diagnose --ticks 100", "ticks"),
        ("pretrain --env Go3Joystick", "env: expected one of"),
        ("pretrain --env Go2JoystickFlatTerrain", "backend: expected 'mujoco' for Go2"),
        ("pretrain --num-envs 0", "num_envs"),
        ("pretrain --steps 0", "steps"),
        ("pretrain --start /nowhere", "start: expected the ppo folder"),
    ],
)
def test_bad_command_lines_get_one_clear_line(line, message, capsys):
    assert cli.main(line.split()) == 2
    out, told = capsys.readouterr()
    assert message in told and told.count("\n") == 1 and "error" not in out

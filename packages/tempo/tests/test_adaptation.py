import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neurips26.tempo.adaptation import TTAConfig, make_tta, method_config
from neurips26.tempo.distributions import Categorical, Scalar, reduced
from neurips26.tempo.memory import ScoreMemory


class Quadratic(Scalar):
    pass


def quadratic(target):
    return lambda o, a: [Scalar(-((a - target) ** 2).sum(-1))]


def free(theta, o):
    """A policy whose parameters are its action."""
    return jnp.broadcast_to(theta, (*o.shape[:-1], theta.shape[-1]))


def run(tta, state, obs):
    step = jax.jit(tta.update)
    actions = []
    for o in obs:
        state, a, _ = step(state, jnp.asarray(o, jnp.float32))
        actions.append(np.asarray(a))
    return state, np.array(actions)


OBS = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)


def test_naive_climbs_a_quadratic_critic_to_its_top():
    target = jnp.array([0.3, -0.2])
    cfg = method_config("naive", lr=0.01, update_every=1)
    tta = make_tta(free, quadratic(target), cfg)
    state, actions = run(tta, tta.init(jnp.zeros(2), jax.random.key(0), 5), np.tile(OBS[:1], (300, 1)))
    np.testing.assert_allclose(state.theta, target, atol=0.01)
    np.testing.assert_array_equal(actions[0], [0, 0])


def test_first_adam_step_has_size_lr():
    tta = make_tta(free, quadratic(jnp.array([0.3, -0.2])), method_config("naive", lr=0.01, update_every=1))
    state, _ = run(tta, tta.init(jnp.zeros(2), jax.random.key(0), 5), OBS[:1])
    np.testing.assert_allclose(state.theta, [0.01, -0.01], rtol=1e-4)


def test_tempo_without_entropy_and_priorities_on_one_observation_is_naive_bit_for_bit():
    critic = quadratic(jnp.array([0.3, -0.2]))
    ring = ScoreMemory(1, alpha=0.0)
    tempo_cfg = TTAConfig(lr=0.01, update_every=1, batch_size=1, entropy_coef=0.0, memory=ring, warmup=1)
    a, b = make_tta(free, critic, tempo_cfg), make_tta(free, critic, method_config("naive", lr=0.01, update_every=1))
    sa, aa = run(a, a.init(jnp.zeros(2), jax.random.key(0), 5), OBS)
    sb, ab = run(b, b.init(jnp.zeros(2), jax.random.key(0), 5), OBS)
    np.testing.assert_array_equal(aa, ab)
    np.testing.assert_array_equal(sa.theta, sb.theta)


def two_peaks(o, a):
    """A sharp peak at +0.5 (value 1.0) and a flat one at -0.5 (value 0.95)."""
    atoms = jnp.linspace(0, 2, 41)
    x = a[..., 0]
    sharp, flat = jnp.exp(-((x - 0.5) ** 2) / 0.1), jnp.exp(-((x + 0.5) ** 2) / 0.1)
    value = jnp.maximum(sharp, 0.95 * flat)
    width = 0.03 + 0.5 * flat
    return [Categorical(-0.5 * ((atoms - value[..., None]) / width[..., None]) ** 2, atoms)]


def test_entropy_moves_the_actor_from_the_sharp_to_the_flat_peak():
    end = {}
    for name, coef in (("off", 0.0), ("on", 2.0)):
        cfg = TTAConfig(lr=0.02, update_every=1, batch_size=4, entropy_coef=coef, warmup=1, memory=ScoreMemory(8))
        tta = make_tta(free, two_peaks, cfg)
        state, _ = run(tta, tta.init(jnp.array([0.05]), jax.random.key(0), 5), np.tile(OBS, (4, 1)))
        end[name] = float(state.theta[0])
    assert end["off"] > 0.3
    assert end["on"] < -0.1


def test_entropy_is_promoted_and_zero_coefficient_is_the_plain_objective():
    cfg = TTAConfig(lr=0.01, update_every=1, entropy_coef=0.0, warmup=1)
    a = make_tta(free, two_peaks, cfg)
    b = make_tta(free, lambda o, x: [Scalar(two_peaks(o, x)[0].mean())], cfg)
    sa, _ = run(a, a.init(jnp.array([0.05]), jax.random.key(0), 5), OBS)
    sb, _ = run(b, b.init(jnp.array([0.05]), jax.random.key(0), 5), OBS)
    np.testing.assert_array_equal(sa.theta, sb.theta)


def test_scalar_critic_with_entropy_says_so():
    tta = make_tta(free, quadratic(jnp.zeros(2)), TTAConfig(entropy_coef=0.1))
    state = tta.init(jnp.zeros(2), jax.random.key(0), 5)
    with pytest.raises(ValueError, match="scalar critic"):
        tta.act(state, jnp.zeros(5))


def test_a_lone_distribution_is_one_twin():
    """A Categorical is a tuple of arrays, and arrays have means, too."""
    cfg, said = TTAConfig(entropy_coef=0.1), []
    for critic in (two_peaks, lambda o, x: two_peaks(o, x)[0]):
        tta = make_tta(free, critic, cfg)
        metrics = tta.act(tta.init(jnp.array([0.05]), jax.random.key(0), 5), jnp.asarray(OBS[0]))[2]
        said.append([float(metrics[k]) for k in ("q", "entropy")])
    assert said[0] == said[1] and 0 < said[0][1] < 1
    tta = make_tta(free, lambda o, x: x.sum(-1), cfg)
    with pytest.raises(TypeError, match="critic_apply: expected a list of value distributions"):
        tta.act(tta.init(jnp.zeros(1), jax.random.key(0), 5), jnp.zeros(5))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_apply": None}, "policy_apply: expected a function"),
        ({"cfg": None}, "cfg: expected a TTAConfig"),
        ({"q_scale": 0.0}, "q_scale"),
        ({"q_scale": -1.0}, "q_scale"),
        ({"q_scale": float("nan")}, "q_scale"),
        ({"fallen_index": 5}, "fallen_index: expected less than the 5 observations"),
        ({"fallen_index": -1}, "fallen_index"),
        ({"normalizer": (np.zeros(5), np.zeros(5))}, "normalizer: .* positive"),
        ({"normalizer": (np.zeros(5), np.full(5, np.nan))}, "normalizer"),
        ({"normalizer": (np.zeros(1), np.ones(1))}, "obs_size: expected the normalizer's 1"),
        ({"key": 0}, "key: expected a key of jax.random"),
        ({"theta": jnp.array([jnp.nan])}, "theta: expected finite"),
        ({"obs_size": 4}, "obs: expected shape"),
    ],
)
def test_what_cannot_be_adapted_is_named(change, message):
    given = {"policy_apply": free, "critic_apply": two_peaks, "cfg": TTAConfig(), "theta": jnp.zeros(1)}
    given |= {"key": jax.random.key(0), "obs_size": 5} | change
    start = [given.pop(k) for k in ("theta", "key", "obs_size")]
    with pytest.raises((TypeError, ValueError), match=message):
        tta = make_tta(**given)
        tta.act(tta.init(*start), jnp.zeros(5))


def test_zero_lr_changes_nothing():
    tta = make_tta(free, two_peaks, TTAConfig(lr=0.0, update_every=1, warmup=1))
    start = jnp.array([0.123])
    state, actions = run(tta, tta.init(start, jax.random.key(0), 5), OBS)
    np.testing.assert_array_equal(state.theta, start)
    assert (actions == actions[0]).all()


def test_fallen_observations_stay_out_of_the_memory():
    tta = make_tta(free, two_peaks, TTAConfig(update_every=1000), fallen_index=2)
    state, _ = run(tta, tta.init(jnp.zeros(1), jax.random.key(0), 5), OBS)
    assert int(state.memory.inserted) == int((OBS[:, 2] <= 0).sum())
    kept = np.asarray(state.memory.obs[: int(state.memory.inserted)])
    np.testing.assert_array_equal(kept, OBS[OBS[:, 2] <= 0])


def test_guard_keeps_theta_when_the_critic_explodes():
    def broken(o, a):
        return [Scalar(jnp.where(o[..., 0] > 1.0, jnp.nan, 1.0) * a.sum(-1))]

    tta = make_tta(free, broken, method_config("naive", update_every=1, lr=0.1))
    state = tta.init(jnp.zeros(2), jax.random.key(0), 5)
    # the broken value is not inserted either; force it into the memory to see the guard alone
    state = state._replace(
        memory=state.memory._replace(
            obs=state.memory.obs.at[0].set(5.0), stamp=state.memory.stamp.at[0].set(0), inserted=jnp.ones((), jnp.int32)
        )
    )
    after, _ = jax.jit(tta.learn)(state)
    np.testing.assert_array_equal(after.theta, state.theta)
    assert int(after.rollbacks) == 1 and np.isfinite(after.m).all()
    assert int(after.updates) == int(after.moments) == 0, "an update that was put back is none"


def test_drift_bound_holds():
    tta = make_tta(
        free, quadratic(jnp.array([1.0, 1.0])), method_config("naive", lr=0.1, update_every=1, max_drift=0.05)
    )
    state, _ = run(tta, tta.init(jnp.zeros(2), jax.random.key(0), 5), OBS)
    assert float(jnp.sqrt((state.theta**2).mean())) == pytest.approx(0.05, rel=1e-4)


def test_restore_on_fall_goes_back_to_the_snapshot():
    cfg = method_config("naive", lr=0.05, update_every=1, restore_on_fall=True, snapshot_every=5)
    tta = make_tta(free, quadratic(jnp.array([1.0, 1.0])), cfg, fallen_index=0)
    up, down = -np.ones((7, 5), np.float32), np.ones((1, 5), np.float32)
    state, _ = run(tta, tta.init(jnp.zeros(2), jax.random.key(0), 5), up)
    snapshot = np.asarray(state.snapshot)
    assert not np.array_equal(snapshot, state.theta)
    state, action, _ = tta.act(state, jnp.asarray(down[0]))
    np.testing.assert_array_equal(state.theta, snapshot)
    assert int(state.rollbacks) == 1


def test_steps_after_a_roll_back_have_the_size_of_first_steps():
    """Adam's bias correction starts anew with its moments."""
    cfg = method_config("naive", lr=1e-3, update_every=1, restore_on_fall=True)
    tta = make_tta(free, lambda o, a: [Scalar(a.sum(-1))], cfg, fallen_index=0)
    state, _ = run(tta, tta.init(jnp.zeros(2), jax.random.key(0), 5), -np.ones((300, 5), np.float32))
    state, _, _ = tta.act(state, jnp.ones(5))
    assert int(state.rollbacks) == 1
    learn = jax.jit(tta.learn)
    for _ in range(10):
        before = state.theta
        state, _ = learn(state)
        np.testing.assert_allclose(state.theta - before, 1e-3, rtol=1e-3)


def test_vmapped_robots_equal_separate_ones():
    tta = make_tta(free, two_peaks, TTAConfig(lr=0.01, update_every=2, warmup=4, batch_size=8))
    keys = jax.random.split(jax.random.key(1), 3)
    obs = np.random.default_rng(1).normal(size=(30, 3, 5)).astype(np.float32)
    single = [run(tta, tta.init(jnp.zeros(1), k, 5), obs[:, i])[1] for i, k in enumerate(keys)]
    state = jax.vmap(lambda k: tta.init(jnp.zeros(1), k, 5))(jax.random.key_data(keys))
    step = jax.jit(jax.vmap(tta.update))
    for t in range(30):
        state, action, _ = step(state, jnp.asarray(obs[t]))
        np.testing.assert_allclose(action, np.stack([s[t] for s in single]), atol=1e-6)


def test_episodic_forgets_and_continual_does_not():
    for protocol, same in (("episodic", True), ("continual", False)):
        tta = make_tta(
            free, quadratic(jnp.array([1.0, 1.0])), method_config("naive", lr=0.05, update_every=1, protocol=protocol)
        )
        state, first = run(tta, tta.init(jnp.zeros(2), jax.random.key(0), 5), OBS[:20])
        _, second = run(tta, tta.reset(state), OBS[:20])
        assert np.array_equal(first[0], second[0]) is same


def test_methods_differ_as_documented():
    assert method_config("naive").source == "latest" and method_config("naive").entropy_coef == 0
    assert method_config("uniform").memory.alpha == 0
    assert method_config("easy-first").memory.alpha == -0.6
    assert method_config("tempo", entropy_coef=0.3).entropy_coef == 0.3
    assert method_config("q_greedy").lr == 0
    with pytest.raises(ValueError, match="did you mean 'tempo'"):
        method_config("temp")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("memory", {"entropy_coef": 0.5}),
        ("memory", {"source": "latest"}),
        ("none", {"lr": 1e-3}),
        ("q_greedy", {"lr": 1.0}),
    ],
)
def test_what_a_method_fixes_cannot_be_set(method, settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}: expected .* which the method '{method}' fixes"):
        method_config(method, **settings)


def test_strengths_given_to_one_program_are_those_of_a_configuration():
    """Uniform replay without entropy by TEMPO's own program with other numbers, as the evaluation runs it."""
    ring = ScoreMemory(16, alpha=0.6)
    shared = make_tta(free, two_peaks, TTAConfig(lr=1.0, update_every=1, warmup=1, batch_size=4, memory=ring))
    own_cfg = method_config("uniform", lr=0.01, update_every=1, warmup=1, batch_size=4, memory=ring)
    own = make_tta(free, two_peaks, own_cfg)
    a = b = own.init(jnp.array([0.05]), jax.random.key(0), 5)
    by_strengths, by_config = jax.jit(lambda s: shared.learn(s, own_cfg.strengths)), jax.jit(own.learn)
    for o in OBS[:30]:
        a, b = own.act(a, jnp.asarray(o))[0], own.act(b, jnp.asarray(o))[0]
        a, b = by_strengths(a)[0], by_config(b)[0]
    np.testing.assert_allclose(a.theta, b.theta, rtol=1e-6)
    assert float(jnp.abs(a.theta - a.theta0).max()) > 0.05


@pytest.mark.parametrize(("how", "expected"), [("min", 1.0), ("mean", 2.0)])
def test_any_number_of_critics_is_reduced(how, expected):
    assert float(reduced([Scalar(jnp.asarray(v)) for v in (1.0, 2.0, 3.0)], how)) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("lr", -1.0),
        ("lr", float("nan")),
        ("update_every", 0),
        ("entropy_coef", -0.1),
        ("source", "x"),
        ("max_drift", 0.0),
    ],
)
def test_bad_settings_name_the_argument(field, value):
    with pytest.raises((ValueError, TypeError), match=field):
        TTAConfig(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("capacity", 0), ("alpha", -0.1), ("beta", 1.5), ("eviction", "lru")])
def test_bad_memory_settings_name_the_argument(field, value):
    with pytest.raises((ValueError, TypeError), match=field):
        ScoreMemory(**{field: value})


def test_the_newest_entries_must_leave_room_for_the_hardest():
    with pytest.raises(ValueError, match="recent_min: expected less than the capacity 512"):
        ScoreMemory(512, eviction="easiest", recent_min=512)


@pytest.mark.parametrize("method", ["naive", "naive-fifo", "entropy"])
def test_the_latest_observations_need_a_ring_in_order(method):
    with pytest.raises(ValueError, match="memory: expected eviction 'fifo'"):
        method_config(method, memory=ScoreMemory(128, eviction="easiest"))

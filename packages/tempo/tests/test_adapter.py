import inspect

import jax
import numpy as np
import pytest

from neurips26.tempo import NonFiniteObservationError, ScoreMemory, ShapeError, TestTimeAdapter

FAST = dict(batch_size=4, update_every=2, warmup=4, memory=ScoreMemory(16))


def observations(n, seed=0, d=48):
    obs = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    obs[:, 8] = -1.0  # upright
    return obs


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def test_the_adapter_sees_observations_only():
    assert list(inspect.signature(TestTimeAdapter.step).parameters) == ["self", "obs"]


def test_theta_moves_and_the_critic_does_not(ckpt):
    before = ckpt.digest()
    adapter = TestTimeAdapter(ckpt, **FAST)
    first, _ = adapter.step(observations(1)[0])
    np.testing.assert_allclose(first, ckpt.act(observations(1)[0]), atol=1e-6)
    for o in observations(50):
        action, info = adapter.step(o)
        assert action.shape == (12,) and (np.abs(action) <= 1).all() and np.isfinite(info["q"])
    assert adapter.drift > 0 and int(adapter.state.updates) > 10
    assert ckpt.digest() == before


@pytest.mark.slow
def test_memory_and_process_stay_flat_over_1e5_ticks(ckpt):
    psutil = pytest.importorskip("psutil")
    adapter = TestTimeAdapter(ckpt, batch_size=4, update_every=20, memory=ScoreMemory(16))
    obs = observations(64)
    for k in range(5_000):
        adapter.step(obs[k % 64])
    before, size, compiled = psutil.Process().memory_info().rss, adapter.memory_bytes(), adapter._act._cache_size()
    for k in range(95_000):
        adapter.step(obs[k % 64])
    assert psutil.Process().memory_info().rss - before < 1 << 20
    assert adapter.memory_bytes() == size and adapter._act._cache_size() == compiled == 1


def test_no_recompilation_after_warmup(ckpt):
    adapter = TestTimeAdapter(ckpt, **FAST)
    assert adapter.warmup() < 60
    sizes = adapter._act._cache_size(), adapter._learn._cache_size()
    fresh = adapter.state_dict()
    for o in observations(20):
        adapter.step(o)
    assert (adapter._act._cache_size(), adapter._learn._cache_size()) == sizes == (1, 1)
    assert fresh["tick"] == 0


def test_warmup_leaves_the_state_alone(ckpt):
    a, b = TestTimeAdapter(ckpt, **FAST), TestTimeAdapter(ckpt, **FAST)
    a.warmup()
    for o in observations(12):
        np.testing.assert_array_equal(a.step(o)[0], b.step(o)[0])


def test_accepted_kinds_of_observation(ckpt):
    base = observations(1)[0]
    expected = TestTimeAdapter(ckpt, **FAST).step(base)[0]
    strided = np.zeros((48, 2), np.float64)
    strided[:, 0] = base
    locked = base.copy()
    locked.flags.writeable = False
    kinds = {
        "float64": base.astype(float),
        "strided": strided[:, 0],
        "read-only": locked,
        "jax": jax.numpy.asarray(base),
        "dict": {"state": base},
    }
    try:
        import torch

        kinds["torch"] = torch.tensor(base, requires_grad=True)
    except ImportError:
        pass
    for name, obs in kinds.items():
        np.testing.assert_allclose(TestTimeAdapter(ckpt, **FAST).step(obs)[0], expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "bad",
    [np.zeros(47), np.zeros((1, 48)), {"privileged_state": np.zeros(123)}, np.zeros(()), np.zeros(48, complex), None,
     "abc", b"abc", [[1.0], [1.0, 2.0]]],
)  # fmt: skip
def test_wrong_shapes_name_what_was_expected(ckpt, bad):
    with pytest.raises(ShapeError, match=r"obs: expected .*(48|'state')"):
        TestTimeAdapter(ckpt, **FAST).step(bad)


def test_broken_readings_leave_everything_as_it_was(ckpt):
    adapter = TestTimeAdapter(ckpt, **FAST)
    obs = observations(11)
    for o in obs[:10]:
        last, _ = adapter.step(o)
    before = adapter.state_dict()["state"]
    bad = obs[10].copy()
    bad[3] = np.nan
    action, info = adapter.step(bad)
    assert info["nonfinite"] == 1 and not info["valid"] and np.isfinite(action).all()
    assert same(before, adapter.state)
    _, info = adapter.step(np.full(48, 1e300))  # beyond single precision
    assert info["nonfinite"] == 2 and same(before, adapter.state)
    bad[3] = np.inf
    with pytest.raises(NonFiniteObservationError, match="1 of 48"):
        TestTimeAdapter(ckpt, strict=True, **FAST).step(bad)


def test_zero_lr_equals_the_frozen_policy_bit_for_bit(ckpt):
    a = TestTimeAdapter(ckpt, method="tempo", lr=0.0, **FAST)
    b = TestTimeAdapter(ckpt, method="none")
    for o in observations(250):
        np.testing.assert_array_equal(a.step(o)[0], b.step(o)[0])


def test_resumed_run_continues_with_the_same_actions(ckpt, tmp_path):
    obs = observations(60)
    whole = TestTimeAdapter(ckpt, seed=3, **FAST)
    expected = [whole.step(o)[0] for o in obs]
    first = TestTimeAdapter(ckpt, seed=3, save_path=tmp_path / "state.npz", save_every=10, **FAST)
    for o in obs[:30]:
        first.step(o)
    second = TestTimeAdapter(ckpt, seed=99, **FAST)
    second.restore(tmp_path / "state.npz")
    np.testing.assert_array_equal([second.step(o)[0] for o in obs[30:]], expected[30:])
    assert not list(tmp_path.glob("*.part"))


def test_states_that_are_no_whole_finite_ones_are_refused(ckpt, tmp_path):
    adapter = TestTimeAdapter(ckpt, **FAST)
    saved = adapter.state_dict()
    broken = jax.tree.map(lambda x: x * np.nan if x.dtype == np.float32 else x, saved["state"])
    for bad, message in (
        (saved | {"state": broken}, "finite"),
        (saved | {"last_good": np.full(48, np.inf)}, "finite"),
        ({k: v for k, v in saved.items() if k != "tick"}, "tick missing"),
        ({}, "state, checkpoint"),
    ):
        with pytest.raises(ValueError, match=f"saved: expected .*{message}"):
            adapter.load_state_dict(bad)
    file = adapter.save(tmp_path / "state.npz")
    whole = bytearray(file.read_bytes())
    flipped = whole.copy()
    flipped[len(whole) // 2] ^= 1
    for data in (whole[:-100], flipped, b"", b"text"):
        file.write_bytes(bytes(data))
        with pytest.raises(ValueError, match=r"path: expected a whole file that `save` wrote, got .*state\.npz"):
            adapter.restore(file)
    with pytest.raises(ValueError, match="path: expected a whole file"):
        adapter.restore(tmp_path)
    with pytest.raises(FileNotFoundError):
        adapter.restore(tmp_path / "nothing.npz")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_write_that_fails_is_counted_and_told_and_does_not_stop_the_robot(ckpt, tmp_path, asynchronous):
    with pytest.raises(ValueError, match="save_path: expected a file in an existing directory"):
        TestTimeAdapter(ckpt, save_path=tmp_path / "no" / "x.npz", save_every=2, **FAST)
    folder = tmp_path / "there"
    folder.mkdir()
    adapter = TestTimeAdapter(ckpt, save_path=folder / "x.npz", save_every=2, asynchronous=asynchronous, **FAST)
    folder.rmdir()
    for o in observations(4):
        action, _ = adapter.step(o)
        adapter._settle()
    assert np.isfinite(action).all() and adapter.counters["failed_saves"] == 2
    with pytest.raises(OSError, match="save_path: the state could not be written"):
        adapter.finish()
    adapter.finish()  # told once


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"restore_on_fall": "no"}, "restore_on_fall: expected True or False"),
        ({"asynchronous": "no"}, "asynchronous: expected True or False"),
        ({"deadline": float("nan")}, "deadline"),
        ({"deadline": "a"}, "deadline"),
        ({"greedy_size": float("nan")}, "greedy_size"),
        ({"memory": 512}, "memory: expected a ScoreMemory"),
        ({"leraning_rate": 1.0}, "settings: expected one of 'lr'"),
        ({"config": "x"}, "config: expected a TTAConfig"),
    ],
)
def test_settings_that_are_none_name_the_argument(ckpt, settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        TestTimeAdapter(ckpt, **settings)


@pytest.mark.bad_input
def test_a_name_is_no_checkpoint():
    with pytest.raises(TypeError, match=r"ckpt: expected a Checkpoint, which tempo\.load gives"):
        TestTimeAdapter("go1-joystick")


def test_state_of_another_configuration_is_refused(ckpt):
    saved = TestTimeAdapter(ckpt, **FAST).state_dict()
    with pytest.raises(ValueError, match=r"saved: expected .* the same lr$"):
        TestTimeAdapter(ckpt, lr=1e-3, **FAST).load_state_dict(saved)


def test_state_of_another_robots_adapter_is_refused(ckpt, make_checkpoint):
    """Go1 and Go2 have equal shapes and other orders of legs."""
    saved = TestTimeAdapter(make_checkpoint(robot="go2", seed=1), **FAST).state_dict()
    with pytest.raises(ValueError, match="saved: expected .* the same checkpoint"):
        TestTimeAdapter(ckpt, **FAST).load_state_dict(saved)


def test_asynchronous_mode_never_waits_and_learns(ckpt):
    adapter = TestTimeAdapter(ckpt, asynchronous=True, **FAST)
    adapter.warmup()
    import threading

    gate, inner = threading.Event(), adapter._learn
    adapter._learn = lambda *parts: (gate.wait(20), inner(*parts))[1]  # an update that cannot finish yet
    frozen = TestTimeAdapter(ckpt, method="none")
    for o in observations(12):
        action, info = adapter.step(o)
        np.testing.assert_allclose(action, frozen.step(o)[0], atol=1e-6)  # the old theta, in time
    assert info["skipped_updates"] >= 4 and int(adapter.state.updates) == 0
    gate.set()
    adapter.finish()
    for o in observations(12, seed=1):
        adapter.step(o)
        adapter.finish()
    assert int(adapter.state.updates) > 0 and adapter.drift > 0


def held(adapter):
    """Lets the adapter's updates begin and not end before the returned event is set."""
    import threading

    gate, inner = threading.Event(), adapter._learn
    adapter._learn = lambda *parts: (gate.wait(20), inner(*parts))[1]
    return gate


def test_asynchronous_saving_does_not_wait_for_an_update(ckpt, tmp_path):
    adapter = TestTimeAdapter(ckpt, asynchronous=True, save_path=tmp_path / "s.npz", save_every=3, **FAST)
    adapter.warmup()
    gate = held(adapter)
    seconds = [adapter.step(o)[1]["seconds"] for o in observations(9)]
    assert max(seconds) < 5 and adapter._worker is not None and adapter._worker.is_alive()
    gate.set()
    adapter.finish()
    TestTimeAdapter(ckpt, **FAST).restore(tmp_path / "s.npz")


def test_an_update_that_began_before_a_roll_back_is_dropped(ckpt):
    adapter = TestTimeAdapter(ckpt, asynchronous=True, restore_on_fall=True, lr=1e-2, **FAST)
    adapter.warmup()
    for o in observations(10):
        adapter.step(o)
        adapter.finish()
    moved = adapter.drift
    gate = held(adapter)
    for o in observations(2, seed=1):
        adapter.step(o)
    lying = observations(1)[0]
    lying[8] = 1.0
    _, info = adapter.step(lying)
    assert moved > 0 and info["rollbacks"] == 1 and adapter.drift == 0
    gate.set()
    adapter.finish()
    assert adapter.drift == 0 and int(adapter.state.rollbacks) == 1


def test_deadline_misses_are_counted(ckpt):
    adapter = TestTimeAdapter(ckpt, deadline=0.0, **FAST)
    assert [adapter.step(o)[1]["deadline_misses"] for o in observations(3)] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "critic"), [("simba", "simba"), ("simbav2", "simbav2")])
def test_other_architectures_adapt(make_checkpoint, arch, critic):
    adapter = TestTimeAdapter(make_checkpoint(arch=arch, critic_arch=critic, width=16), lr=1e-3, **FAST)
    for o in observations(30):
        action, info = adapter.step(o)
    assert adapter.drift > 0 and np.isfinite(action).all()


@pytest.mark.slow
def test_simbav2_weights_stay_on_the_sphere(make_checkpoint):
    adapter = TestTimeAdapter(make_checkpoint(arch="simbav2", width=16), lr=1e-2, **(FAST | {"update_every": 1}))
    for o in observations(110):
        adapter.step(o)
    assert int(adapter.state.updates) >= 100
    kernels = [
        x
        for path, x in jax.tree_util.tree_flatten_with_path(adapter.state.theta)[0]
        if "hyper_" in jax.tree_util.keystr(path)
    ]
    assert len(kernels) == 7
    for kernel in kernels:
        np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, atol=1e-5)


@pytest.mark.parametrize("scope", ["last", pytest.param("norm", marks=pytest.mark.slow)])
def test_scope_limits_what_moves(make_checkpoint, scope):
    ckpt = make_checkpoint(arch="mlp_ln")
    adapter = TestTimeAdapter(ckpt, scope=scope, **FAST)
    for o in observations(20):
        adapter.step(o)
    moved = [
        jax.tree_util.keystr(p)
        for (p, a), b in zip(
            jax.tree_util.tree_flatten_with_path(adapter.state.theta)[0],
            jax.tree.leaves(adapter.state.theta0),
            strict=True,
        )
        if not np.array_equal(a, b)
    ]
    assert moved and all(("[2]" in m) if scope == "last" else ("scale" in m or "shift" in m) for m in moved)


@pytest.mark.slow
def test_gaussian_critic_adapts_with_entropy(make_checkpoint):
    adapter = TestTimeAdapter(make_checkpoint(kind="gaussian"), **FAST)
    for o in observations(20):
        _, info = adapter.step(o)
    assert np.isfinite(info["entropy"]) and adapter.drift > 0


def test_q_greedy_changes_actions_and_no_parameters(ckpt):
    adapter = TestTimeAdapter(ckpt, method="q_greedy")
    o = observations(1)[0]
    action, info = adapter.step(o)
    frozen, plain = TestTimeAdapter(ckpt, method="none").step(o)
    assert info["q"] > plain["q"] and not np.array_equal(action, frozen)
    assert adapter.drift == 0

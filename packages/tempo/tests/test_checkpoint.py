from dataclasses import replace

import numpy as np
import pytest

from neurips26 import tempo
from neurips26.tempo import CheckpointError, Meta
from neurips26.tempo.checkpoint import Checkpoint


def test_round_trip_is_exact(ckpt, tmp_path):
    path = ckpt.save(tmp_path / "a.safetensors", dtype=np.float32)
    again = tempo.load(path)
    assert again.digest() == ckpt.digest() and again.meta == ckpt.meta
    obs = np.random.default_rng(0).normal(size=(5, 48)).astype(np.float32)
    np.testing.assert_array_equal(again.act(obs), ckpt.act(obs))


def test_half_precision_rounds_and_says_so_in_the_digest(ckpt, tmp_path):
    again = tempo.load(ckpt.save(tmp_path / "a.safetensors"))
    assert again.digest() != ckpt.digest()
    obs = np.random.default_rng(0).normal(size=(5, 48)).astype(np.float32)
    np.testing.assert_allclose(again.act(obs), ckpt.act(obs), atol=5e-3)


def test_shipped_checkpoints_load_with_cards():
    names = tempo.available()
    assert "go1-joystick" in names
    for name, path in names.items():
        ckpt = tempo.load(name)
        assert path.with_suffix(".json").is_file() and ckpt.meta.card["steps"] > 0 and ckpt.meta.status
        assert set(ckpt.meta.card["gates"]["passed"]) == {"K1", "K2", "K3", "K4"}
    assert sum(p.stat().st_size for p in names.values()) < 3e6


def test_truncated_and_altered_files_are_refused(ckpt, tmp_path):
    path = ckpt.save(tmp_path / "a.safetensors")
    data = path.read_bytes()
    (tmp_path / "short.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        tempo.load(tmp_path / "short.safetensors")
    altered = bytearray(data)
    altered[-3] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(bytes(altered))
    with pytest.raises(CheckpointError, match="sha256"):
        tempo.load(tmp_path / "bad.safetensors")
    with pytest.raises(FileNotFoundError, match="go1-joystick"):
        tempo.load("nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c, meta=replace(c.meta, robot="g1")), "normalizer.mean"),
        (lambda c: replace(c, meta=replace(c.meta, robot="spot")), "robot"),
        (lambda c: replace(c, meta=replace(c.meta, critic_obs="privileged_state")), "critic_obs"),
        (lambda c: replace(c, meta=replace(c.meta, v_min=2.0)), "atoms"),
        (lambda c: replace(c, meta=replace(c.meta, atoms=51)), "critic0: expected 51 outputs"),
        (lambda c: replace(c, meta=replace(c.meta, arch="simba")), "actor"),
        (lambda c: replace(c, meta=replace(c.meta, arch="lstm")), "arch"),
        (lambda c: replace(c, std=np.zeros(48, np.float32)), "normalizer.std"),
        (lambda c: replace(c, mean=np.zeros(47, np.float32)), "normalizer.mean"),
        (lambda c: replace(c, critics=[c.critics[0], c.actor]), "critic1"),
        (lambda c: replace(c, actor=[{"w": np.full((48, 12), np.nan), "b": np.zeros(12)}]), "actor.*finite"),
    ],
)
def test_misfits_name_the_field(ckpt, change, message):
    with pytest.raises(CheckpointError, match=message):
        change(ckpt)


@pytest.mark.bad_input
def test_names_and_sizes_that_are_none_are_refused():
    for call, message in (
        (lambda: tempo.load(None), "name: expected the name of a checkpoint"),
        (lambda: tempo.untrained("go1", width=0), "width"),
        (lambda: tempo.untrained("go1", seed=-1), "seed"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_missing_normaliser_is_named(ckpt, tmp_path):
    from safetensors.numpy import load_file, save_file

    path = ckpt.save(tmp_path / "a.safetensors")
    arrays = {k: v for k, v in load_file(path).items() if k != "normalizer.std"}
    import json

    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])["__metadata__"]
    save_file(arrays, tmp_path / "b.safetensors", metadata=header)
    with pytest.raises(CheckpointError, match="normalizer.std is missing"):
        tempo.load(tmp_path / "b.safetensors")


def test_meta_defaults_give_resolution_where_returns_are():
    m = Meta("go1", "mlp", "mlp_ln")
    spacing = (m.v_max - m.v_min) / (m.atoms - 1)
    assert spacing == pytest.approx(0.018) and 0.04 / (1 - m.discount) < m.v_max
    assert Checkpoint.__dataclass_params__.frozen

"""Importers on small made-up weights: the original's forward pass against ours."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neurips26 import tempo
from neurips26.tempo import CheckpointError, TestTimeAdapter, io
from neurips26.tempo.memory import ScoreMemory

torch = pytest.importorskip("torch")
nn = torch.nn
SMALL = dict(batch_size=4, update_every=2, warmup=4, memory=ScoreMemory(16))


def mlp(sizes, last=None):
    layers = []
    for n, m in pairwise(sizes):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*layers[:-1]) if last is None else nn.Sequential(*layers)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.fc_mu = mlp([48, 16, 8], "relu"), nn.Sequential(nn.Linear(8, 12), nn.Tanh())
        self.register_buffer("noise_scales", torch.ones(4, 1))

    def forward(self, x):
        return self.fc_mu(self.net(x))


class Twins(nn.Module):
    def __init__(self, inputs=60):
        super().__init__()
        self.qnet1, self.qnet2 = nn.Module(), nn.Module()
        self.qnet1.net, self.qnet2.net = mlp([inputs, 16, 11]), mlp([inputs, 16, 11])
        self.register_buffer("q_support", torch.linspace(-0.5, 1.5, 11))


@pytest.fixture(scope="module")
def saved():
    torch.manual_seed(0)
    actor, twins = Actor(), Twins()
    norm = {
        "_mean": torch.randn(1, 48),
        "_var": torch.ones(1, 48),
        "_std": torch.rand(1, 48) + 0.5,
        "count": torch.tensor(9),
    }
    file = {
        "actor_state_dict": actor.state_dict(),
        "qnet_state_dict": twins.state_dict(),
        "obs_normalizer_state": norm,
        "args": {"gamma": 0.98},
        "global_step": 123,
    }
    return actor, twins, norm, file


def raw(n=100, d=48):
    return np.random.default_rng(1).normal(size=(n, d)).astype(np.float32)


def test_fasttd3_actor_and_critic_equal_the_originals(saved, tmp_path):
    actor, twins, norm, file = saved
    torch.save(file, tmp_path / "model.pt")
    ckpt = io.from_fasttd3(tmp_path / "model.pt", "go1")
    obs = raw()
    x = (torch.tensor(obs) - norm["_mean"]) / (norm["_std"] + 1e-2)
    with torch.no_grad():
        action = actor(x)
        theirs = twins.qnet2.net(torch.cat([x, action], 1))
        value = (theirs.softmax(1) * twins.q_support).sum(1)
    np.testing.assert_allclose(ckpt.act(obs), action.numpy(), atol=1e-5)
    ours = ckpt.critic_apply()(jnp.asarray(x.numpy()), jnp.asarray(action.numpy()))[1]
    np.testing.assert_allclose(ours.mean(), value.numpy(), atol=1e-5)
    assert (
        ckpt.meta.discount == 0.98
        and ckpt.meta.card["steps"] == 123
        and (ckpt.meta.v_min, ckpt.meta.atoms) == (-0.5, 11)
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda f: f.pop("qnet_state_dict"), "qnet_state_dict"),
        (lambda f: f.update(actor_state_dict={}), "net"),
        (lambda f: f.update(qnet_state_dict=Twins(inputs=135).state_dict()), "onboard observation"),
        (lambda f: f.update(obs_normalizer_state={"scale": torch.ones(48)}), "obs_normalizer_state"),
    ],
)
def test_what_does_not_fit_is_named(saved, change, field):
    file = dict(saved[3])
    change(file)
    with pytest.raises(CheckpointError, match=field):
        io.from_fasttd3(file, "go1")


def test_files_that_hold_code_or_nothing_are_refused(tmp_path):
    (tmp_path / "broken.pt").write_bytes(b"not a file of tensors")
    with pytest.raises(CheckpointError, match=r"broken\.pt"):
        io.from_fasttd3(tmp_path / "broken.pt", "go1")
    with pytest.raises(CheckpointError, match="robot"):
        io.from_fasttd3({}, "spot")


def unit(x):
    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


def simbav2(inputs, outputs, width, blocks, actor):
    """Tensors of a SimbaV2 network as FastTD3 names them, and its forward pass written out."""
    g = torch.Generator().manual_seed(inputs)
    draw = lambda *s: torch.randn(*s, generator=g)  # noqa: E731
    kernel = lambda m, n: unit(draw(m, n))  # noqa: E731
    head = "mean_" if actor else ""
    s = {"embedder.w.w.weight": kernel(width, inputs + 1), "embedder.scaler.scaler": draw(width).abs() + 0.1}
    for k in range(blocks):
        s[f"encoder.{k}.mlp.w1.w.weight"] = kernel(4 * width, width)
        s[f"encoder.{k}.mlp.scaler.scaler"] = draw(4 * width).abs()
        s[f"encoder.{k}.mlp.w2.w.weight"] = kernel(width, 4 * width)
        s[f"encoder.{k}.alpha_scaler.scaler"] = draw(width).abs() * 0.1
    s |= {f"predictor.{head}w1.w.weight": kernel(width, width), f"predictor.{head}scaler.scaler": draw(width)}
    s |= {f"predictor.{head}w2.w.weight": kernel(outputs, width), f"predictor.{head}bias": draw(outputs)}

    def forward(x):
        x = unit(torch.cat([x, torch.full((len(x), 1), 3.0)], 1))
        x = unit(x @ s["embedder.w.w.weight"].T * s["embedder.scaler.scaler"])
        for k in range(blocks):
            h = torch.relu(x @ s[f"encoder.{k}.mlp.w1.w.weight"].T * s[f"encoder.{k}.mlp.scaler.scaler"]) + 1e-8
            h = unit(h @ s[f"encoder.{k}.mlp.w2.w.weight"].T)
            mix = s[f"encoder.{k}.alpha_scaler.scaler"] * (1 / (blocks + 1)) * width**0.5
            x = unit(x + mix * (h - x))
        x = x @ s[f"predictor.{head}w1.w.weight"].T * s[f"predictor.{head}scaler.scaler"]
        return x @ s[f"predictor.{head}w2.w.weight"].T + s[f"predictor.{head}bias"]

    return s, forward


def test_simbav2_of_fasttd3_equals_the_original():
    actor, act = simbav2(48, 12, 8, 1, True)
    q1, _ = simbav2(60, 11, 8, 2, False)
    q2, value = simbav2(60, 11, 8, 2, False)
    qnet = {f"qnet1.{k}": v for k, v in q1.items()} | {f"qnet2.{k}": v for k, v in q2.items()}
    ckpt = io.from_fasttd3({"actor_state_dict": actor, "qnet_state_dict": qnet}, "go1", v_min=-1.0, v_max=1.0)
    assert ckpt.meta.arch == "simbav2"
    obs = raw(20)
    action = torch.tanh(act(torch.tensor(obs)))
    np.testing.assert_allclose(ckpt.act(obs), action.numpy(), atol=1e-5)
    logits = ckpt.critic_apply()(jnp.asarray(obs), jnp.asarray(action.numpy()))[1].logits
    np.testing.assert_allclose(logits, value(torch.cat([torch.tensor(obs), action], 1)).numpy(), atol=1e-4)
    other = io.from_fasttd3(
        {"actor_state_dict": actor, "qnet_state_dict": qnet}, "go1", v_min=-1.0, v_max=1.0, critic_alpha_init=2 / 3
    )
    mix = [c.critics[0]["blocks"][0]["mix"] for c in (ckpt, other)]
    np.testing.assert_allclose(mix[1], 2 * mix[0], rtol=1e-6)  # two blocks: the default is 1/3
    with pytest.raises(TypeError, match="scalers: expected .* got critic_beta"):
        io.from_fasttd3({"actor_state_dict": actor, "qnet_state_dict": qnet}, "go1", critic_beta=1.0)
    with pytest.raises(CheckpointError, match=r"qnet2\.embedder\.scaler\.scaler: missing"):
        qnet.pop("qnet2.embedder.scaler.scaler")
        io.from_fasttd3({"actor_state_dict": actor, "qnet_state_dict": qnet}, "go1", v_min=-1.0, v_max=1.0)


def test_a_torch_actor_keeps_the_critic_of_another_checkpoint(ckpt):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(48, 16), nn.ELU(), nn.Linear(16, 12))
    state = {"model_state_dict": {f"actor.{k}": v for k, v in net.state_dict().items()} | {"std": torch.ones(12)}}
    mine = io.from_torch(state, "go1", ckpt)
    with torch.no_grad():
        np.testing.assert_allclose(mine.act(raw()), torch.tanh(net(torch.tensor(raw()))).numpy(), atol=1e-5)
    assert "not checked" in mine.meta.status
    with pytest.raises(CheckpointError, match="like"):
        io.from_torch(state, "go2", ckpt)
    with pytest.raises(CheckpointError, match="normalizer"):
        io.from_torch(state, "go1", ckpt, normalizer={"_mean": torch.ones(1, 48), "_std": torch.ones(1, 48)})
    with pytest.raises(CheckpointError, match="activation"):
        io.from_torch(state, "go1", ckpt, activation="gelu")


@pytest.mark.slow
def test_brax_sac_equals_the_original():
    brax = pytest.importorskip("brax.training.agents.sac.networks")
    from brax.training.acme import running_statistics, specs

    made = brax.make_sac_networks(48, 12, running_statistics.normalize, hidden_layer_sizes=(16, 8))
    keys = jax.random.split(jax.random.key(0), 2)
    policy, q = made.policy_network.init(keys[0]), made.q_network.init(keys[1])
    norm = running_statistics.init_state(specs.Array((48,), jnp.dtype("float32")))
    norm = norm.replace(mean=jnp.linspace(-1, 1, 48), std=jnp.linspace(0.5, 2, 48))
    ckpt = io.from_brax(norm, policy, q, "go1")
    obs = raw(20)
    action = jnp.tanh(made.policy_network.apply(norm, policy, obs)[:, :12])
    np.testing.assert_allclose(ckpt.act(obs), action, atol=1e-5)
    values = made.q_network.apply(norm, q, obs, action)
    ours = ckpt.critic_apply()(jnp.asarray((obs - ckpt.mean) / ckpt.std), action)
    np.testing.assert_allclose(np.stack([z.mean() for z in ours], 1), values, atol=1e-5)
    adapter = TestTimeAdapter(ckpt, method="naive", lr=1e-3)
    for o in obs:
        adapter.step(o)
    assert adapter.drift > 0
    with pytest.raises(ValueError, match="scalar critic"):
        TestTimeAdapter(ckpt, method="tempo", **SMALL).step(obs[0])


@pytest.mark.parametrize("name", ["simba", pytest.param("simbav2", marks=pytest.mark.slow)])
def test_networks_have_a_round_trip(name, tmp_path):
    one = tempo.untrained("go1", name, width=8)
    assert tempo.load(one.save(tmp_path / f"{name}.safetensors", np.float32)).digest() == one.digest()

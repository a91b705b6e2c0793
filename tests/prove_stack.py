"""Show that the one lock does not only resolve but runs: a few seconds of real work with each library, values checked.

    uv run --isolated --frozen --only-group stack python tests/prove_stack.py [name …]

Each proof runs in a process of its own (some set what others must not see), on the CPU, without a network, one thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

PROOFS: dict[str, Callable[[], str]] = {}


def proof(function: Callable[[], str]) -> Callable[[], str]:
    """Register a proof under its function's name; it returns what it found, or raises."""
    PROOFS[function.__name__] = function
    return function


@proof
def flower_round() -> str:
    """One round of FedAvg over two simulated clients; the new weights are their mean weighted by examples."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server, out = ClientApp(), ServerApp(), []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        weights = message.content["arrays"].to_numpy_ndarrays()[0] + 1.0 + partition
        metrics = MetricRecord({"num-examples": 1 + 2 * partition})
        content = RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=2, min_train_nodes=2)
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=1)
        out.append(result.arrays.to_numpy_ndarrays()[0])

    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(server_app=server, client_app=client, num_supernodes=2, backend_config=resources)
    # (1 · 1 + 2 · 3) / (1 + 3)
    np.testing.assert_allclose(out[0], np.full(3, 1.75))
    return "FedAvg of two clients, weighted by their examples"


@proof
def flower_partitions() -> str:
    """Flower's Dirichlet partitioner over a data set in memory: every row goes to exactly one client."""
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    data = Dataset.from_dict({"x": list(range(400)), "label": [i % 4 for i in range(400)]})
    partitioner = DirichletPartitioner(num_partitions=4, partition_by="label", alpha=0.5, min_partition_size=2, seed=1)
    partitioner.dataset = data
    rows = sorted(x for i in range(4) for x in partitioner.load_partition(i)["x"])
    assert rows == list(range(400))
    return "400 rows over 4 clients"


@proof
def peft_adapter() -> str:
    """A LoRA adapter on a tiny Llama from its configuration: merging it does not change the logits."""
    import torch
    from accelerate import Accelerator
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = get_peft_model(
        LlamaForCausalLM(config), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    ids = torch.randint(0, 64, (2, 12))
    losses = []
    for _ in range(4):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    model = accelerator.unwrap_model(model).eval()
    with torch.no_grad():
        before = model(input_ids=ids).logits
        after = model.merge_and_unload()(input_ids=ids).logits
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}, merged logits equal"


@proof
def diffusers_pipeline() -> str:
    """A tiny denoising pipeline from its configuration gives an image of the right shape, the same from the same seed."""
    import torch
    from diffusers import DDPMPipeline, DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=10))
    pipeline.set_progress_bar_config(disable=True)
    images = [
        pipeline(generator=torch.Generator().manual_seed(3), num_inference_steps=3, output_type="np").images
        for _ in range(2)
    ]
    assert images[0].shape == (1, 8, 8, 3)
    np.testing.assert_array_equal(images[0], images[1])
    # An Euler step of the flow scheduler is x + (sigma' - sigma) v.
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(4)
    x, v = torch.ones(1, 2), torch.full((1, 2), 2.0)
    stepped = scheduler.step(v, scheduler.timesteps[0], x).prev_sample
    torch.testing.assert_close(stepped, x + (scheduler.sigmas[1] - scheduler.sigmas[0]) * v)
    return "3 denoising steps, one Euler step"


@proof
def gguf_file() -> str:
    """A tensor written to GGUF reads back equal; Q8_0 stays within its step."""
    import tempfile

    import gguf

    weights = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    error = np.abs(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0) - weights).max()
    assert error <= np.abs(weights).max() / 127 * 0.51
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("w", weights)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        (tensor,) = gguf.GGUFReader(path).tensors
        np.testing.assert_array_equal(tensor.data, weights)
    return f"largest Q8_0 error {error:.4f}"


@proof
def mujoco_step() -> str:
    """A free fall in MuJoCo is the discrete parabola; MJX gives the same trajectory."""
    import jax
    import mujoco
    from mujoco import mjx

    xml = '<mujoco><worldbody><body pos="0 0 10"><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    steps = 50
    for _ in range(steps):
        mujoco.mj_step(model, data)
    dt = model.opt.timestep
    # Semi-implicit Euler: the fall after n steps is g dt² n (n + 1) / 2.
    np.testing.assert_allclose(10 - data.qpos[2], 9.81 * dt**2 * steps * (steps + 1) / 2, rtol=1e-9)
    device_model = mjx.put_model(model, impl="jax")
    step = jax.jit(lambda d: mjx.step(device_model, d))
    state = mjx.make_data(model, impl="jax")
    for _ in range(steps):
        state = step(state)
    np.testing.assert_allclose(np.asarray(state.qpos), data.qpos, atol=1e-4)
    return f"fell {10 - data.qpos[2]:.4f} m, MJX agrees"


@proof
def brax_step() -> str:
    """Brax resets and steps an inverted pendulum under jit."""
    import jax
    import jax.numpy as jnp
    from brax import envs

    env = envs.get_environment("inverted_pendulum", backend="generalized")
    state = jax.jit(env.reset)(jax.random.PRNGKey(0))
    step = jax.jit(env.step)
    for _ in range(3):
        state = step(state, jnp.full((env.action_size,), 0.5))
    assert float(state.obs[2]) != 0.0
    assert np.isfinite(np.asarray(state.obs)).all()
    return f"observation of {state.obs.shape[0]}, reward {float(state.reward):g}"


@proof
def playground_reset() -> str:
    """Playground's Go1 resets and steps from the wheel's own models, visual meshes stripped, nothing cloned."""
    import importlib.util
    import xml.etree.ElementTree as ET
    from pathlib import Path

    import jax
    import jax.numpy as jnp

    (package,) = importlib.util.find_spec("mujoco_playground").submodule_search_locations
    folder = Path(package) / "_src" / "locomotion" / "go1" / "xmls"

    def stripped(xml: bytes) -> bytes:
        tree = ET.fromstring(xml)
        for parent in list(tree.iter()):
            for child in list(parent):
                shows = child.tag == "geom" and (child.get("mesh") or child.get("type") == "mesh")
                loads = child.tag == "mesh" or (child.tag == "texture" and child.get("file"))
                if (shows or loads) and parent.tag != "default":
                    parent.remove(child)
        return ET.tostring(tree)

    files = [*folder.glob("*.xml"), *(folder / "assets").glob("*")]
    assets = {p.name: stripped(p.read_bytes()) if p.suffix == ".xml" else p.read_bytes() for p in files}
    from mujoco_playground import registry
    from mujoco_playground._src import mjx_env
    from mujoco_playground._src.locomotion.go1 import base

    mjx_env.ensure_menagerie_exists = lambda: None
    base.get_assets = lambda: assets
    config = registry.get_default_config("Go1JoystickFlatTerrain")
    config.impl = "jax"
    env = registry.load("Go1JoystickFlatTerrain", config=config)
    state = jax.jit(env.reset)(jax.random.PRNGKey(0))
    assert state.obs["state"].shape == (48,)
    height = float(state.data.qpos[2])
    assert 0.2 < height < 0.4
    assert jnp.isfinite(state.obs["state"]).all()
    return f"Go1 stands at {height:.3f} m, 48 observations, 12 actions: {env.action_size == 12}"


@proof
def envpool_step() -> str:
    """Four pendulums step in EnvPool; the first observation obeys cos² + sin² = 1."""
    import envpool

    env = envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=4, seed=1)
    env.reset()
    obs, reward, *_ = env.step(np.zeros((4, 1), dtype=np.float32))
    np.testing.assert_allclose(obs[:, 0] ** 2 + obs[:, 1] ** 2, 1.0, atol=1e-5)
    assert (reward <= 0).all()
    env.close()
    return "4 pendulums"


@proof
def flax_optax_fit() -> str:
    """A flax layer fitted by optax finds the line it was drawn from."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn

    x = jnp.linspace(-1, 1, 64)[:, None]
    y = 3 * x - 0.5
    layer = nn.Dense(1)
    params = layer.init(jax.random.PRNGKey(0), x)
    optimizer = optax.adam(0.1)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        gradient = jax.grad(lambda p: jnp.mean((layer.apply(p, x) - y) ** 2))(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    for _ in range(300):
        params, state = step(params, state)
    np.testing.assert_allclose(float(params["params"]["kernel"][0, 0]), 3.0, atol=1e-2)
    return "slope 3 found"


@proof
def neuralforecast_fit() -> str:
    """NeuralForecast trains a linear model on a sine and beats the mean of the series."""
    import pandas as pd
    from neuralforecast import NeuralForecast
    from neuralforecast.models import NLinear

    t = np.arange(240)
    frame = pd.DataFrame(
        {"unique_id": "a", "ds": pd.date_range("2020", periods=240, freq="D"), "y": np.sin(2 * np.pi * t / 12)}
    )
    model = NLinear(
        h=12, input_size=24, max_steps=150, learning_rate=1e-2, random_seed=1, accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    nf = NeuralForecast(models=[model], freq="D")
    nf.fit(df=frame.iloc[:-12])
    forecast = nf.predict()["NLinear"].to_numpy()
    error = float(np.abs(forecast - frame["y"].to_numpy()[-12:]).mean())
    assert error < 0.3, error  # the mean of the series errs by 0.62
    return f"mean absolute error {error:.3f}"


@proof
def statsmodels_fit() -> str:
    """An autoregression finds its coefficient."""
    from statsmodels.tsa.ar_model import AutoReg

    noise = np.random.default_rng(0).normal(size=2000)
    y = np.zeros(2000)
    for i in range(1, 2000):
        y[i] = 0.7 * y[i - 1] + noise[i]
    found = float(AutoReg(y, lags=1).fit().params[1])
    assert abs(found - 0.7) < 0.05
    return f"0.7 found as {found:.3f}"


@proof
def neighbours() -> str:
    """faiss and scikit-learn find the same nearest neighbours as a brute force."""
    import faiss
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(0)
    x, q = rng.normal(size=(500, 16)).astype(np.float32), rng.normal(size=(20, 16)).astype(np.float32)
    exact = ((q[:, None].astype(float) - x[None]) ** 2).sum(-1).argsort(1)[:, :5]
    index = faiss.IndexFlatL2(16)
    index.add(x)
    np.testing.assert_array_equal(index.search(q, 5)[1], exact)
    np.testing.assert_array_equal(NearestNeighbors(n_neighbors=5).fit(x).kneighbors(q, return_distance=False), exact)
    return "5 neighbours of 20 points among 500"


@proof
def triton_interpreter() -> str:
    """A Triton kernel runs in the interpreter on CPU tensors."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import triton
    import triton.language as tl

    # The interpreter reads the kernel's names from the module, not from this function.
    globals().update(triton=triton, tl=tl)

    @triton.jit
    def scaled_sum(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, 2 * x + y, mask=mask)

    x, y = torch.randn(100), torch.randn(100)
    out = torch.empty(100)
    scaled_sum[(triton.cdiv(100, 32),)](x, y, out, 100, BLOCK=32)
    torch.testing.assert_close(out, 2 * x + y)
    return "2x + y over four programs"


def main(chosen: list[str]) -> int:
    """Run the proofs one after another; 0 when all hold."""
    unknown = [name for name in chosen if name not in PROOFS]
    if unknown:
        print(f"prove_stack: expected names among {', '.join(PROOFS)}, got {', '.join(unknown)}")
        return 2
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "MUJOCO_GL": "disable",
    }
    failed = 0
    for name in chosen or PROOFS:
        begin = time.monotonic()
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        lines = done.stdout.strip().splitlines()
        found = lines[-1] if done.returncode == 0 and lines else "FAILED"
        print(f"{name:<20} {time.monotonic() - begin:5.1f} s  {found}", flush=True)
        if done.returncode:
            failed += 1
            print((done.stdout + done.stderr)[-3000:])
    total = len(chosen or PROOFS)
    print(f"{total - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(PROOFS[sys.argv[2]]())
    else:
        sys.exit(main(sys.argv[1:]))

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# the tests compile some hundred small programs and run each a few times: compiling fast matters, running fast does not
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)

import jax
import numpy as np
import pytest


def random_checkpoint(robot="go1", arch="mlp", critic_arch="mlp_ln", kind="categorical", width=24, seed=0, **meta):
    """An untrained checkpoint: right shapes, arbitrary weights."""
    from neurips26.tempo import networks
    from neurips26.tempo.checkpoint import SIZES, Checkpoint, Meta

    d, nu, _ = SIZES[robot]
    info = Meta(robot=robot, arch=arch, critic_arch=critic_arch, critic_kind=kind, atoms=21, q_scale=0.1, **meta)
    keys = jax.random.split(jax.random.key(seed), 3)
    out = {"categorical": 21, "gaussian": 2, "scalar": 1}[kind]
    actor = networks.get(arch).init(keys[0], d, width, 2, nu, 0.5)
    critics = [networks.get(critic_arch).init(k, d + nu, width, 2, out, 1.0) for k in keys[1:]]
    plain = jax.tree.map(np.asarray, (actor, critics))
    return Checkpoint(info, *plain, np.zeros(d, np.float32), np.ones(d, np.float32))


@pytest.fixture(scope="session")
def ckpt():
    return random_checkpoint()


@pytest.fixture(scope="session")
def make_checkpoint():
    return random_checkpoint

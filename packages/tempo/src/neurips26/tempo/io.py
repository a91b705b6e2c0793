"""Checkpoints of other libraries: FastTD3 (MLP and SimbaV2), RSL-RL-style PyTorch actors, Brax SAC.

Weights are only rearranged: PyTorch stores a layer as (outputs, inputs), this package as (inputs, outputs). The robot's
observation order must be Playground's; an asymmetric critic is refused, because its privileged observation does not
exist on a robot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .checkpoint import SIZES, Checkpoint, CheckpointError, Meta

__all__ = ["from_brax", "from_fasttd3", "from_torch"]

Tensors = Mapping[str, Any]
#: what a SimbaV2 network of FastTD3 is made with, behind `actor_` or `critic_`
SCALERS = ("scaler_init", "scaler_scale", "alpha_init", "alpha_scale")


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value, np.float32)


def _read(source: str | Path | Tensors) -> Tensors:
    """A dictionary as it is, or a `.pt` file read without running code in it."""
    if isinstance(source, Mapping):
        return source
    try:
        import torch
    except ImportError as error:
        raise ImportError("reading a .pt file needs PyTorch: pip install 'neurips26-tempo[torch]'") from error
    try:
        return torch.load(Path(source), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise CheckpointError(f"{Path(source).name}: not a PyTorch file of plain tensors ({error})") from error


def _part(source: Tensors, name: str) -> Tensors:
    if name not in source:
        raise CheckpointError(f"{name}: missing; found {', '.join(map(str, source)) or 'nothing'}")
    return source[name]


def _dense(state: Tensors, *prefixes: str) -> list[dict[str, np.ndarray]]:
    """The linear layers under the prefixes, in the order of their numbers."""
    layers = []
    for prefix in prefixes:
        pattern = re.compile(re.escape(prefix) + r"\.(\d+)\.weight$")
        found = sorted((int(m.group(1)), k) for k in state if (m := pattern.match(k)) and _numpy(state[k]).ndim == 2)
        if not found:
            raise CheckpointError(
                f"{prefix}: expected linear layers {prefix}.<n>.weight, found {', '.join(state)[:200]}"
            )
        layers += [{"w": _numpy(state[k]).T, "b": _numpy(state[k[: -len("weight")] + "bias"])} for _, k in found]
    return layers


def _simbav2(state: Tensors, prefix: str, who: str, factors: Mapping[str, Any]) -> dict[str, Any]:
    """The SimbaV2 body under `prefix`: a Scaler multiplies by its parameter times init / scale, which is folded into one
    vector.

    `factors` has those of `<who>_...` of `SCALERS` that are not FastTD3's defaults.
    """

    def tensor(name: str) -> np.ndarray:
        if prefix + name not in state:
            raise CheckpointError(f"{prefix}{name}: missing; is this a SimbaV2 checkpoint?")
        return _numpy(state[prefix + name])

    def kernel(name: str) -> np.ndarray:
        w = tensor(f"{name}.w.weight").T
        return w / np.maximum(np.linalg.norm(w, axis=0), 1e-8)

    def scaler(name: str, factor: float = 1.0) -> np.ndarray:
        return tensor(f"{name}.scaler") * factor

    def quotient(kind: str, start: float, scale: float) -> float:
        return factors.get(f"{who}_{kind}_init", start) / factors.get(f"{who}_{kind}_scale", scale)

    pattern = re.compile(re.escape(prefix) + r"encoder\.(\d+)\.")
    blocks = sorted({int(m.group(1)) for k in state if (m := pattern.match(k))})
    width = scaler("embedder.scaler").size
    features = quotient("scaler", np.sqrt(2 / width), np.sqrt(2 / width))
    mix = quotient("alpha", 1 / (len(blocks) + 1), 1 / np.sqrt(width))
    head = "mean_" if f"{prefix}predictor.mean_w1.w.weight" in state else ""
    bias = tensor(f"predictor.{head}bias")
    return {
        "hyper_embed": kernel("embedder.w"),
        "embed_scale": scaler("embedder.scaler", features),
        "blocks": [
            {
                "hyper_up": kernel(f"encoder.{k}.mlp.w1"),
                "scale": scaler(f"encoder.{k}.mlp.scaler", features),
                "hyper_down": kernel(f"encoder.{k}.mlp.w2"),
                "mix": scaler(f"encoder.{k}.alpha_scaler", mix),
            }
            for k in blocks
        ],
        "hyper_head": kernel(f"predictor.{head}w1"),
        "head_scale": scaler(f"predictor.{head}scaler"),
        "hyper_out": kernel(f"predictor.{head}w2"),
        "out_scale": np.full(len(bias), 0.25, np.float32),  # the network multiplies by 4
        "bias": bias,
    }


def _support(qnet: Tensors, args: Mapping[str, Any], v_min: float | None, v_max: float | None) -> tuple[float, float]:
    """Ends of the critic's support: what is passed wins over the file's atoms, and those over its `args`."""
    stored = args.get("v_min"), args.get("v_max")
    if "q_support" in qnet:
        atoms = _numpy(qnet["q_support"])
        stored = float(atoms[0]), float(atoms[-1])
    low, high = (given if given is not None else found for given, found in zip((v_min, v_max), stored, strict=True))
    if low is None or high is None:
        raise CheckpointError("v_min: expected the critic's support in the file or as an argument, found neither")
    return float(low), float(high)


def _normaliser(state: Tensors | None, size: int, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of an empirical normaliser (x - mean) / (std + eps)."""
    if not state:
        return np.zeros(size, np.float32), np.ones(size, np.float32)
    for mean, std in (("_mean", "_std"), ("mean", "std")):
        if mean in state and std in state:
            return _numpy(state[mean]).reshape(-1), _numpy(state[std]).reshape(-1) + np.float32(eps)
    raise CheckpointError(f"obs_normalizer_state: expected _mean and _std, found {', '.join(state)}")


def from_fasttd3(
    source: str | Path | Tensors,
    robot: str,
    *,
    v_min: float | None = None,
    v_max: float | None = None,
    discount: float | None = None,
    q_scale: float = 1.0,
    normalizer_eps: float = 1e-2,
    **scalers: float,
) -> Checkpoint:
    """A FastTD3 checkpoint (`.pt`, or its dictionary): actor, distributional twin critic, observation normaliser.

    MLP and SimbaV2 checkpoints are told apart by their keys. What the file's `args` say wins over nothing, and what is
    passed here wins over `args`.

    Args:
        source: file or dictionary with `actor_state_dict`, `qnet_state_dict`, `obs_normalizer_state` and `args`.
        robot: "go1", "go2" or "g1".
        v_min, v_max: ends of the critic's support.
        discount: gamma.
        q_scale: standard deviation of the critic's mean over nominal roll-outs, if you know it.
        normalizer_eps: added to the standard deviation by FastTD3's normaliser.
        scalers: SimbaV2's `scaler_init`, `scaler_scale`, `alpha_init`, `alpha_scale` of actor (`actor_...`) and critic
            (`critic_...`), where they are not FastTD3's defaults.

    Raises:
        CheckpointError: a part is missing or does not fit the robot; nothing half-loaded is returned.
    """
    if robot not in SIZES:
        raise CheckpointError(f"robot: expected one of {', '.join(SIZES)}, got {robot!r}")
    data = _read(source)
    actor, qnet = _part(data, "actor_state_dict"), _part(data, "qnet_state_dict")
    args = dict(data.get("args") or {})
    unknown = scalers.keys() - {f"{who}_{kind}" for who in ("actor", "critic") for kind in SCALERS}
    if unknown:
        raise TypeError(f"scalers: expected actor_... or critic_... with {', '.join(SCALERS)}, got {min(unknown)}")
    low, high = _support(qnet, args, v_min, v_max)
    if "embedder.w.w.weight" in actor:
        arch, factors = "simbav2", args | scalers
        tree, twins = (
            _simbav2(actor, "", "actor", factors),
            [_simbav2(qnet, f"qnet{i}.", "critic", factors) for i in (1, 2)],
        )
        inputs, atoms = twins[0]["hyper_embed"].shape[0] - 1, twins[0]["bias"].size
    else:
        arch = "mlp_relu"
        tree, twins = _dense(actor, "net", "fc_mu"), [_dense(qnet, f"qnet{i}.net") for i in (1, 2)]
        inputs, atoms = twins[0][0]["w"].shape[0], twins[0][-1]["b"].size
    d, nu, _ = SIZES[robot]
    if inputs != d + nu:
        raise CheckpointError(
            f"qnet: expected a critic of {robot}'s onboard observation and action ({d} + {nu} inputs), got {inputs}; "
            "an asymmetric critic needs privileged state, which the robot does not have"
        )
    mean, std = _normaliser(data.get("obs_normalizer_state"), d, normalizer_eps)
    meta = Meta(
        robot=robot,
        arch=arch,
        critic_arch=arch,
        v_min=low,
        v_max=high,
        atoms=int(atoms),
        q_scale=q_scale,
        discount=float(discount if discount is not None else args.get("gamma", 0.97)),
        status="imported from FastTD3; gates not checked",
        card={"algorithm": "FastTD3", "steps": int(data.get("global_step", 0) or 0)},
    )
    return Checkpoint(meta, tree, twins, mean, std)


def from_torch(
    actor: str | Path | Tensors,
    robot: str,
    like: Checkpoint,
    *,
    prefix: str = "actor",
    activation: str = "elu",
    normalizer: Tensors | None = None,
    normalizer_eps: float = 1e-2,
) -> Checkpoint:
    """A PyTorch actor (RSL-RL's `model_state_dict`, or any `nn.Sequential` of linear layers) beside the critic of `like`.

    The actor's output is taken as the pre-tanh action: a policy that was trained without the squashing must be fitted
    again. The critic was fitted to another actor, so the card says that the gates have not been checked: fit one with
    `critic.fit` before you adapt.

    Args:
        actor: file or dictionary, with or without a `model_state_dict` around it.
        like: checkpoint whose critic is taken.
        prefix: name of the `nn.Sequential`.
        activation: "relu", "elu" or "silu".
        normalizer: state of an empirical normaliser; by default that of `like`.
    """
    names = {"relu": "mlp_relu", "elu": "mlp_elu", "silu": "mlp"}
    if activation not in names:
        raise CheckpointError(f"activation: expected one of {', '.join(names)}, got {activation!r}")
    if like.meta.robot != robot:
        raise CheckpointError(f"like: expected a checkpoint of {robot}, got one of {like.meta.robot}")
    data = _read(actor)
    layers = _dense(data.get("model_state_dict", data), prefix)
    same = normalizer is None
    mean, std = (like.mean, like.std) if same else _normaliser(normalizer, like.obs_size, normalizer_eps)
    if not same and not (np.allclose(mean, like.mean) and np.allclose(std, like.std)):
        raise CheckpointError(
            "normalizer: the critic of `like` was trained under another one; fit a critic to this actor with critic.fit"
        )
    meta = Meta(
        **{
            **{k: getattr(like.meta, k) for k in like.meta.__dataclass_fields__},
            "arch": names[activation],
            "status": "actor imported from PyTorch; gates not checked",
            "card": {"algorithm": "PyTorch actor", "steps": 0},
        }
    )
    return Checkpoint(meta, layers, like.critics, mean, std)


def _flax_layers(params: Mapping[str, Any], name: str) -> list[dict[str, np.ndarray]]:
    keys = sorted((k for k in params if re.fullmatch(r"hidden_\d+", k)), key=lambda k: int(k[7:]))
    if not keys:
        raise CheckpointError(f"{name}: expected layers hidden_0, hidden_1, ..., found {', '.join(params)}")
    if len(keys) != len(params):
        raise CheckpointError(f"{name}: layer normalisation of brax networks is not supported")
    return [{"w": _numpy(params[k]["kernel"]), "b": _numpy(params[k]["bias"])} for k in keys]


def from_brax(
    normalizer_params: Any,
    policy_params: Any,
    q_params: Any,
    robot: str,
    *,
    discount: float = 0.97,
    q_scale: float = 1.0,
) -> Checkpoint:
    """Brax SAC: `(normalizer_params, policy_params)` as `train` returns them, and the Q parameters of its state.

    The critic is scalar, so it has no entropy: adapt with `entropy_coef=0` (methods "naive", "uniform", "memory"), or
    fit a distributional one with `critic.fit`. The tanh-Gaussian's mean action is adapted.
    """
    if robot not in SIZES:
        raise CheckpointError(f"robot: expected one of {', '.join(SIZES)}, got {robot!r}")
    d, nu, _ = SIZES[robot]
    field = lambda k: normalizer_params[k] if isinstance(normalizer_params, Mapping) else getattr(normalizer_params, k)  # noqa: E731
    mean, std = field("mean"), field("std")
    if isinstance(mean, Mapping):
        mean, std = mean["state"], std["state"]
    actor = _flax_layers(policy_params["params"], "policy_params")
    if actor[-1]["b"].size != 2 * nu:
        raise CheckpointError(
            f"policy_params: expected {2 * nu} outputs (mean and deviation of {nu} motors), got {actor[-1]['b'].size}"
        )
    actor[-1] = {"w": actor[-1]["w"][:, :nu], "b": actor[-1]["b"][:nu]}
    bodies = q_params["params"]
    critics = [_flax_layers(bodies[k], f"q_params {k}") for k in sorted(bodies)]
    meta = Meta(
        robot=robot,
        arch="mlp_relu",
        critic_arch="mlp_relu",
        critic_kind="scalar",
        q_scale=q_scale,
        discount=discount,
        status="imported from brax; gates not checked",
        card={"algorithm": "brax SAC", "steps": 0},
    )
    plain = jax.tree.map(np.asarray, (actor, critics[:2]))
    return Checkpoint(meta, *plain, _numpy(mean).reshape(-1), _numpy(std).reshape(-1))

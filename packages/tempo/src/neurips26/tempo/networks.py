"""Actor and critic architectures as pure functions over plain pytrees.

An architecture is a triple (init, apply, project) for a body with one output layer; `register` adds one. Actors give
pre-tanh actions, critics twin logits. `project` re-imposes an architecture's invariants on its parameters and must
follow every parameter update; only `simbav2` has any: unit-norm weight columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neurips26.shared.arrays import check_choice

__all__ = ["ARCHITECTURES", "Architecture", "count", "mlp_apply", "mlp_init", "mlp_numpy", "register"]

Params = Any


class Architecture(NamedTuple):
    """init(key, inputs, width, depth, outputs, last_scale) -> params; apply(params, x) -> outputs;
    project(params) -> params."""

    init: Callable[..., Params]
    apply: Callable[[Params, jax.Array], jax.Array]
    project: Callable[[Params], Params]


ARCHITECTURES: dict[str, Architecture] = {}


def register(name: str, init: Callable, apply: Callable, project: Callable = lambda p: p) -> None:
    """Adds an architecture under `name`."""
    if name in ARCHITECTURES:
        raise ValueError(f"name: {name!r} is already registered")
    ARCHITECTURES[name] = Architecture(init, apply, project)


def get(name: str) -> Architecture:
    return ARCHITECTURES[check_choice(name, "arch", ARCHITECTURES)]


def count(params: Params) -> int:
    """Number of parameters."""
    return sum(int(np.prod(np.shape(x))) for x in jax.tree.leaves(params))


def _dense(key: jax.Array, n: int, m: int, scale: float = 1.0) -> dict[str, jax.Array]:
    limit = scale * np.sqrt(3.0 / n)
    return {"w": jax.random.uniform(key, (n, m), minval=-limit, maxval=limit), "b": jnp.zeros(m)}


def _layer_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale + shift


# -- mlp: dense layers with SiLU --------------------------------------------------------------------------------------------


def mlp_init(key: jax.Array, sizes: tuple[int, ...], last_scale: float = 1.0) -> list[dict[str, jax.Array]]:
    """Dense layers with LeCun-uniform weights and zero biases; the last layer's weights are multiplied by
    `last_scale`."""
    keys, last = jax.random.split(key, len(sizes) - 1), len(sizes) - 2
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [_dense(k, n, m, last_scale if i == last else 1.0) for i, (k, n, m) in enumerate(pairs)]


def mlp_apply(layers: Params, x: jax.Array, activation: Callable[[jax.Array], jax.Array] = jax.nn.silu) -> jax.Array:
    """Dense layers with SiLU, or another activation, between them."""
    for layer in layers[:-1]:
        x = activation(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def mlp_numpy(layers: Params, x: np.ndarray) -> np.ndarray:
    """`mlp_apply` in NumPy, for loops that must not touch the accelerator queue."""
    for layer in layers[:-1]:
        x = x @ layer["w"] + layer["b"]
        x = x * (0.5 * np.tanh(0.5 * x) + 0.5)
    return x @ layers[-1]["w"] + layers[-1]["b"]


def _mlp_shape(key: jax.Array, n: int, width: int, depth: int, out: int, last_scale: float = 1.0) -> Params:
    return mlp_init(key, (n, *[width] * depth, out), last_scale)


register("mlp", _mlp_shape, mlp_apply)
# what other libraries train: FastTD3 and brax' SAC use ReLU, RSL-RL uses ELU
register("mlp_relu", _mlp_shape, partial(mlp_apply, activation=jax.nn.relu))
register("mlp_elu", _mlp_shape, partial(mlp_apply, activation=jax.nn.elu))


# -- mlp_ln: LayerNorm after every dense layer, the critic of the house ------------------------------------------------------


def _mlp_ln_init(key: jax.Array, n: int, width: int, depth: int, out: int, last_scale: float = 1.0) -> Params:
    keys = jax.random.split(key, depth + 1)
    layers = []
    for k in keys[:-1]:
        layers.append(_dense(k, n, width) | {"scale": jnp.ones(width), "shift": jnp.zeros(width)})
        n = width
    return [*layers, _dense(keys[-1], n, out, last_scale)]


def _mlp_ln_apply(layers: Params, x: jax.Array) -> jax.Array:
    for p in layers[:-1]:
        x = jax.nn.silu(_layer_norm(x @ p["w"] + p["b"], p["scale"], p["shift"]))
    return x @ layers[-1]["w"] + layers[-1]["b"]


register("mlp_ln", _mlp_ln_init, _mlp_ln_apply)


# -- simba (Lee et al. 2025): pre-LayerNorm residual blocks ------------------------------------------------------------------


def _simba_init(key: jax.Array, n: int, width: int, depth: int, out: int, last_scale: float = 1.0) -> Params:
    keys = jax.random.split(key, 2 * depth + 2)
    blocks = [
        {
            "norm": {"scale": jnp.ones(width), "shift": jnp.zeros(width)},
            "up": _dense(keys[2 * i], width, 4 * width),
            "down": _dense(keys[2 * i + 1], 4 * width, width),
        }
        for i in range(depth)
    ]
    return {
        "embed": _dense(keys[-2], n, width),
        "blocks": blocks,
        "norm": {"scale": jnp.ones(width), "shift": jnp.zeros(width)},
        "out": _dense(keys[-1], width, out, last_scale),
    }


def _simba_apply(p: Params, x: jax.Array) -> jax.Array:
    x = x @ p["embed"]["w"] + p["embed"]["b"]
    for block in p["blocks"]:
        h = _layer_norm(x, **block["norm"])
        h = jax.nn.relu(h @ block["up"]["w"] + block["up"]["b"])
        x = x + h @ block["down"]["w"] + block["down"]["b"]
    return _layer_norm(x, **p["norm"]) @ p["out"]["w"] + p["out"]["b"]


register("simba", _simba_init, _simba_apply)


# -- simbav2 (Lee et al. 2025): weights and features on the unit sphere ------------------------------------------------------

SHIFT = 3.0  # constant appended to the input before it is put on the sphere (c_shift in the paper)


def _unit(x: jax.Array, axis: int = -1) -> jax.Array:
    return x / jnp.maximum(jnp.linalg.norm(x, axis=axis, keepdims=True), 1e-8)


def _hyper(key: jax.Array, n: int, m: int) -> jax.Array:
    """A HyperDense kernel: no bias, every column of unit length."""
    return _unit(jax.random.normal(key, (n, m)), axis=0)


def _simbav2_init(key: jax.Array, n: int, width: int, depth: int, out: int, last_scale: float = 1.0) -> Params:
    keys = jax.random.split(key, 2 * depth + 3)
    blocks = [
        {
            "hyper_up": _hyper(keys[2 * i], width, 4 * width),
            "scale": jnp.full(4 * width, np.sqrt(2.0 / (4 * width)) * np.sqrt(4 * width)),
            "hyper_down": _hyper(keys[2 * i + 1], 4 * width, width),
            "mix": jnp.full(width, 1.0 / (depth + 1)),
        }
        for i in range(depth)
    ]
    return {
        "hyper_embed": _hyper(keys[-3], n + 1, width),
        "embed_scale": jnp.full(width, np.sqrt(2.0)),
        "blocks": blocks,
        "hyper_head": _hyper(keys[-2], width, width),
        "head_scale": jnp.ones(width),
        "hyper_out": _hyper(keys[-1], width, out),
        "out_scale": jnp.full(out, last_scale * np.sqrt(width) / 4),
        "bias": jnp.zeros(out),
    }


def _simbav2_apply(p: Params, x: jax.Array) -> jax.Array:
    x = _unit(jnp.concatenate([x, jnp.full((*x.shape[:-1], 1), SHIFT)], -1))
    x = _unit((x @ p["hyper_embed"]) * p["embed_scale"])
    for block in p["blocks"]:
        h = jax.nn.relu((x @ block["hyper_up"]) * block["scale"])
        h = _unit(h @ block["hyper_down"])
        x = _unit(x + block["mix"] * (h - x))  # LERP, then back on the sphere
    x = (x @ p["hyper_head"]) * p["head_scale"]
    return (x @ p["hyper_out"]) * p["out_scale"] * 4 + p["bias"]


def _simbav2_project(p: Params) -> Params:
    """Every HyperDense column back to unit length."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: _unit(x, axis=0) if any("hyper_" in str(getattr(k, "key", "")) for k in path) else x, p
    )


register("simbav2", _simbav2_init, _simbav2_apply, _simbav2_project)

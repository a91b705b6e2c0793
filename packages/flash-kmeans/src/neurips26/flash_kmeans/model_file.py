"""A fitted model as one safetensors file with the settings as JSON in its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from neurips26.shared.runs import atomic_write_bytes

__all__ = ["read_model", "write_model"]

FORMAT = "flash-kmeans-model-1"


def write_model(path: str | Path, model: Any) -> None:
    """Write atomically; settings that are no JSON (arrays, functions, process groups) are left out."""
    settings = {
        name: value
        for name, value in model.get_params().items()
        if isinstance(value, (str, int, float, bool, type(None)))
    }
    fitted = {
        "inertia": float(model.inertia_),
        "n_iter": int(model.n_iter_),
        "history": [float(h) for h in model.history_],
        "path": model.path_,
    }
    meta = {"format": FORMAT, "settings": json.dumps(settings), "fitted": json.dumps(fitted)}
    atomic_write_bytes(path, save({"cluster_centers": np.ascontiguousarray(model.cluster_centers_)}, meta))


def read_model(path: str | Path, cls: Any) -> Any:
    """Read a model; `labels_` are not part of the file (`predict` gives them).

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a model file.
    """
    raw = Path(path).read_bytes()
    try:
        meta = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']!r}")
        centres, settings, fitted = (
            load(raw)["cluster_centers"],
            json.loads(meta["settings"]),
            json.loads(meta["fitted"]),
        )
    except Exception as error:
        raise ValueError(f"path: {path} is not a flash-kmeans model ({error})") from error
    model = cls(**settings)
    model.cluster_centers_, model.n_features_in_ = centres, centres.shape[1]
    model.inertia_, model.n_iter_ = fitted["inertia"], fitted["n_iter"]
    model.history_, model.path_ = fitted["history"], fitted["path"]
    model._n_features_out = len(centres)
    return model

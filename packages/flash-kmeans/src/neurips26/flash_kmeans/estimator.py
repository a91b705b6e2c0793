"""The scikit-learn estimator."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.metrics import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from neurips26.flash_kmeans.arguments import METRICS, check_weights
from neurips26.flash_kmeans.assign import assign, inertia
from neurips26.flash_kmeans.fit import kmeans
from neurips26.flash_kmeans.loop import ConvergenceWarning
from neurips26.shared.arrays import check_choice, check_int

__all__ = ["KMeans"]


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Exact k-means with the interface of `sklearn.cluster.KMeans`.

    Parameters are those of `kmeans`, under scikit-learn's names: `n_clusters` is its `k`, `random_state` its `seed`. With
    `n_init="auto"` one run is made from `"k-means++"`, `"k-means||"` or an array, and ten from `"random"` or a function.

    Attributes:
        cluster_centers_: `(n_clusters, n_features)`.
        labels_: `(n_samples,)`, the same as `predict(X)` gives.
        inertia_: sum of (weighted) squared distances to the nearest centre.
        n_iter_: iterations done.
        n_features_in_: features seen in `fit`.
        history_: inertia at the start of each iteration.
        path_: which kernels ran.
    """

    def __init__(
        self, n_clusters: Any = 8, *, init: Any = "k-means++", n_init: Any = "auto", max_iter: Any = 300, tol: Any = 1e-4,
        metric: Any = "euclidean", precision: Any = "certified", empty: Any = "relocate", deterministic: Any = True,
        device: Any = None, dtype: Any = None, chunk_rows: Any = None, memory_limit: Any = None, random_state: Any = None,
        verbose: Any = 0, process_group: Any = None,
    ) -> None:  # fmt: skip
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.metric = metric
        self.precision = precision
        self.empty = empty
        self.deterministic = deterministic
        self.device = device
        self.dtype = dtype
        self.chunk_rows = chunk_rows
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose
        self.process_group = process_group

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Cluster `X` `(n_samples, n_features)`; `y` is ignored."""
        x = self._validated(X, reset=True)
        weights = check_weights(sample_weight, len(x), "sample_weight")
        check_int(self.n_clusters, "n_clusters", minimum=1)
        if self.process_group is None and self.n_clusters > len(x):
            raise ValueError(f"n_clusters: expected at most n_samples={len(x)}, got n_clusters={self.n_clusters}")
        if self.n_init == "auto":
            runs = 10 if callable(self.init) or (isinstance(self.init, str) and self.init == "random") else 1
        else:
            runs = check_int(self.n_init, "n_init", minimum=1)
        generator = np.random.default_rng(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = kmeans(
                x, self.n_clusters, weights=weights, init=self.init, n_init=runs, max_iter=self.max_iter, tol=self.tol,
                metric=self.metric, precision=self.precision, empty=self.empty, deterministic=self.deterministic,
                device=self.device, chunk_rows=self.chunk_rows, memory_limit=self.memory_limit, seed=generator,
                process_group=self.process_group, verbose=self.verbose,
            )  # fmt: skip
        for warning in caught:
            category = (
                SklearnConvergenceWarning if issubclass(warning.category, ConvergenceWarning) else warning.category
            )
            warnings.warn(str(warning.message), category, stacklevel=2)
        self.cluster_centers_ = np.asarray(result.centroids)
        self.labels_ = np.asarray(result.labels)
        self.inertia_ = result.inertia
        self.n_iter_ = result.n_iter
        self.history_ = result.history
        self.path_ = result.path
        self._n_features_out = len(self.cluster_centers_)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """`fit(X).labels_`."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def predict(self, X: Any) -> np.ndarray:
        """Nearest centre of each row."""
        check_is_fitted(self)
        return np.asarray(
            assign(self._validated(X, reset=False), self.cluster_centers_, metric=self.metric, precision=self.precision)
        )

    def transform(self, X: Any) -> np.ndarray:
        """Distance to every centre (cosine: `1 - cos`), `(n_samples, n_clusters)`."""
        check_is_fitted(self)
        x = self._validated(X, reset=False)
        if self.metric == "cosine":
            length = np.linalg.norm(x, axis=1, keepdims=True)
            centres = self.cluster_centers_ / np.linalg.norm(self.cluster_centers_, axis=1, keepdims=True)
            return 1 - (x / np.where(length > 0, length, 1)) @ centres.T
        return euclidean_distances(x, self.cluster_centers_)

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """`fit(X).transform(X)`."""
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the inertia of `X`."""
        check_is_fitted(self)
        return -inertia(
            self._validated(X, reset=False), self.cluster_centers_, weights=sample_weight, metric=self.metric
        )

    def save(self, path: str | Path) -> None:
        """Write centres and settings to one safetensors file (settings are JSON in its header)."""
        check_is_fitted(self)
        from neurips26.flash_kmeans.model_file import write_model

        write_model(path, self)

    @classmethod
    def load(cls, path: str | Path) -> KMeans:
        """Read what `save` wrote."""
        from neurips26.flash_kmeans.model_file import read_model

        return read_model(path, cls)

    def _validated(self, X: Any, *, reset: bool) -> np.ndarray:
        check_choice(self.metric, "metric", METRICS)
        if isinstance(X, np.memmap) and X.dtype in (np.float32, np.float64) and X.ndim == 2 and reset:
            self.n_features_in_ = X.shape[1]
            return X
        wanted = [np.float64, np.float32] if self.dtype is None else np.dtype(self.dtype)
        return validate_data(self, X, dtype=wanted, reset=reset, accept_large_sparse=False)

    def __sklearn_tags__(self):
        """Input types as scikit-learn wants them declared."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

"""The scikit-learn contract, equivariances, inputs that cannot be served."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from neurips26.subset_of_signals import OneScaleWarning, SubsetOfSignalsRegressor, simulate


@parametrize_with_checks(
    [SubsetOfSignalsRegressor(method=m) for m in ("npmle", "lad", "truncation", "trimming", "tukey", "huber")]
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)

"""The scikit-learn contract, equivariances, inputs that cannot be served."""

import warnings

from sklearn.utils.estimator_checks import parametrize_with_checks

from neurips26.subset_of_signals import SubsetOfSignalsRegressor


@parametrize_with_checks(
    [SubsetOfSignalsRegressor(method=m) for m in ("npmle", "lad", "truncation", "trimming", "tukey", "huber")]
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)

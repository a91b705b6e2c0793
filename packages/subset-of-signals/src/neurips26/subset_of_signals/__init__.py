"""Linear regression from a subset of signals: most sources are bad and nobody says which.

Rebuilt from the abstract, which names no algorithm: the estimators here are polynomial-time ones that attain its rate.
"""

from neurips26.subset_of_signals import bounds, simulate
from neurips26.subset_of_signals.inference import bootstrap_covariance, lad_covariance
from neurips26.subset_of_signals.lad import Certificate, LADResult, lad
from neurips26.subset_of_signals.npmle import NPMLEResult, npmle
from neurips26.subset_of_signals.regressor import OneScaleWarning, SubsetOfSignalsRegressor

__all__ = [
    "Certificate",
    "LADResult",
    "NPMLEResult",
    "OneScaleWarning",
    "SubsetOfSignalsRegressor",
    "bootstrap_covariance",
    "bounds",
    "lad",
    "lad_covariance",
    "npmle",
    "simulate",
]

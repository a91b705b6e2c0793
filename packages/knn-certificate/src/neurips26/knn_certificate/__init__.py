"""Certificates of a classifier's test error from the k-NN geometry of its last layer.

Rebuilt from the abstract: it gives the three terms, the theorems that bound them here are our own arrangement.
"""

from neurips26.knn_certificate import bounds
from neurips26.knn_certificate.adapters import lightning_train_fn, trainer_train_fn
from neurips26.knn_certificate.blocked import certify_arrays
from neurips26.knn_certificate.certificate import Certificate, Term, verify
from neurips26.knn_certificate.certify import certify
from neurips26.knn_certificate.features import extract_features
from neurips26.knn_certificate.heads import certify_features
from neurips26.knn_certificate.knn import KNNDecoder

__all__ = [
    "Certificate",
    "KNNDecoder",
    "Term",
    "bounds",
    "certify",
    "certify_arrays",
    "certify_features",
    "extract_features",
    "lightning_train_fn",
    "trainer_train_fn",
    "verify",
]

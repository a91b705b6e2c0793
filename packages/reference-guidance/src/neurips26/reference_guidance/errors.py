"""The errors this package raises besides ``ValueError`` and ``TypeError``; each is a ``ValueError`` too."""

from __future__ import annotations

__all__ = ["BankCorruptError", "BankMismatchError", "CheckpointError", "EmptyBankError", "ImageError"]
__all__ += ["UnknownLayoutError", "UnsupportedSchedulerError"]


class EmptyBankError(ValueError):
    """A bank (or what a mask leaves of it) holds no reference."""


class BankMismatchError(ValueError):
    """A bank does not belong to this pipeline: other VAE, layout, shape or device."""


class BankCorruptError(ValueError):
    """A bank file is truncated or altered."""


class CheckpointError(ValueError):
    """A training checkpoint cannot be read."""


class ImageError(ValueError):
    """An image cannot be read or holds unusable numbers."""


class UnknownLayoutError(ValueError):
    """No latent layout is registered for a pipeline class."""


class UnsupportedSchedulerError(ValueError):
    """Reference guidance is not defined for this scheduler."""

"""Every choice that the abstract does not settle, in one place, with its alternatives."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Choices"]


@dataclass(frozen=True)
class Choices:
    """Defaults of :class:`neurips26.frank_lora.method.FrankLoRA`.

    The two most consequential, resampling and the learning-rate rule, are varied in the record (claims
    ``resampling-matters`` and ``rank-dependent-rates``).
    """

    a_init: str = "gaussian"  # distribution of A's entries; "rademacher", "kaiming" (uniform), "orthogonal" (rows)
    resample_every: int = 1  # rounds that one A lives (T_A); 0: for ever
    common_a: bool = False  # one A for all clients instead of one each (then clients' noise does not average out)
    normalize: bool = True  # E[A^T A] = I; False leaves PEFT's variance 1/(3n), whose step depends on the rank
    # "auto": what the optimizer calls for, "linear" under SGD (the abstract) and "sqrt" under Adam; "snr": each module's exact
    # optimum under SGD, r / (r + n + 1); "none": one rate for all ranks
    lr_scaling: str = "auto"
    r_ref: float | None = None  # rank at which the learning rate is the configured one; None: the median of the ranks
    lr_max: float | None = None  # cap of a client's rate; None: no cap
    debias: bool = (
        False  # weigh clients by 1 / rate as well: large ranks then do not pull the mean towards themselves; no lr_max
    )
    server_lr: float = 1.0  # step of the server along the averaged update

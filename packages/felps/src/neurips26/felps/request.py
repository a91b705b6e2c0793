"""What a client asks for: one request of one adapter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BASE = 0
"""Adapter id of the bare base model: always resident, needs no slot, costs no load."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation request ``r = (a, t_r, n_r, m_r)``.

    Attributes:
        id: unique key.
        adapter: adapter id ``a``; ``0`` is the base model.
        arrival: arrival time ``t_r`` in seconds.
        prompt_tokens: prompt length ``n_r``, at least 1.
        output_tokens: true output length ``m_r``; known to engines and to the ``oracle`` estimator only
            (``None`` when nobody knows it, as in a live server).
        max_tokens: the client's cap on the output, ``None`` for no cap.

    Raises:
        ValueError: naming the field, for an empty prompt, a length that is not whole and positive, or a negative adapter.
    """

    id: int | str
    adapter: int
    arrival: float
    prompt_tokens: int
    output_tokens: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("adapter", "prompt_tokens", "output_tokens", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) and (value is not None or name in ("adapter", "prompt_tokens")):
                raise ValueError(f"{name} must be a whole number, got {value!r} (request {self.id!r})")
        if not self.adapter >= 0:
            raise ValueError(f"adapter must be 0 (base model) or a positive id, got {self.adapter}")
        if not self.arrival >= 0.0:
            raise ValueError(f"arrival must be a time >= 0 in seconds, got {self.arrival}")
        if not self.prompt_tokens >= 1:
            raise ValueError(f"prompt_tokens must be at least 1, got {self.prompt_tokens} (request {self.id!r})")
        if self.output_tokens is not None and not self.output_tokens >= 1:
            raise ValueError(f"output_tokens must be at least 1, got {self.output_tokens} (request {self.id!r})")
        if self.max_tokens is not None and not self.max_tokens >= 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens} (request {self.id!r})")

"""Checks of arguments that raise one clear error: which argument, what was expected, what came."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["check_array", "check_choice", "check_int", "check_real"]


def check_array(
    x: Any,
    name: str,
    *,
    shape: Sequence[str | int | None] | None = None,
    dtype: Any = None,
    finite: bool = True,
    allow_empty: bool = False,
) -> np.ndarray:
    """Return ``x`` as a numpy array after checking it.

    Args:
        x: anything numpy can turn into an array.
        name: the argument's name in the caller's signature.
        shape: one entry an axis: an int fixes its length, a string names it (equal names must be equal lengths),
            ``None`` leaves it free. ``None`` for the whole skips the check.
        dtype: convert to this type; refused when the conversion would lose the kind (text, objects).
        finite: refuse NaN and infinities, naming the first bad index.
        allow_empty: accept arrays without elements.

    Raises:
        TypeError: not numeric.
        ValueError: wrong number of axes, wrong length, empty, or not finite.
    """
    try:
        array = np.asarray(x)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{name}: expected an array of numbers, got {type(x).__name__} ({error})") from error
    if array.dtype.kind not in "biuf" and not (array.dtype.kind == "c" and dtype is not None):
        raise TypeError(f"{name}: expected an array of numbers, got dtype {array.dtype}")
    if shape is not None:
        wanted = "(" + ", ".join("*" if s is None else str(s) for s in shape) + ")"
        if array.ndim != len(shape):
            raise ValueError(f"{name}: expected shape {wanted}, got {array.shape}")
        seen: dict[str, int] = {}
        for axis, want in enumerate(shape):
            length = array.shape[axis]
            expected = seen.setdefault(want, length) if isinstance(want, str) else want
            if expected is not None and length != expected:
                raise ValueError(f"{name}: expected shape {wanted}, got {array.shape} (axis {axis})")
    if array.size == 0 and not allow_empty:
        raise ValueError(f"{name}: expected at least one element, got shape {array.shape}")
    if dtype is not None:
        array = array.astype(dtype, copy=False)
    if finite and array.dtype.kind in "fc":
        bad = ~np.isfinite(array)
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"{name}: expected finite numbers, got {array[where]} at index {where} ({int(bad.sum())} such entries)"
            )
    return array


def check_int(x: Any, name: str, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return ``x`` as an int; booleans and fractional numbers are refused."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, numbers.Integral):
        raise TypeError(f"{name}: expected an integer, got {x!r} ({type(x).__name__})")
    value = int(x)
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise ValueError(f"{name}: expected an integer {_range(minimum, maximum)}, got {value}")
    return value


def check_real(
    x: Any,
    name: str,
    *,
    minimum: float | int | None = None,
    maximum: float | int | None = None,
    inclusive: bool = True,
) -> float:
    """Return ``x`` as a finite float within the range; ``inclusive=False`` excludes both ends."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name}: expected a number, got {x!r} ({type(x).__name__})")
    value = float(x)
    inside = math.isfinite(value)
    if minimum is not None:
        inside &= value >= minimum if inclusive else value > minimum
    if maximum is not None:
        inside &= value <= maximum if inclusive else value < maximum
    if not inside:
        raise ValueError(f"{name}: expected a finite number {_range(minimum, maximum, inclusive)}, got {value}")
    return value


def check_choice(x: Any, name: str, choices: Iterable[Any]) -> Any:
    """Return ``x`` if it is one of ``choices``; otherwise name the choices and the nearest one."""
    options = list(choices)
    if any(x is option or x == option for option in options):
        return x
    near = difflib.get_close_matches(str(x), [str(o) for o in options], n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{name}: expected one of {', '.join(repr(o) for o in options)}, got {x!r}{hint}")


def _range(minimum: float | int | None, maximum: float | int | None, inclusive: bool = True) -> str:
    low, high = (">=", "<=") if inclusive else (">", "<")
    parts = [f"{low} {minimum}"] * (minimum is not None) + [f"{high} {maximum}"] * (maximum is not None)
    return " and ".join(parts) if parts else "of any size"

import numpy as np
import pytest

from neurips26.shared.arrays import check_array, check_choice, check_int, check_real


def test_good_arrays_pass_and_convert():
    x = check_array([[1, 2], [3, 4]], "x", shape=("n", "n"), dtype=np.float32)
    assert x.dtype == np.float32 and x.shape == (2, 2)
    assert check_int(np.int64(3), "k") == 3
    assert check_real(1, "t") == 1.0
    assert check_choice("a", "mode", ["a", "b"]) == "a"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: check_array("text", "x"), TypeError, "x: expected an array of numbers"),
        (lambda: check_array([[1], [2, 3]], "x"), TypeError, "x: expected an array of numbers"),
        (lambda: check_array([1.0], "x", shape=("n", 2)), ValueError, r"x: expected shape \(n, 2\), got \(1,\)"),
        (lambda: check_array(np.ones((2, 3)), "x", shape=("n", "n")), ValueError, r"\(axis 1\)"),
        (lambda: check_array(np.ones((0, 3)), "x"), ValueError, "at least one element"),
        (lambda: check_array([[1.0, np.nan]], "x"), ValueError, r"got nan at index \(0, 1\) \(1 such"),
        (lambda: check_int(True, "k"), TypeError, "k: expected an integer"),
        (lambda: check_int(2.0, "k"), TypeError, "k: expected an integer"),
        (lambda: check_int(0, "k", minimum=1), ValueError, "k: expected an integer >= 1, got 0"),
        (lambda: check_real(float("inf"), "t"), ValueError, "t: expected a finite number"),
        (lambda: check_real(0, "t", minimum=0, inclusive=False), ValueError, "t: expected a finite number > 0"),
        (lambda: check_choice("cosin", "metric", ["cosine", "l2"]), ValueError, "did you mean 'cosine'"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()

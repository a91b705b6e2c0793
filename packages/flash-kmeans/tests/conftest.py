"""What several tests use: real data that comes inside wheels, and one thread."""

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def photograph():
    """The colours of a photograph: `(273280, 3)` uint8."""
    from sklearn.datasets import load_sample_image

    return load_sample_image("china.jpg").reshape(-1, 3)


@pytest.fixture(scope="session")
def digits():
    from sklearn.datasets import load_digits

    return load_digits().data.astype(np.float32)

"""Types of numpy's arrays, as the performance model uses them."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.str_]

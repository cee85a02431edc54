"""Types of the numpy arrays that the performance model uses."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.str_]

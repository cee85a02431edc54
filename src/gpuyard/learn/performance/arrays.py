"""Types of the numpy arrays that the performance model uses."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
TextArray = NDArray[np.str_]

"""The power draw of GPUs by model name.

busy      the board power (TDP) of the data sheet: an upper bound. Training on eight H100 was measured at 76 % of the
          node's rating (arXiv:2506.14551); on an H200 (driver 580.159.04, 2026-11-15) we measured 691 W of 700 W in
          large bf16 matrix products and 544 W in memory copies
idle      12 % of that: the same H200 without a process drew 81 W. With an idle process it drew 127 W, so a GPU that is
          allocated but unused draws more than this
"""

import re
from typing import Final

BUSY_WATTS: Final = {
    "K80": 150.0,  # 300 W per board with two GPUs
    "P100": 300.0,
    "V100": 300.0,
    "T4": 70.0,
    "A10": 150.0,
    "A100": 400.0,
    "L4": 72.0,
    "L40": 300.0,
    "L40S": 350.0,
    "H100": 700.0,
    "H200": 700.0,
    "B200": 1000.0,
    "RTX3090": 350.0,
    "RTX4090": 450.0,
}
"""Board power by model, from NVIDIA's data sheets; the SXM variant if there are several."""
USUAL_BUSY_WATTS: Final = 300.0
"""The busy power of a GPU whose model is not in the table."""
IDLE_PART: Final = 0.12
_BRAND: Final = re.compile(r"^(NVIDIA|TESLA|GEFORCE|[\s_-])+")
_VARIANT: Final = re.compile(r"(?![\s_-]*(TI|SUPER|D|MAX-Q|LAPTOP|MOBILE)\b)([\s_-]|SXM|PCIE|NVL|M\d+|$)")
"""The text that may follow a model name: a form factor or a memory size, as in `V100M32` and `H100 PCIe`. Other letters
or digits make it another model: an L40 is not an L4, and an RTX 3090 Ti is not an RTX 3090."""


def known_watts(model: str) -> float | None:
    """Return the busy power of a GPU model in watts; None if it is unknown."""
    plain = _BRAND.sub("", model.upper())
    plain = re.sub(r"^RTX[\s_-]+", "RTX", plain)
    return next(
        (
            watts
            for name, watts in BUSY_WATTS.items()
            if plain.startswith(name) and _VARIANT.match(plain.removeprefix(name))
        ),
        None,
    )


def busy_watts(model: str) -> float:
    """Return the busy power of a GPU model in watts; `USUAL_BUSY_WATTS` if it is unknown."""
    return known_watts(model) or USUAL_BUSY_WATTS

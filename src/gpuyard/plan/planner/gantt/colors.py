"""The color of each model in all charts."""

from colorsys import hls_to_rgb
from typing import Final

_FIRST: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1")
"""Distinguishable with color blindness and in print."""
_GOLDEN_ANGLE: Final = 0.381966


def color(model: int) -> str:
    """Return one of eight distinguishable colors; from the ninth model on, hues as far apart as possible."""
    if model < len(_FIRST):
        return _FIRST[model]
    red, green, blue = hls_to_rgb(model * _GOLDEN_ANGLE % 1.0, 0.45 + 0.2 * (model % 2), 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def lighter(hexadecimal: str, level: int) -> str:
    """Return the color at a lower power level: the lower the level, the closer to white."""
    part = 1 - 0.6**level
    channels = (int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * part):02x}" for c in channels)

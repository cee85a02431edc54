"""What cards draw, by their names.

busy      the board power (TDP) of the card's data sheet: an upper bound. Training on eight H100 was measured at 76 %
          of the node's rating (arXiv:2506.14551); on an H200 (driver 580.159.04, 2026-11-15) we measured 691 W of
          700 W in large bf16 products and 544 W in copies of its memory
idle      12 % of that: the same H200 without a process drew 81 W. With one that does nothing it drew 127 W, so a card
          that is held and not used is dearer than this says
"""

from typing import Final

BUSY_WATTS: Final = {
    "K80": 150.0,  # 300 W a board with two GPUs
    "P100": 300.0,
    "V100": 300.0,
    "T4": 70.0,
    "A10": 150.0,
    "A100": 400.0,
    "L4": 72.0,
    "L40S": 350.0,
    "H100": 700.0,
    "H200": 700.0,
    "B200": 1000.0,
    "RTX3090": 350.0,
    "RTX4090": 450.0,
}
"""Board power by model: NVIDIA's data sheets, SXM where there are several; a longer name goes by how it begins."""
USUAL_BUSY_WATTS: Final = 300.0
"""Of a card whose model is not there."""
IDLE_PART: Final = 0.12


def known_watts(model: str) -> float | None:
    """What a card draws at work; None: we do not know this one."""
    plain = model.upper().replace(" ", "").removeprefix("NVIDIA").lstrip("-")
    known = [name for name in BUSY_WATTS if plain.startswith(name)]
    return BUSY_WATTS[max(known, key=len)] if known else None


def busy_watts(model: str) -> float:
    """What a card draws at work, or what such cards usually do."""
    return known_watts(model) or USUAL_BUSY_WATTS

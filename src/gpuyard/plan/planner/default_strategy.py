"""The strategy of every command and function that plans, unless another one is named; a module that imports nothing."""

from typing import Final

DEFAULT_STRATEGY: Final = "auto"

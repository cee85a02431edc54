"""The precisions of arithmetic that a workload can declare: the one list of the API, the files and the commands."""

from typing import Final, Literal, TypeAlias, get_args

Precision: TypeAlias = Literal["fp32", "tf32", "bf16", "amp", "fp16", "amp_fp16", "amp_bf16"]
PRECISIONS: Final[tuple[str, ...]] = get_args(Precision)
"""`amp` is autocast to bf16."""

"""The base of all sections of configuration files."""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from gpuyard.live.wire.config import keep_plain_floats

FilePath: TypeAlias = Annotated[str, Meta(max_length=4096)]
FolderPath: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096, description="the path of a folder")]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: an unknown key is an error."""

    def __post_init__(self) -> None:
        keep_plain_floats(self)

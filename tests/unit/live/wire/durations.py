"""Which settings are durations."""

from typing import get_type_hints

from gpuyard.live.wire.config import Duration, DurationOrNone, keys_of


def durations_of(settings: type) -> set[str]:
    """The keys of all durations, `section.key`."""
    found = set()
    for keys in keys_of(settings):
        type_: object = settings
        for key in keys:
            sections = [it for it in getattr(type_, "__args__", (type_,)) if isinstance(it, type)]
            type_ = next((hints[key] for it in sections if key in (hints := get_type_hints(it))), None)
        members = getattr(type_, "__args__", (type_,))
        if any(isinstance(it, type) and issubclass(it, Duration | DurationOrNone) for it in members):
            found.add(".".join(keys))
    return found

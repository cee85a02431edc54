"""Which settings are durations."""

from typing import get_type_hints

from gpuyard.live.wire.config import Duration, DurationOrNone, keys_of


def durations_of(settings: type) -> set[str]:
    """The keys of all durations, `section.key`."""
    found = set()
    for keys in keys_of(settings):
        type_: object = settings
        for key in keys:
            hints = get_type_hints(type_) if isinstance(type_, type) else {}
            type_ = hints.get(key)
        members = getattr(type_, "__args__", (type_,))
        if any(isinstance(it, type) and issubclass(it, Duration | DurationOrNone) for it in members):
            found.add(".".join(keys))
    return found

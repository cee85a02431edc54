"""Encode events, and decode events of this and every older version.

    {"v":1,"at":1700000000.5,"fact":{"type":"TaskHeld","task":7},"by":"alice","request_id":"5f0c"}

`v` is the version of that type of event, not of the journal, so types change independently. Rules for changes:

- To add a field with a default, do nothing else. Old events get the default. An older gpuyard that reads the new field
  raises `JournalFromFuture`.
- For any other change (a field renamed, another unit), write a function that converts the raw event of version n to
  version n+1 and add it to `UPGRADES` as ("TaskHeld", n). The type's version is then n+1, and its old events are
  upgraded when they are read. Files on disk are never rewritten.
- Never rename a type or remove it from `EVENTS`: journals stay readable forever.

Events of the current version, nearly all events, are decoded in one step. Encoding is deterministic: fields are in the
order of their class, defaults are omitted, numbers have their shortest form.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import msgspec

from gpuyard.core.domain.errors import JournalDamaged, JournalError, JournalFromFuture
from gpuyard.core.domain.events import EVENTS, Event, name_of
from gpuyard.core.journal.records import JournalEntry, Record

RawEvent: TypeAlias = dict[str, Any]
Upgrade: TypeAlias = Callable[[RawEvent], RawEvent]

UPGRADES: dict[tuple[str, int], Upgrade] = {}
"""(type, version n) -> the function that converts it to version n+1. Empty: every type is still at version 1."""

if TYPE_CHECKING:
    _AnyEvent: TypeAlias = Event
else:
    _AnyEvent = Union[EVENTS]  # noqa: UP007 - made from a tuple

_FROM_NEWER = ("unknown field", "Invalid enum value")
"""Texts in msgspec's error messages about data that a newer version adds to a type. A test checks these words."""


class _Envelope(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    v: int
    at: float
    event: _AnyEvent = msgspec.field(name="fact")
    by: str = ""
    request_id: str = ""


class Codec:
    """Encodes entries as bytes, and decodes bytes to records."""

    def __init__(self, upgrades: Mapping[tuple[str, int], Upgrade] = UPGRADES) -> None:
        self._upgrades = upgrades
        self._by_name = {name_of(event): event for event in EVENTS}
        self._versions: dict[type[Event], int] = dict.fromkeys(EVENTS, 1)
        for name, version in upgrades:
            event = self._by_name[name]
            self._versions[event] = max(self._versions[event], version + 1)
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(_Envelope).decode

    def encode(self, entry: JournalEntry) -> bytes:
        """Return the payload of an event. Raises `JournalError` if it would not decode to the same event later."""
        try:
            version = self._versions[type(entry.event)]
            payload = self._encode(_Envelope(version, entry.at, entry.event, entry.by, entry.request_id))
        except KeyError:
            message = (
                f"{type(entry.event).__name__} is not listed in gpuyard.core.domain.events.EVENTS; nothing was written."
            )
            raise JournalError(message) from None
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            message = f"This {type(entry.event).__name__} cannot be written: {error}. Nothing was written."
            raise JournalError(message) from error
        # JSON cannot represent infinity or NaN; msgspec writes null for them.
        if b"null" in payload and not self._reads_back(payload, entry):
            message = f"This {type(entry.event).__name__} contains a number that is not finite; nothing was written."
            raise JournalError(message)
        return payload

    def _reads_back(self, payload: bytes, entry: JournalEntry) -> bool:
        try:
            found = self._decode(payload)
        except msgspec.MsgspecError:
            return False
        return found.event == entry.event and found.at == entry.at

    def decode(self, seq: int, payload: bytes) -> Record:
        """Return the record with number `seq` from its payload, which this version or an older one wrote."""
        try:
            envelope = self._decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            envelope = self._decode_other(seq, payload)
        else:
            if envelope.v != self._versions[type(envelope.event)]:
                envelope = self._decode_other(seq, payload)
        return Record(seq, envelope.at, envelope.event, envelope.by, envelope.request_id)

    def _decode_other(self, seq: int, payload: bytes) -> _Envelope:
        """Upgrade and decode an event of an older version; raise an error that names the event if it is not one."""
        raw, name, version = _open_envelope(seq, payload)
        event = self._by_name.get(name)
        if event is None:
            raise JournalFromFuture(
                f"Event {seq} is a {name} (version {version}), which this gpuyard does not know: "
                "a newer one wrote it. Run that version, or a newer one."
            )
        current = self._versions[event]
        if version > current:
            raise JournalFromFuture(
                f"Event {seq} is a {name} of version {version}, and this gpuyard reads up to version {current}: "
                "a newer one wrote it. Run that version, or a newer one."
            )
        while version < current:
            raw["fact"] = self._upgrades[name, version](raw["fact"])
            version += 1
        raw["v"] = version
        try:
            return msgspec.convert(raw, _Envelope)
        except msgspec.ValidationError as error:
            if any(words in str(error) for words in _FROM_NEWER):
                raise JournalFromFuture(
                    f"Event {seq}, a {name} of version {version}, says more than this gpuyard understands ({error}): "
                    "a newer one wrote it. Run that version, or a newer one."
                ) from error
            raise JournalDamaged(f"Event {seq} is not a {name} of version {version}: {error}.") from error


def _open_envelope(seq: int, payload: bytes) -> tuple[dict[str, Any], str, int]:
    try:
        raw = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise JournalDamaged(f"Event {seq} cannot be read: {error}.") from error
    match raw:
        case {"v": int(version), "fact": {"type": str(name)}} if version >= 1:
            return raw, name, version
    raise JournalDamaged(f"Event {seq} cannot be read: it has no version or no type.")


CODEC = Codec()
"""The codec for the current versions of all events."""

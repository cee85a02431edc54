"""Errors: what went wrong where no refusal can be handed back.

    GpuyardError
    ├── JournalError
    │   ├── EventsRetired      caller: asked for events that are not kept any more; go on from the oldest that is
    │   ├── JournalDamaged     outside: the disk or somebody changed what was written; trying again does not help
    │   ├── JournalFromFuture  caller: a newer gpuyard wrote it; use that version
    │   ├── JournalLocked      caller: another scheduler writes it; stop that one
    │   ├── NoJournal          caller: there is none in this folder; name the one that was meant
    │   └── StorageFull        outside: no space left; free some and try again
    ├── UnknownEvent           us: an event that does not fit the state it is applied to
    └── WrongInput             caller: options or a file that can not be meant; trying again does not help

The docstring is the default message and says what to do next.
"""


class GpuyardError(Exception):
    """Something went wrong in gpuyard."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())

    @property
    def code(self) -> str:
        """The stable name on the API and in logs."""
        return type(self).__name__


class JournalError(GpuyardError):
    """The journal can not be used."""


class EventsRetired(JournalError):
    """These events are not kept here any more. Start from the newest snapshot, or look where retired ones are kept."""

    def __init__(self, after: int, oldest: int) -> None:
        super().__init__(
            f"Events up to {oldest - 1} were retired, so the journal can not be read from event {after + 1}. "
            "Start from the newest snapshot, or look where retired ones are kept."
        )
        self.oldest = oldest
        """The first event that is still there."""


class JournalDamaged(JournalError):
    """The journal is damaged. Restore it from a backup, or start from the newest snapshot and accept what is lost."""


class JournalFromFuture(JournalError):
    """The journal was written by a newer gpuyard. Run that version, or a newer one."""


class JournalLocked(JournalError):
    """Another process writes this journal. Stop it first."""


class NoJournal(JournalError):
    """There is no journal in this folder. Name the one that was meant."""


class StorageFull(JournalError):
    """There is no space left for the journal. Nothing was written; free some space and try again."""


class UnknownEvent(GpuyardError):
    """An event does not fit the state it is applied to. This is a bug in gpuyard; please report it with the journal."""


class WrongInput(GpuyardError):
    """What was handed in can not be used."""

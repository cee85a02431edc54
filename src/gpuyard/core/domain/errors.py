"""Errors: failures that are raised instead of returned as a refusal.

    GpuyardError
    ├── JournalError
    │   ├── EventsRetired      the requested events are no longer kept; start from the oldest one that is
    │   ├── JournalDamaged     the disk or another program changed the journal; retrying does not help
    │   ├── JournalFromFuture  a newer gpuyard wrote the journal; use that version
    │   ├── JournalLocked      another scheduler writes the journal; stop it first
    │   ├── NoJournal          the folder contains no journal; name the right folder
    │   ├── StandbyOutdated    a standby is too far behind; it copies the data folder of the scheduler that leads
    │   ├── StorageUnavailable nothing can be written at present; try again with the same events
    │   │   ├── StorageFull         no disk space is left; free some
    │   │   └── StorageUnreachable  the database of the journal does not answer
    │   │       └── StandbyUnreachable  the other scheduler, which has to hold every event, does not answer
    │   └── WriterDeposed      another scheduler has taken over the journal; this one must stop
    ├── UnknownEvent           an event does not match the state that it is applied to; a bug in gpuyard
    └── WrongInput             an option, an argument or a file is wrong; retrying does not help

The docstring is the default message and says what to do next.
"""


class GpuyardError(Exception):
    """An error occurred in gpuyard."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())

    @property
    def code(self) -> str:
        """The stable name on the API and in logs."""
        return type(self).__name__


class JournalError(GpuyardError):
    """The journal cannot be used."""


class EventsRetired(JournalError):
    """These events are no longer kept. Start from the newest snapshot, or look in the folder of retired events."""

    def __init__(self, after: int, oldest: int) -> None:
        super().__init__(
            f"Events up to {oldest - 1} were retired, so the journal cannot be read from event "
            f"{after + 1}. Start from the newest snapshot, or look in the folder of retired events."
        )
        self.oldest = oldest
        """The first event that is still there."""


class JournalDamaged(JournalError):
    """The journal is damaged. Restore it from a backup, or start from the newest snapshot and accept the loss."""


class JournalFromFuture(JournalError):
    """The journal was written by a newer gpuyard. Use that version or a newer one."""


class JournalLocked(JournalError):
    """Another process writes this journal. Stop it first."""


class NoJournal(JournalError):
    """The folder contains no journal. Give the data folder of a cluster."""


class StandbyOutdated(JournalError):
    """This standby is too far behind to follow. It copies the data folder of the scheduler that leads."""


class StorageUnavailable(JournalError):
    """The journal cannot be written at present. Try again with the same events; they are not written twice."""


class StorageFull(StorageUnavailable):
    """No space is left for the journal. Nothing was written; free disk space and try again."""


class StorageUnreachable(StorageUnavailable):
    """The database of the journal does not answer. Try again with the same events; they are not written twice."""


class StandbyUnreachable(StorageUnreachable):
    """The other scheduler does not answer, so nothing can be written on both. Try again with the same events."""


class WriterDeposed(JournalError):
    """Another scheduler has taken over this journal. Nothing was written; stop this one."""


class NotLeading(GpuyardError):
    """This scheduler is a standby and changes nothing. Send the request to the scheduler that leads."""


class OutcomeUnknown(GpuyardError):
    """The scheduler stopped to lead while it handled the request, which may have been carried out. Repeat it with its key."""


class UnknownEvent(GpuyardError):
    """An event does not fit the state it is applied to. This is a bug in gpuyard; please report it with the journal."""


class WrongInput(GpuyardError):
    """The input is wrong."""

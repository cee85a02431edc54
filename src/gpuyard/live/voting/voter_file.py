"""A voter with its record on disk: what it has promised is durable before anyone hears of it.

The name of the voter is kept in the same file as its record. If the file is lost or damaged, the promises are lost with
it; the voter then has a new name, and counts only after a leader has added it. The file also has the cluster of the
voter, and the length of the leases that it grants: after a restart it waits that long before it votes.
"""

from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

import msgspec
import structlog
from msgspec.structs import replace

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.replication.membership import Membership
from gpuyard.core.replication.messages import ToVoter
from gpuyard.core.replication.outputs import SaveVoter, VoterOutput, VoterRecord
from gpuyard.core.replication.timing import Timing
from gpuyard.core.replication.voter import Voter
from gpuyard.system.files import replace_file

VOTER_FILE = "voter.json"
NOBODY: frozenset[str] = frozenset()
BLANK = VoterRecord(0, "", Membership(0, 0, NOBODY, NOBODY, NOBODY))
"""The record of a voter that no leader has added yet. A membership without voters has no quorum."""

log = structlog.get_logger()


class VoterOfOtherCluster(GpuyardError):
    """The voter belongs to another cluster."""


class _Kept(msgspec.Struct, frozen=True):
    """The content of the file."""

    name: str
    record: VoterRecord
    cluster: str = ""
    lease_seconds: float = 0.0


def found(path: Path, node: str, replica: str, cluster: str = "") -> str:
    """Write the file of the only voter of a new cluster, whose only replica is this one. Return the voter's name.

    What the file had before is discarded; the voter has a new name.
    """
    name = _drawn_name(node)
    voters = frozenset({name})
    record = VoterRecord(0, "", Membership(0, 0, frozenset({replica}), voters, voters))
    _write(path, _Kept(name, record, cluster))
    return name


def has_promised(path: Path) -> bool:
    """Whether the voter of this file has taken part in an election, or the file is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept).record.promised > 0
    except FileNotFoundError:
        return False
    except msgspec.MsgspecError:
        return True


class DurableVoter:
    """Answers messages for a voter; the outputs that it returns may be performed at once."""

    def __init__(self, path: Path, node: str, timing: Timing, clock: Callable[[], float]) -> None:
        """`clock` is monotonic and also runs while the machine sleeps. `timing` holds until a scheduler tells its own."""
        self._path, self._node, self._clock = path, node, clock
        self.notes: list[str] = []
        """Problems that were found when the file was read and did not prevent the start, one sentence each."""
        self._saved = self._read() or _write(path, _Kept(_drawn_name(node), BLANK))
        self._timing = replace(timing, lease=max(timing.lease, self._saved.lease_seconds))
        self._voter = self._restarted()

    @property
    def name(self) -> str:
        """The name under which replicas reach this voter."""
        return self._saved.name

    @property
    def cluster(self) -> str:
        """The cluster that this voter belongs to; empty: none yet."""
        return self._saved.cluster

    @property
    def promised(self) -> int:
        """The highest epoch that this voter has granted, accepted or obeyed. A leader of a lower one is outdated."""
        return self._saved.record.promised

    @property
    def lease_seconds(self) -> float:
        """How long a lease lasts."""
        return self._timing.lease

    def join(self, cluster: str) -> None:
        """Belong to this cluster from now on. Raise `VoterOfOtherCluster`, or OSError if it cannot be written."""
        if self.cluster == cluster:
            return
        if self.cluster:
            raise VoterOfOtherCluster(
                f"This voter belongs to cluster {self.cluster}, and the scheduler to cluster {cluster}. Check the address. "
                f"To let it vote there, stop it and remove {self._path}."
            )
        self._saved = _write(self._path, replace(self._saved, cluster=cluster))

    def leave(self) -> None:
        """Belong to no cluster: the voter has a new name and no promises. Raise OSError if it cannot be written."""
        self._saved = _write(self._path, _Kept(_drawn_name(self._node), BLANK))
        self._voter = self._restarted()

    def use_lease(self, seconds: float) -> None:
        """Grant leases of this length; raise OSError if it cannot be written.

        A change is like a restart: it waits for one such lease first. The caller makes it shorter only when no leader
        can count on a longer one.
        """
        if seconds == self.lease_seconds == self._saved.lease_seconds:
            return
        self._saved = _write(self._path, replace(self._saved, lease_seconds=seconds))
        if seconds != self.lease_seconds:
            self._timing = replace(self._timing, lease=seconds)
            self._voter = self._restarted()

    def receive(self, message: ToVoter) -> list[VoterOutput]:
        """Answer a message. If the record cannot be written, nothing is answered, as if the message was lost."""
        outputs = self._voter.receive(self._clock(), message)
        records = [output.record for output in outputs if isinstance(output, SaveVoter)]
        if records:
            try:
                self._saved = _write(self._path, replace(self._saved, record=records[-1]))
            except OSError as error:
                log.warning("state_write_failed", path=str(self._path), message=str(error))
                self._voter = self._restarted()  # it must not remember a promise that the disk does not have
                return []
        return [output for output in outputs if not isinstance(output, SaveVoter)]

    def _restarted(self) -> Voter:
        return Voter(self.name, self._timing, self._saved.record, self._clock())

    def _read(self) -> _Kept | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            self.notes.append(f"{self._path} is damaged ({error}); this voter has a new name.")
            return None


def _drawn_name(node: str) -> str:
    return f"{node}#{token_hex(8)}"


def _write(path: Path, kept: _Kept) -> _Kept:
    replace_file(path, msgspec.json.encode(kept))
    return kept

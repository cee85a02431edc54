"""The intervals of the protocol. All of them are measured on monotonic clocks, each process on its own."""

from gpuyard.core.domain.values import Value

LONGEST_LEASE_SECONDS = 3600.0
"""Voters refuse longer leases."""


class Timing(Value, frozen=True):
    """Intervals in seconds. All replicas and voters of a cluster use the same ones."""

    lease: float = 5.0
    """How long a voter that has granted or renewed a lease grants no other replica."""
    drift: float = 0.01
    """The largest relative error of a monotonic clock. The leases are safe only if this is true."""
    renew_every: float = 1.0
    """How often a leader renews its leases and contacts the standby."""
    answers_within: float = 1.0
    """How long a candidate waits for the answers to one round of questions."""
    proposal_retry: float = 7.5
    """A change of the voters that is not accepted for this long is withdrawn."""
    single_after: float | None = None
    """A standby that is silent for this long is left out: events are then on one disk only. None: never without the
    operator's word (`Replica.allow_single`)."""
    tell_after: float = 0.03
    """A standby learns with the next message that entries are committed. If none follows for this long, it is told so."""
    batch: int = 500
    """The most entries in one message."""
    window: int = 2_000
    """So many entries may be on their way to the standby; more would only wait there."""
    batch_bytes: int = 1024 * 1024
    """Entries beyond this size go into the next message. One message holds at least one entry."""

    @property
    def lead(self) -> float:
        """How long a leader may act after it SENT the message that a voter answered.

        The voter counts its lease from the arrival, which is later. The factor covers a slow clock of the leader and a
        fast clock of the voter.
        """
        return self.lease * (1 - self.drift) / (1 + self.drift)

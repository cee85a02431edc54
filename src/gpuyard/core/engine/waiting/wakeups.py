"""Wake-ups: what a blocked task waits for, and what has happened since the last scheduling pass.

Trying to place a task returns a placement or `Blocked`: the refusal that stopped it, and the wake-ups that can change
the refusal. The first wake-up determines where in the queue the task is blocked. The queue indexes the blocked entry
under these wake-ups and does not try it again before one of them is published. The functions that apply events publish
wake-ups; they decide nothing.

    refusal                                   wake-up                published when
    no room, nodes closed                     RoomOn                 a task leaves a node, a node joins or opens
    room is reserved for a task ahead         ReservationEnded       a reservation ends, loses its rank or is made again
    class at its limit                        ClassQuota             a task of the class leaves its GPUs or the queue
    more than the class may ever use          ClassLimit             nodes or the split change
    tenant at a limit, budget spent           TenantQuota            a task of the tenant leaves its GPUs, limits change
    budget spent, victim too young, advice    At                     the instant is reached

Two more wake-ups are published and not named by a refusal, because every entry that is blocked for room or quota waits
for them while preemption is possible: a preemptible task began to run, or may be preempted by others again
(`preemptible`), and usage changed with respect to the guarantee of a tenant or class (`guarantees`, `protection`).
"""

from typing import NamedTuple

from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TaskId, TenantId, Value
from gpuyard.core.placement.device_group_mask import DeviceGroupMask

TOTAL, SOME = "", "*"
"""Limits of a tenant: TOTAL on all its GPUs, SOME on several models or some nodes. Any other value is a GPU model."""


class Wakeup(Value, frozen=True):
    """An occurrence that can change a refusal."""


class RoomOn(Wakeup, frozen=True):
    """Device groups have more room than before."""

    groups: DeviceGroupMask = 0
    """The device groups that count; 0: all that the blocked tasks could use."""


class ReservationEnded(Wakeup, frozen=True):
    """A reservation ended, counts for less than before, or has another start."""


class ClassQuota(Wakeup, frozen=True):
    """A class uses less of its quota than before."""

    class_index: int


class ClassLimit(Wakeup, frozen=True):
    """The quota of a class has changed."""

    class_index: int


class TenantQuota(Wakeup, frozen=True):
    """A tenant uses less than before, or may use more."""

    tenant: TenantId
    limit: str
    """The limit concerned: TOTAL, SOME or a GPU model."""


class At(Wakeup, frozen=True):
    """An instant is reached."""

    instant: float


class Blocked(NamedTuple):
    """Why a task was not placed, and what can change that."""

    refusal: type[Refusal]
    """Type of the refusal; `explain` fills in the current figures."""
    wakeups: tuple[Wakeup, ...]
    preemption_helps: bool = False
    """Preempting other tasks could make room."""
    reservation_helps: bool = False
    """The task may get a reservation, so that tasks behind it do not take what it waits for."""
    ahead: TaskId | None = None
    """The task that goes before it, if that is the obstacle."""


ANY_ROOM, RESERVATION_ENDED = RoomOn(), ReservationEnded()
CLASS_QUOTA = (ClassQuota(0), ClassQuota(1))
CLASS_LIMIT = (ClassLimit(0), ClassLimit(1))


class Published:
    """Wake-ups published since the last scheduling pass, each with its cause."""

    __slots__ = ("class_quota", "guarantees", "preemptible", "protection", "reservations", "room", "tenant_quota")

    def __init__(self) -> None:
        self.room: dict[int, Cause] = {}
        """Device groups, by number, that gained room."""
        self.preemptible: dict[int, Cause] = {}
        """Device groups, by number, in which a preemptible task began to run."""
        self.class_quota: dict[int, Cause] = {}
        """By class, if the class uses less, or another entry is now first in line for its quota."""
        self.tenant_quota: dict[TenantId, Cause] = {}
        """Tenants that use less or may use more, or whose quota has another entry first in line."""
        self.reservations: Cause | None = None
        """A reservation ended: the next task in order may get one."""
        self.guarantees = False
        """A task covered by the guarantee of its tenant or class may be able to preempt others now."""
        self.protection = False
        """Usage crossed a guarantee: others may be able to preempt tasks that it has protected."""

"""Wake-ups: what a blocked task waits for, and what has happened since the last scheduling pass.

An attempt to place a task answers with a placement or with `Blocked`: the refusal that stopped it, and the wake-ups that
can change the refusal; the first of them says where in the queue it is blocked. The queue keeps the blocked entry in its index under these wake-ups and does not try it again
before one of them is published. The functions that apply events publish wake-ups; they decide nothing.

    refusal                                   wake-up                published when
    no room, nodes closed                     RoomOn                 a task leaves a node, a node joins or opens
    room is reserved for a task ahead         ReservationEnded       a reservation ends, loses its rank or is made again
    class at its limit                        ClassQuota             a task of the class leaves its GPUs or the queue
    more than the class may ever use          ClassLimit             nodes or the split change
    tenant at a limit, budget spent           TenantQuota            a task of the tenant leaves its GPUs, limits change
    budget spent, victim too young, advice    At                     the instant is reached

Two more are published and not named by a refusal, because every entry that is blocked for room or quota waits for them
while preemption is possible: a preemptible task began to run (`preemptible`), and usage crossed a tenant's guarantee
(`guarantees`).
"""

from typing import NamedTuple

from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TaskId, TenantId, Value
from gpuyard.core.placement.device_group_mask import DeviceGroupMask

TOTAL, SOME = "", "*"
"""Limits of a tenant: on all its GPUs, and on several models or on some nodes only. Any other is the name of a GPU model."""


class Wakeup(Value, frozen=True):
    """Something that can change a refusal."""


class RoomOn(Wakeup, frozen=True):
    """Device groups have more room than before."""

    groups: DeviceGroupMask = 0
    """Those that count; 0: all that the blocked tasks could use."""


class ReservationEnded(Wakeup, frozen=True):
    """A reservation ended, counts for less than before, or has another start."""


class ClassQuota(Wakeup, frozen=True):
    """A class uses less of its part than before."""

    class_index: int


class ClassLimit(Wakeup, frozen=True):
    """The part of a class has changed."""

    class_index: int


class TenantQuota(Wakeup, frozen=True):
    """A tenant uses less than before, or may use more."""

    tenant: TenantId
    limit: str
    """Which of its limits: TOTAL, SOME or a GPU model."""


class At(Wakeup, frozen=True):
    """An instant is reached."""

    instant: float


class Blocked(NamedTuple):
    """Why a task was not placed, and what can change that."""

    refusal: type[Refusal]
    """Which refusal; `explain` adds the figures of now."""
    wakeups: tuple[Wakeup, ...]
    preemption_helps: bool = False
    """Stopping other tasks could make room for it."""
    reservation_helps: bool = False
    """It may get a reservation, so that tasks behind it do not take what it waits for."""
    ahead: TaskId | None = None
    """The task that goes before it, if that is what stops it."""


ANY_ROOM, RESERVATION_ENDED = RoomOn(), ReservationEnded()
CLASS_QUOTA = (ClassQuota(0), ClassQuota(1))
CLASS_LIMIT = (ClassLimit(0), ClassLimit(1))


class Published:
    """The wake-ups that were published since the last scheduling pass, each with its cause."""

    __slots__ = ("class_quota", "guarantees", "preemptible", "reservations", "room", "tenant_quota")

    def __init__(self) -> None:
        self.room: dict[int, Cause] = {}
        """Device groups, by number, that have more room."""
        self.preemptible: dict[int, Cause] = {}
        """Device groups in which a task began to run that may be stopped for others."""
        self.class_quota: list[Cause | None] = [None, None]
        """By class: it uses less, or another entry waits first for it."""
        self.tenant_quota: dict[TenantId, Cause] = {}
        """Tenants that use less or may use more, or for which another entry waits first."""
        self.reservations: Cause | None = None
        """A reservation ended: the next task in order may get one."""
        self.guarantees = False
        """Usage crossed a guarantee: a task that a guarantee covers may be able to stop others now."""

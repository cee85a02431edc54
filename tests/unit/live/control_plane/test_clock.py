"""The engine's time continues whatever the wall clock does."""

from pathlib import Path

import pytest

from gpuyard.live.control_plane.clock import EngineClock, read_note, save_note

HOUR = 3600.0


class Machine:
    """A clock that can be set."""

    def __init__(self, wall: float = 1_000_000.0, boot: float = 100.0, start: str = "first") -> None:
        self.now, self.up, self.start = wall, boot, start

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.up

    def boot(self) -> float:
        return self.up

    def machine_start(self) -> str:
        return self.start

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds


def test_correcting_a_clock_that_was_hours_ahead_freezes_nothing() -> None:
    machine = Machine()
    machine.now += 8 * HOUR
    before = EngineClock(0.0, machine)
    last_event_at = before()
    machine.now -= 8 * HOUR
    after = EngineClock(last_event_at, machine)
    machine.passes(2.0)
    assert after() - last_event_at == pytest.approx(2.0, rel=0.02), "a retry after two seconds is due after two"


@pytest.mark.parametrize("jump", [-8 * HOUR, 8 * HOUR])
def test_a_clock_jump_fires_no_timer_and_is_corrected_slowly(jump: float) -> None:
    machine = Machine()
    clock = EngineClock(0.0, machine)
    began = clock()
    machine.now += jump
    machine.passes(100.0)
    assert clock() - began == pytest.approx(100.0, rel=0.011)
    for _ in range(40 * 24):
        machine.passes(HOUR)
        clock()
    assert abs(clock.ahead_seconds()) < 1.0, "in the end people read the right time"


def test_a_clock_jump_while_no_scheduler_ran_is_detected_on_the_same_machine(tmp_path: Path) -> None:
    machine = Machine()
    first = EngineClock(0.0, machine)
    save_note(first, tmp_path / "clock.json")
    left = first()
    machine.passes(30.0)
    machine.now += 8 * HOUR
    second = EngineClock(left, machine, read_note(tmp_path / "clock.json"))
    assert second() - left == pytest.approx(30.0)
    machine.start = "second"  # after a reboot nothing but the wall clock is known
    assert EngineClock(left, machine, read_note(tmp_path / "clock.json"))() == machine.now


def test_it_never_runs_backwards_and_never_begins_before_the_last_event() -> None:
    machine = Machine()
    clock = EngineClock(2_000_000.0, machine)
    seen = [clock()]
    for step in (0.0, 5.0, 0.0, 60.0):
        machine.passes(step)
        machine.now -= 100.0
        seen.append(clock())
    assert seen == sorted(seen)
    assert seen[0] >= 2_000_000.0


@pytest.mark.parametrize("apart", [-300.0, 300.0])
def test_a_standby_with_another_wall_clock_continues_the_time_of_the_leader(apart: float) -> None:
    leader, standby = Machine(), Machine(wall=1_000_000.0 + apart)
    of_leader, of_standby = EngineClock(0.0, leader), EngineClock(0.0, standby)
    for _ in range(10):
        leader.passes(5.0)
        standby.passes(5.0)
        of_standby.keep_up(of_leader())
    last_event_at = of_leader()
    standby.passes(2.0)
    of_standby.continue_from(last_event_at)
    assert of_standby() - last_event_at == pytest.approx(2.0, abs=1.1), "two seconds have passed, and not five minutes"
    standby.passes(10.0)
    assert of_standby() - last_event_at == pytest.approx(12.0, abs=1.2)


def test_a_standby_that_has_heard_nothing_of_late_begins_at_the_last_event_and_its_time_passes() -> None:
    machine = Machine()
    clock = EngineClock(0.0, machine)
    clock.continue_from(machine.now + 300.0)
    began = clock()
    assert began == pytest.approx(machine.now + 300.0)
    machine.passes(10.0)
    assert clock() - began == pytest.approx(10.0, rel=0.011)


def test_the_delay_of_events_does_not_set_a_standby_back() -> None:
    machine = Machine()
    clock = EngineClock(0.0, machine)
    before = clock()
    clock.keep_up(before - 0.5)
    assert clock() == before


def test_an_unreadable_note_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "clock.json").write_text("{")
    assert read_note(tmp_path / "clock.json") is None
    assert read_note(tmp_path / "nowhere.json") is None

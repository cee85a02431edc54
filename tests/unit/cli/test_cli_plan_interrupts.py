"""Ctrl-C of a command that holds resources is never lost."""

import signal
import weakref

import pytest

from gpuyard.cli.plan.interrupts import SIGNALS, InterruptGuard


class Thing:
    """An object with a weak reference to it."""


def press_where_nobody_can_catch_it(number: signal.Signals) -> None:
    """In a callback of a weak reference: Python says that an exception was ignored, and goes on."""
    thing = Thing()
    gone = weakref.ref(thing, lambda _: signal.raise_signal(number))
    del thing
    assert gone() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_could_not_be_caught_ends_the_command_before_it_holds_anything(
    number: signal.Signals,
) -> None:
    with InterruptGuard() as interrupts:
        press_where_nobody_can_catch_it(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.defer()


@pytest.mark.parametrize("number", SIGNALS)
def test_before_anything_is_held_a_signal_ends_the_command_at_once(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), InterruptGuard():
        signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_later_the_first_signal_is_noted_and_the_second_ends_the_command(number: signal.Signals) -> None:
    with InterruptGuard() as interrupts:
        interrupts.defer()
        press_where_nobody_can_catch_it(number)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_afterwards_signals_are_as_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with InterruptGuard():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before

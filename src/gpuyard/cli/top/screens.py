"""The pages behind the keys of `top`: text about a task, its output, a question, the help."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from gpuyard.cli.output.printing import one_line
from gpuyard.cli.output.screen import cut
from gpuyard.cli.top.panels import LineList
from gpuyard.core.domain.errors import GpuyardError

KEYS = (
    ("↑ ↓ j k, PgUp PgDn, Home End", "move"),
    ("space", "mark tasks; c then cancels all of them"),
    ("/", "filter by name, command, id or user; Esc removes the filter"),
    ("s, S", "next order; reverse it"),
    ("m", "only my tasks, or all"),
    ("f", "fold or unfold arrays, sweeps and maps"),
    ("g", "GPUs: as many as fit, all of them, none"),
    ("Enter, d", "details and story of the task"),
    ("e", "explain: why it waits, when it starts"),
    ("l", "its output, as it grows"),
    ("c", "cancel, after a question"),
    ("?", "this help"),
    ("Esc", "back"),
    ("q", "leave"),
)


class TextPage(Screen[None]):
    """Text that is read in a thread, once or again and again."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "back")]

    def __init__(self, title: str, read: Callable[[], list[str]], *, every: float | None = None) -> None:
        super().__init__()
        self._title = title
        self._read = read
        self._every = every
        self._busy = False

    def compose(self) -> ComposeResult:
        """Return the parts of the page."""
        yield Static(f" {one_line(self._title)}   Esc back", classes="title", markup=False)
        yield LineList()

    def on_mount(self) -> None:
        self.query_one(LineList).focus()
        self._look()
        if self._every is not None:
            self.set_interval(self._every, self._look)

    def _look(self) -> None:
        if not self._busy:
            self._busy = True
            self.run_worker(self._load, thread=True, exit_on_error=False)

    def _load(self) -> None:
        try:
            lines = self._read()
        except GpuyardError as error:
            lines = [str(error)]
        finally:
            self._busy = False
        if self.is_attached:
            self.app.call_from_thread(self._show, lines)

    def _show(self, lines: list[str]) -> None:
        if self.is_attached:
            self.query_one(LineList).show_lines(lines, to_end=self._every is not None)

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss()


class HelpPage(TextPage):
    """The keys."""

    def __init__(self) -> None:
        width = max(len(keys) for keys, _ in KEYS)
        super().__init__("Keys of gpuyard top", lambda: [f"  {keys:<{width}}  {meaning}" for keys, meaning in KEYS])


class Question(ModalScreen[bool]):
    """A question that y answers with yes, and every other key with no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Return the parts of the question."""
        yield Vertical(
            Static(cut(one_line(self._question), 400), markup=False), Static("y yes   n no", classes="answers"), id="question"
        )  # fmt: skip

    def action_answer(self, yes: bool) -> None:
        """Answer it."""
        self.dismiss(yes)

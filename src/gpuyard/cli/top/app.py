"""The screen of `top`: a head with history, the GPUs, the queue, and a line for keys and messages."""

import time
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from gpuyard.cli.top.panels import Painted, QueueList, gpu_strips, summary_strips
from gpuyard.cli.top.readers import LiveReader, QueueReader, QueueView
from gpuyard.cli.top.screens import HelpPage, Question, TextPage
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.sdk import Client
from gpuyard.live.wire.queue_answers import QueueRow

PAINT_SECONDS = 0.25
"""The screen is painted at most four times a second, however much changes."""
ORDERS = ("queue", "name", "user", "priority", "gpus", "started_at", "created_at", "attempts")
LEAST_PAINT_SECONDS = 0.9 * PAINT_SECONDS
"""A timer that was late may catch up, but not sooner than this."""
GPU_PANELS = ("fitting", "all", "none")
LOG_BYTES = 128 * 1024
LOG_SECONDS = 1.0
NAMED_IN_QUESTION = 6
HINTS = (
    "? help  / filter  s order  f fold  m mine  g GPUs  space mark  Enter details  e explain  l logs  c cancel  q leave"
)


class TopApp(App[None]):
    """GPUs, queue and tasks, live."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #head { height: 2; }
    #gpus { height: auto; margin: 1 0 0 0; }
    #columns { height: 1; margin: 1 0 0 0; }
    #tasks { height: 1fr; background: ansi_default; scrollbar-size: 0 0; }
    LineList { height: 1fr; background: ansi_default; scrollbar-size: 0 0; }
    #filter { height: 1; border: none; padding: 0; display: none; background: ansi_default; }
    #status { height: 1; color: ansi_default; text-style: dim; }
    .title { text-style: bold reverse; height: 1; }
    Question { align: center middle; background: ansi_default; }
    #question { width: 70%; height: auto; border: round ansi_yellow; padding: 1 2; }
    .answers { margin: 1 0 0 0; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", "leave", priority=True),
        Binding("q", "quit", "leave"),
        Binding("question_mark", "help", "help"),
        Binding("slash", "filter", "filter", priority=True),  # so that keys typed quickly after it are its text
        Binding("escape", "step_back", "back"),
        Binding("s", "order", "order"),
        Binding("S", "reverse", "reverse"),
        Binding("f", "fold", "fold"),
        Binding("m", "mine", "mine"),
        Binding("g", "gpus", "GPUs"),
        Binding("d,enter", "details", "details"),
        Binding("e", "explain", "explain"),
        Binding("l", "logs", "logs"),
        Binding("c,ctrl+d", "cancel", "cancel"),
    ]

    def __init__(self, cluster: Client, view: QueueView) -> None:
        super().__init__(ansi_color=True)
        self._cluster = cluster
        self._first_view = view
        self.live = LiveReader(cluster)
        self.queue = QueueReader(cluster, (view, 0, 100), changed=self.live.changed)
        self.paints = 0
        """How often new data was drawn."""
        self._drawn = (-1, -1)
        """The versions that are on the screen; below 0: everything is drawn again."""
        self._painted_at = 0.0
        self._panel = GPU_PANELS[0]
        self._message = ""
        self._message_until = 0.0
        self._own_name: str | None = None

    def compose(self) -> ComposeResult:
        """Return the parts of the screen."""
        yield Painted(id="head")
        yield Painted(id="gpus")
        yield Painted(id="columns")
        yield QueueList(self._first_view, id="tasks")
        yield Input(placeholder="filter: name, command, id or user", id="filter")
        yield Static("", id="status", markup=False)

    def on_mount(self) -> None:
        self.tasks.focus()
        self.live.start()
        self.queue.start()
        self.set_interval(PAINT_SECONDS, self._paint)
        self._paint()

    def on_unmount(self) -> None:
        self.live.stop()
        self.queue.stop()

    @property
    def tasks(self) -> QueueList:
        """The list of tasks."""
        return self.screen_stack[0].query_one("#tasks", QueueList)

    @property
    def view(self) -> QueueView:
        """What is shown."""
        return self.tasks.view

    # --- drawing ------------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self._drawn = (-1, -1)
        self.call_after_refresh(self._paint)

    def _is_composed(self) -> bool:
        """Whether the parts of the screen are there: a timer or a resize may come before that, or at the very end."""
        return bool(self.screen_stack) and bool(self.screen_stack[0].query("#tasks"))

    def on_queue_list_window_moved(self) -> None:
        if not self._is_composed():
            return
        first, count = self.tasks.window()
        self.queue.want(self.view, first, count)

    def _paint(self) -> None:
        """Draw what has changed since the last time."""
        if not self._is_composed():
            return
        versions = (self.live.version, self.queue.version)
        if len(self.screen_stack) > 1 and self._drawn != (-1, -1):
            return  # another page is on top; this one is drawn when it is seen again
        self._say_status()
        now = time.monotonic()
        if versions == self._drawn or (self._drawn != (-1, -1) and now - self._painted_at < LEAST_PAINT_SECONDS):
            return
        self._painted_at = now
        base = self.screen_stack[0]
        width, height = self.size
        look, history = self.live.look, tuple(self.live.history)
        base.query_one("#head", Painted).paint(summary_strips(look, history, width, time.strftime("%H:%M:%S")))
        self._paint_gpus(width, height)
        page = self.queue.page
        if page is not None and (versions[1] != self._drawn[1] or not self.tasks.loaded):
            self.tasks.show_page(page)
        base.query_one("#columns", Painted).paint([self.tasks.head()])
        self._drawn = versions
        self.paints += 1

    def _paint_gpus(self, width: int, height: int) -> None:
        panel, look = self.screen_stack[0].query_one("#gpus", Painted), self.live.look
        room = {"fitting": max(2, height // 3), "all": max(2, height - 8), "none": 0}[self._panel]
        strips = gpu_strips(look, width, room) if look is not None else []
        panel.display = bool(strips)
        panel.styles.height = len(strips)
        panel.paint(strips)

    def _say_status(self) -> None:
        trouble = self.live.trouble or self.queue.trouble
        if trouble:
            words = f"{trouble}. Trying again."
        elif time.monotonic() < self._message_until:
            words = self._message
        else:
            view, marks = self.view, len(self.tasks.marks)
            state = [
                f"line {self.tasks.cursor + 1:,} of {self.tasks.total:,}" if self.tasks.total else "",
                f"filter: {view.query}" if view.query else "",
                f"user: {view.user}" if view.user else "",
                f"tenant: {view.tenant}" if view.tenant else "",
                "" if view.fold else "unfolded",
                f"{marks} marked" if marks else "",
            ]
            words = "  ".join(word for word in state if word) + "   " + HINTS
        status = self.screen_stack[0].query_one("#status", Static)
        if str(status.render()) != words:
            status.update(words)

    def say(self, words: str, seconds: float = 6.0) -> None:
        """Show a message in the last line for a while."""
        self._message, self._message_until = words, time.monotonic() + seconds

    # --- what is shown ------------------------------------------------------------------------------------------------

    def _change(self, **changed: object) -> None:
        self.tasks.show_view(self.view._replace(**changed))  # type: ignore[arg-type]
        self._drawn = (-1, -1)

    def action_order(self) -> None:
        now = ORDERS.index(self.view.sort) if self.view.sort in ORDERS else 0
        self._change(sort=ORDERS[(now + 1) % len(ORDERS)], descending=False)

    def action_reverse(self) -> None:
        self._change(descending=not self.view.descending)

    def action_fold(self) -> None:
        self._change(fold=not self.view.fold)

    def action_mine(self) -> None:
        if self.view.user is not None:
            self._change(user=None)
            return
        from gpuyard.cli.input.task_selection import own_name

        def ask() -> None:
            try:
                self._own_name = own_name(self._cluster)
            except GpuyardError as error:
                self.call_from_thread(self.say, str(error))
                return
            self.call_from_thread(lambda: self._change(user=self._own_name))

        self.run_worker(ask, thread=True, exit_on_error=False)

    def action_gpus(self) -> None:
        self._panel = GPU_PANELS[(GPU_PANELS.index(self._panel) + 1) % len(GPU_PANELS)]
        self._drawn = (-1, -1)
        self._paint()

    def action_filter(self) -> None:
        if len(self.screen_stack) > 1:
            return
        field = self.query_one("#filter", Input)
        if field.display:
            field.insert_text_at_cursor("/")
            return
        field.value = self.view.query or ""
        field.display = True
        self.screen.set_focus(field)  # at once: the next keys may be there already

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_filter()
        if (event.value or None) != self.view.query:
            self._change(query=event.value or None)

    def _close_filter(self) -> None:
        self.screen.set_focus(self.tasks)
        self.query_one("#filter", Input).display = False

    def action_step_back(self) -> None:
        """Close the filter line; otherwise remove marks, then the filter."""
        if self.query_one("#filter", Input).display:
            self._close_filter()
        elif self.tasks.marks:
            self.tasks.marks.clear()
            self.tasks.refresh()
        elif self.view.query:
            self._change(query=None)

    # --- one task -----------------------------------------------------------------------------------------------------

    def action_help(self) -> None:
        self.push_screen(HelpPage())

    def action_details(self) -> None:
        row = self.tasks.current
        if row is not None:
            from gpuyard.cli.show import detail_lines

            self.push_screen(TextPage(f"{row.id} {row.name}", lambda: detail_lines(self._cluster, row.id)))

    def action_explain(self) -> None:
        row = self.tasks.current
        if row is not None:
            from gpuyard.cli.explain import explanation_lines

            self.push_screen(
                TextPage(f"Why {row.id} {row.name}", lambda: explanation_lines(self._cluster.explain(row.id)))
            )

    def action_logs(self) -> None:
        row = self.tasks.current
        if row is not None:
            self.push_screen(
                TextPage(f"Output of {row.id} {row.name}", lambda: self._log_lines(row), every=LOG_SECONDS)
            )

    def _log_lines(self, row: QueueRow) -> list[str]:
        from gpuyard.cli.output.printing import one_line

        end = b"".join(self._cluster.without_waiting().logs(row.id, tail=LOG_BYTES))
        if not end:
            return ["It has written nothing yet."]
        lines = end.decode(errors="replace").rstrip("\n").split("\n")
        return [one_line(line.rstrip("\r").rpartition("\r")[2]) for line in lines]

    # --- cancelling ---------------------------------------------------------------------------------------------------

    def action_cancel(self) -> None:
        """Ask, then cancel the marked tasks or the one under the cursor."""
        rows = self.tasks.chosen()
        if not rows:
            return
        count = sum(row.count for row in rows)
        named = ", ".join(
            row.id if row.count == 1 else f"{row.first_id} to {row.last_id} ({row.count})" for row in rows[:NAMED_IN_QUESTION]
        )  # fmt: skip
        more = ", …" if len(rows) > NAMED_IN_QUESTION else ""
        what = f"{count} tasks" if count > 1 else "the task"
        self.push_screen(Question(f"Cancel {what}: {named}{more}?"), lambda yes: self._cancel(rows) if yes else None)

    def _cancel(self, rows: list[QueueRow]) -> None:
        def work() -> None:
            done, failure = 0, ""
            for row in rows:
                try:
                    for task in tasks_of(self._cluster, row):
                        self._cluster.cancel(task)
                        done += 1
                except GpuyardError as error:
                    failure = f" {error}"
            self.queue.again()
            self.call_from_thread(self.say, f"{done} {'task was' if done == 1 else 'tasks were'} cancelled.{failure}")

        self.tasks.marks.clear()
        self.tasks.refresh()
        self.say("Cancelling …")
        self.run_worker(work, thread=True, exit_on_error=False)


def tasks_of(cluster: Client, row: QueueRow) -> list[str]:
    """Return the tasks on a row: one, or those of an array, sweep or map that had one status when the row was read."""
    if row.count == 1 or row.first_id is None or row.last_id is None:
        return [row.id]
    if row.group is not None:
        own = cluster.tasks(status=str(row.status), tenant=row.tenant_id, user=row.user or None)
        return [task.id for task in own if task.group == row.group]
    first, last = (int(task.removeprefix("task-")) for task in (row.first_id, row.last_id))
    base = row.name.partition("[")[0] if row.array_index is None else row.name
    found = cluster.tasks(status=str(row.status), tenant=row.tenant_id, query=base or None)
    return [
        task.id
        for task in found
        if first <= task.number <= last and task.created_at == row.created_at and task.name.partition("[")[0] == base.partition("[")[0]
    ]  # fmt: skip

"""`gpuyard top` with Textual's pilot: 100,000 tasks and 1,600 GPUs, of which only what is on the screen is read."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from textual.pilot import Pilot

from gpuyard import cli
from gpuyard.cli.top.app import PAINT_SECONDS, TopApp, tasks_of
from gpuyard.cli.top.panels import gpu_strips, spark
from gpuyard.cli.top.readers import LiveReader, QueueView, events_in
from gpuyard.cli.top.screens import Question, TextPage
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.sdk import connect
from gpuyard.live.wire.answers import TaskList
from tests.unit.cli.test_cli_ps import row
from tests.unit.live.sdk.fake_server import Answering, fake_server, task
from tools.manual.demo_cluster import DemoCluster, demo_cluster

pytestmark = pytest.mark.slow
TOTAL = 100_000
Story = Callable[[TopApp, "Pilot[None]"], Awaitable[None]]


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoCluster]:
    with demo_cluster(nodes=200, gpus_each=8, running=1500, waiting=TOTAL - 1500) as made:
        yield made


def play(demo: DemoCluster, story: Story, size: tuple[int, int] = (140, 40), view: QueueView | None = None) -> TopApp:
    """Run the program without a terminal, until the story is over."""

    async def run() -> TopApp:
        app = TopApp(connect(demo.url), view or QueueView())
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: bool(app.tasks.total) and app.live.look is not None)
            await story(app, pilot)
        return app

    return asyncio.run(run())


async def until(pilot: "Pilot[None]", happens: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until the program shows something."""
    async with asyncio.timeout(seconds):
        while not happens():
            await pilot.pause(0.02)


def lines(app: TopApp) -> list[str]:
    return ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]


def shows(app: TopApp, words: str) -> Callable[[], bool]:
    return lambda: words in "\n".join(lines(app))


def test_totals_gpus_and_the_beginning_of_the_queue_are_shown(demo: DemoCluster) -> None:
    async def story(app: TopApp, pilot: "Pilot[None]") -> None:
        await until(pilot, shows(app, "1,500 running"))
        await until(pilot, shows(app, "task-1 "))
        await until(pilot, shows(app, "one bar a node"))  # 25 lines of GPUs would leave too little for the tasks
        text = "\n".join(lines(app))
        assert "of 1,600 GPUs busy" in text
        assert "198 of 200 nodes" in text
        assert "line 1 of 100,000" in text

    play(demo, story)


def test_only_the_rows_around_the_window_are_read(demo: DemoCluster) -> None:
    async def story(app: TopApp, pilot: "Pilot[None]") -> None:
        await pilot.press("end")
        await until(pilot, lambda: TOTAL - 1 in app.tasks.rows)
        await until(pilot, shows(app, f"task-{TOTAL} "))
        assert len(app.tasks.rows) < 200
        await until(pilot, shows(app, "one bar a node"))
        await until(pilot, shows(app, f"task-{TOTAL} "))
        await pilot.press("pageup")
        height = app.tasks.size.height
        await until(pilot, lambda: app.tasks.current is not None)
        assert app.tasks.cursor == TOTAL - 1 - (height - 1)
        await pilot.press("home", "j", "j", "k")
        assert app.tasks.cursor == 1
        await until(pilot, lambda: 0 in app.tasks.rows)

    demo.asked.clear()
    play(demo, story)
    limits = [int(parse_qs(urlsplit(path).query)["limit"][0]) for path in demo.asked if "/queue" in path]
    assert max(limits) <= 120


def test_orders_filters_and_folding_are_left_to_the_scheduler(demo: DemoCluster) -> None:
    async def story(app: TopApp, pilot: "Pilot[None]") -> None:
        await pilot.press("s", "S")
        await until(pilot, lambda: any("sort=-name" in path for path in demo.asked))
        await until(pilot, shows(app, "NAME▼"))
        await pilot.press("f")
        await until(pilot, lambda: "fold" not in next(path for path in reversed(demo.asked) if "/queue" in path))
        await pilot.press("slash", *"whisper", "enter")
        await until(pilot, lambda: app.tasks.total == TOTAL // 8)
        assert all(row.name == "whisper" for row in app.tasks.rows.values())
        await until(pilot, shows(app, "filter: whisper"))
        await pilot.press("slash", "slash", "x")
        await until(pilot, shows(app, "whisper/x"))
        await pilot.press("escape")
        assert app.view.query == "whisper", "Esc leaves the filter line without a change"
        await pilot.press("escape")
        await until(pilot, lambda: app.tasks.total == TOTAL)

    demo.asked.clear()
    play(demo, story)


def test_marked_tasks_are_cancelled_after_a_question(demo: DemoCluster) -> None:
    async def story(app: TopApp, pilot: "Pilot[None]") -> None:
        await until(pilot, lambda: 2 in app.tasks.rows)
        await pilot.press("space", "down", "space", "c")
        await until(pilot, shows(app, "Cancel 2 tasks: task-1, task-3?"))
        assert isinstance(app.screen, Question)
        await pilot.press("n")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert demo.cancelled == []
        await pilot.press("c", "y")
        await until(pilot, lambda: demo.cancelled == ["task-1", "task-3"])
        await until(pilot, shows(app, "2 tasks were cancelled."))
        assert app.tasks.marks == {}

    play(demo, story)
    demo.cancelled.clear()


def test_a_task_is_looked_at_and_escape_goes_back(demo: DemoCluster) -> None:
    async def story(app: TopApp, pilot: "Pilot[None]") -> None:
        await until(pilot, lambda: app.tasks.current is not None)
        await pilot.press("l")
        await until(pilot, shows(app, "step 59 loss"))
        assert isinstance(app.screen, TextPage)
        await pilot.press("escape", "question_mark")
        await until(pilot, shows(app, "mark tasks"))
        await pilot.press("escape", "e")
        await until(pilot, shows(app, "There is no such task."))
        await pilot.press("q")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert app.is_running, "q leaves the page, not the program"

    play(demo, story)


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (250, 70)])
def test_any_size_of_the_terminal_is_used(demo: DemoCluster, size: tuple[int, int]) -> None:
    async def story(app: TopApp, pilot: "Pilot[None]") -> None:
        await until(pilot, shows(app, "task-1"))
        assert max(map(len, lines(app))) <= size[0]
        if size[0] == 250:
            assert "n000 " in "\n".join(lines(app)), "there is room for every GPU"
        await pilot.resize_terminal(120, 50)
        await until(pilot, lambda: max(map(len, lines(app))) == 120)
        await pilot.press("g")
        await until(pilot, shows(app, "n199 "))
        await pilot.press("g")
        await until(pilot, lambda: "n199 " not in "\n".join(lines(app)))

    play(demo, story, size=size)


def test_data_is_painted_at_most_four_times_a_second(demo: DemoCluster) -> None:
    async def story(app: TopApp, pilot: "Pilot[None]") -> None:
        before, version, began = app.paints, app.live.version, asyncio.get_running_loop().time()
        await until(pilot, lambda: app.live.version >= version + 40)
        passed = asyncio.get_running_loop().time() - began
        assert app.paints - before <= passed / (0.9 * PAINT_SECONDS) + 1

    demo.samples_per_second = 30.0
    try:
        play(demo, story)
    finally:
        demo.samples_per_second = 1.0


def test_a_scheduler_that_goes_away_is_said_and_comes_back() -> None:
    from tests.ports import free_port

    port = free_port()

    async def run() -> None:
        app = TopApp(connect(f"http://127.0.0.1:{port}"), QueueView())
        async with app.run_test(size=(120, 30)) as pilot:
            await until(pilot, shows(app, "Trying again."))
            await until(pilot, shows(app, "Waiting for the scheduler"))

    asyncio.run(run())


def test_a_stream_is_read_across_any_pieces() -> None:
    stream = b"id: 1\nevent: snapshot\ndata: {}\n\n: comment\n\nid: 2\nevent: sample\ndata: [1]\n\n"
    for size in (1, 7, 1000):
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert list(events_in(parts)) == [("snapshot", b"{}"), ("sample", b"[1]")]


def test_figures_as_bars() -> None:
    assert spark([0.0, 0.5, 1.0], 5) == "  ▁▅█"
    assert spark([0.0] * 9 + [1.0], 3) == "▁▁█"


def test_too_many_nodes_for_the_screen_are_counted(demo: DemoCluster) -> None:
    reader = LiveReader(connect(demo.url))
    reader.take(demo.message(0))
    assert reader.look is not None
    text = ["".join(part.text for part in strip) for strip in gpu_strips(reader.look, 50, 3)]
    assert len(text) == 3
    assert gpu_strips(reader.look, 50, 1) == []


def test_a_pipe_gets_the_state_once(
    demo: DemoCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "top", "-q", "whisper", "--server", demo.url])
    assert cli.main() == 0
    out = capsys.readouterr().out
    assert "1,500 running, 98,500 waiting" in out
    assert "20 of 12,500 lines" in out
    assert "\x1b" not in out


def test_the_calls_of_a_map_are_cancelled_and_no_others() -> None:
    told = [
        task(1, TaskStatus.RUNNING, name="f[x=1]", group="f-1"),
        task(2, TaskStatus.RUNNING, name="f[x=2]", group="f-2"),
        task(4, TaskStatus.RUNNING, name="f[x=3]", group="f-1"),
    ]

    def answer(line: Answering) -> None:
        line.say(TaskList(told, len(told), None))

    of_map = row(1, TaskStatus.RUNNING, name="f[x=1]", group="f-1", count=2, first_id="task-1", last_id="task-4")
    with fake_server(answer) as server:
        assert tasks_of(connect(server.url), of_map) == ["task-1", "task-4"]
        assert "user=ann" in server.asked[0].path

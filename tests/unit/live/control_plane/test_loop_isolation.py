"""A failing request is answered alone: the engine and the rest of the batch continue."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.commands import CancelTask
from gpuyard.core.domain.errors import StorageFull
from gpuyard.core.domain.events import TaskSubmitted
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.engine import Engine
from gpuyard.live.control_plane.loop import EngineCrashed
from tests.unit.live.control_plane.clusters import ADMIN, open_scheduler, run, settled, spec, submit


def _fails(*_: object) -> Any:
    raise ZeroDivisionError


def test_a_failing_query_is_answered_and_the_engine_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            await submit(scheduler, spec())
            engine = scheduler.loop.engine
            with pytest.raises(EngineCrashed):
                await scheduler.loop.look(_fails)
            assert scheduler.loop.engine is engine, "nothing was thrown away"
            assert await submit(scheduler, spec()) == [TaskId(2)]

    run(story)


def test_a_full_disk_for_the_secrets_is_reported_as_such_and_keeps_the_engine(tmp_path: Path) -> None:
    async def story() -> None:
        from gpuyard.live.control_plane.submissions import Submission

        async with open_scheduler(tmp_path) as (scheduler, _):
            engine = scheduler.loop.engine

            def full(_: object) -> None:
                raise StorageFull("No space is left for secrets.")

            scheduler.stores.secrets.put = full  # type: ignore[method-assign, assignment]
            with pytest.raises(StorageFull):
                await scheduler.submissions.submit([Submission([spec(secrets=("A",))], {"A": "b"})], ADMIN)
            assert scheduler.loop.engine is engine
            assert await submit(scheduler, spec()) == [TaskId(1)]

    run(story)


@pytest.mark.slow
def test_a_request_after_which_no_decision_can_be_made_is_refused_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            decide = Engine.decide

            def breaks(engine: Engine, now: float) -> Any:
                if any(task.spec.name == "poison" for task in engine.state.tasks.values()):
                    raise ZeroDivisionError
                return decide(engine, now)

            monkeypatch.setattr(Engine, "decide", breaks)
            asked = [asyncio.create_task(submit(scheduler, spec(name=name))) for name in ("a", "poison", "b")]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(answers[1], EngineCrashed)
            assert sorted(view.spec.name for view in scheduler.views.tasks.values()) == ["a", "b"]
            assert await submit(scheduler, spec(name="c"))
            names = [
                it.event.spec.name for it in scheduler.stores.journal.read() if isinstance(it.event, TaskSubmitted)
            ]
            assert names == ["a", "b", "c"], "the poison never became an event"

    run(story)


def test_an_event_that_can_not_be_written_is_refused_to_the_one_who_asked_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            encode = scheduler.stores.journal.encode

            def breaks(entry: Any) -> bytes:
                if isinstance(entry.event, TaskSubmitted) and entry.event.spec.name == "poison":
                    raise TypeError("Encoding objects of this type is unsupported")
                return encode(entry)

            scheduler.stores.journal.encode = breaks  # type: ignore[method-assign]
            asked = [asyncio.create_task(submit(scheduler, spec(name=name))) for name in ("a", "poison", "b")]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [isinstance(answer, EngineCrashed) for answer in answers] == [False, True, False]
            told = await scheduler.loop.tell(CancelTask(TaskId(1)))
            assert told, "it goes on"

    run(story)


def test_a_refused_request_takes_no_secret_of_the_next_one(tmp_path: Path) -> None:
    """Both are given the same numbers: the first keeps none of them."""

    async def story() -> None:
        from gpuyard.live.control_plane.submissions import Submission

        async with open_scheduler(tmp_path) as (scheduler, _):
            hers = spec(secrets=("A",), after_success=(TaskId(999),))
            refused, accepted = await asyncio.gather(
                scheduler.submissions.submit([Submission([hers], {"A": "eve's"})], ADMIN),
                scheduler.submissions.submit([Submission([spec(secrets=("B",))], {"B": "bob's"})], ADMIN),
            )
            assert isinstance(refused, Refusal)
            assert not isinstance(accepted, Refusal)
            await settled(scheduler)
            assert scheduler.stores.secrets.get(accepted[0].id) == {"B": "bob's"}

    run(story)


def test_a_repeated_large_request_gets_all_of_its_tasks(tmp_path: Path) -> None:
    async def story() -> None:
        from gpuyard.live.control_plane.submissions import Submission

        async with open_scheduler(tmp_path) as (scheduler, _):
            asked = [Submission([spec()] * 5_000, {})]

            async def keeps_archiving() -> None:
                while True:
                    await scheduler.archiver.archive_now()
                    await asyncio.sleep(0)

            archiving = asyncio.create_task(keeps_archiving())
            first = await scheduler.submissions.submit(asked, ADMIN, key="k", body=b"body")
            archiving.cancel()
            again = await scheduler.submissions.submit(asked, ADMIN, key="k", body=b"body")
            assert not isinstance(first, Refusal)
            assert not isinstance(again, Refusal)
            assert [view.id for view in again] == [view.id for view in first]

    run(story)

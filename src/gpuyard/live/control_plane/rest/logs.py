"""Stream a task's output as its node sends it: plain bytes, at the speed of the reader.

With `follow` the stream continues with the next attempt when an attempt ends and the task does not, and waits for the
first attempt of a task that has not started. If the request names a node, attempts on other nodes are left out. The
response begins with the first bytes or after a short wait: until then an error can still be returned as an error
response. HEAD asks the node for one byte and follows nothing. The node knows when each byte was written
(`agent/output_times.py`), so it also finds `since` and `until`, and puts `timestamps` before lines.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.core.domain.values import ENDED, AttemptRef, NodeId, TaskId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.nodes.outputs import EVERYTHING, OutputPeriod
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.lookup import SAME, find_answer, read_answer
from gpuyard.live.control_plane.rest.query import Parameter, counted, instant, switch, text
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import TEXT, Response, StreamingResponse, json_response
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AT_THE_END
from gpuyard.live.wire.search_answers import SearchAnswer, SearchMatch
from gpuyard.live.wire.task_answers import TaskAnswer, origin_of

_LARGEST = AT_THE_END - 1
FIRST_BYTES_SECONDS = 1.0
LOOK_SECONDS = (0.02, 0.5)
"""Initial and maximum interval at which a follower polls for the next attempt."""

MOST_CONTEXT, USUAL_MATCHES, MOST_MATCHES, LONGEST_SEARCH = 10, 100, 1000, 500


def _read_search(value: str) -> str:
    if len(text(value)) > LONGEST_SEARCH:
        raise ValueError(f"it must be at most {LONGEST_SEARCH} characters long")
    if "\n" in value:
        raise ValueError("it must be within one line")
    return value


PARAMETERS = (
    switch("follow", "Continue until the task has ended."),
    counted("offset", "Number of bytes to skip at the beginning.", 0, _LARGEST),
    counted("limit", "Maximum number of bytes.", 1, _LARGEST),
    counted("tail", "Only this number of bytes at the end, and what follows.", 0, _LARGEST),
    Parameter("since", "Only what was written since this time: RFC 3339, or seconds since 1970.", instant),
    Parameter("until", "Only what was written before this time.", instant),
    switch("timestamps", "Begin every line with the time at which it was written."),
    counted("attempt", "Number of the attempt (default: the latest).", 1, 1_000_000),
    Parameter("node", "Node of the member (default: the first).", text),
    counted("member", "Number of the member, from 0, instead of its node.", 0, 100_000),
    Parameter("search", "Return the lines that contain this text as JSON, instead of the output.", _read_search),
    switch("case", "With search: upper and lower case differ."),
    counted("context", "With search: number of lines before and after each match.", 0, MOST_CONTEXT),
    *SAME,
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    task: TaskId
    attempt: int | None
    node: str | None
    offset: int
    limit: int
    follow: bool
    times: OutputPeriod = EVERYTHING


async def get_logs(context: AppContext, request: Request) -> Response:
    """Return the output of a task."""
    task, encoded = await find_answer(context, request)
    told, asked = read_answer(encoded), request.query
    if told.command is None:
        message = f"{told.id} is a lease: it has no process and no output."
        raise WrongRequest("NoOutput", message, "task_id", status=409)
    if "tail" in asked and ("offset" in asked or "limit" in asked):
        raise WrongRequest("Contradiction", "tail counts from the end; omit offset and limit.", "tail")
    attempt = asked.get("attempt")
    if attempt is not None and attempt > told.attempts:
        had = "1 attempt" if told.attempts == 1 else f"{told.attempts} attempts"
        message = f"{told.id} has had {had}; attempt {attempt} does not exist."
        raise WrongRequest("UnknownAttempt", message, "attempt", status=404)
    node = _member(told, asked)
    if node is not None and told.node_ids and node not in told.node_ids and attempt in {None, told.attempts}:
        message = f"{told.id} did not run on node {node}; it ran on {', '.join(told.node_ids)}."
        raise WrongRequest("UnknownNode", message, "node", status=404)
    if "search" in asked:
        return await _search(context, request, task, told, node)
    if wrong := next((name for name in ("case", "context") if name in asked), None):
        raise WrongRequest("Contradiction", f"{wrong} is only valid together with search.", wrong)
    follow = asked.get("follow", False)
    times = OutputPeriod(asked.get("since"), asked.get("until"), asked.get("timestamps", False))
    _refuse_contradictions(asked, times)
    tail = asked.get("tail")
    limit = asked.get("limit", 0)
    if tail == 0 and not follow:
        return Response(b"", media_type=TEXT)
    offset = asked.get("offset", 0) if tail is None else -tail if tail else AT_THE_END
    wanted = _Wanted(task, attempt, node, offset, limit, follow, times)
    if request.method == "HEAD":
        await _look(_output(context, replace(wanted, limit=1, follow=False), told))
        chunks = _nothing()
    else:
        chunks = await _begun(_output(context, wanted, told))
    return StreamingResponse(chunks, {"content-type": TEXT}, endless=follow)


def _refuse_contradictions(asked: Mapping[str, Any], times: OutputPeriod) -> None:
    """Refuse parameters that contradict each other."""
    since, until, _ = times
    for wrong, other, why in (
        ("since", "offset", "both name the beginning"),
        ("until", "follow", "follow goes on until the task ends"),
        ("until", "tail", "tail counts from the end"),
        ("timestamps", "limit", "limit counts the bytes of the output alone"),
    ):
        if asked.get(wrong) not in {None, False} and asked.get(other) not in {None, False}:
            raise WrongRequest("Contradiction", f"Give {wrong} or {other}, not both: {why}.", wrong)
    if since is not None and until is not None and until <= since:
        raise WrongRequest("WrongParameter", "until must be later than since.", "until")


def _member(told: TaskAnswer, asked: Mapping[str, Any]) -> str | None:
    """Return the node that the request names, as such or by the number of the member."""
    member: int | None = asked.get("member")
    if member is None:
        return asked.get("node")
    if "node" in asked:
        raise WrongRequest("Contradiction", "Give member or node, not both.", "member")
    if member >= max(1, len(told.node_ids)):
        had = "1 member" if len(told.node_ids) == 1 else f"{len(told.node_ids)} members"
        raise WrongRequest("UnknownNode", f"{told.id} has {had}; they are numbered from 0.", "member", status=404)
    return told.node_ids[member] if told.node_ids else None


async def _search(context: AppContext, request: Request, task: TaskId, told: TaskAnswer, node: str | None) -> Response:
    """Have the node search the output of an attempt."""
    asked = request.query
    if wrong := next((name for name in ("follow", "tail", "until", "timestamps") if name in asked), None):
        raise WrongRequest("Contradiction", f"{wrong} cannot be combined with search.", wrong)
    limit = asked.get("limit", USUAL_MATCHES)
    if limit > MOST_MATCHES:
        message = f"limit is {limit}; a search returns at most {MOST_MATCHES:,} lines. Continue at next_offset."
        raise WrongRequest("WrongParameter", message, "limit")
    attempt = asked.get("attempt") or told.attempts
    if not attempt or not told.node_ids:
        return json_response(SearchAnswer([], None, truncated=False))
    ref = AttemptRef(task, attempt, origin_of(told, attempt))
    wanted = pb.LogSearch(
        text=asked["search"], match_case=asked.get("case", False), context=asked.get("context", 0), most=limit
    )
    found = await context.scheduler.agents.outputs.search(
        NodeId(node or told.node_ids[0]), ref, offset=asked.get("offset", 0), wanted=wanted, since=asked.get("since")
    )
    following = found.next_offset if found.HasField("next_offset") else None
    return json_response(SearchAnswer([_match(one) for one in found.matches], following, following is not None))


def _match(found: pb.LogMatch) -> SearchMatch:
    return SearchMatch(
        found.offset,
        found.line if found.HasField("line") else None,
        _shown(found.text),
        [_shown(line) for line in found.before],
        [_shown(line) for line in found.after],
    )


def _shown(line: bytes) -> str:
    return line.decode("utf-8", "replace")


async def _nothing() -> AsyncGenerator[bytes, None]:
    """Yield nothing: the body of an answer to HEAD."""
    for chunk in list[bytes]():
        yield chunk


async def _look(chunks: AsyncGenerator[bytes, None]) -> None:
    """Raise the error that these chunks would begin with, if it comes soon."""
    with suppress(TimeoutError):
        async with aclosing(chunks), asyncio.timeout(FIRST_BYTES_SECONDS):
            await anext(chunks, None)


async def _begun(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Wait a moment for the first chunk, so that an early error is raised here; then return all chunks."""
    first = asyncio.ensure_future(anext(chunks, None))
    try:
        await asyncio.wait((first,), timeout=FIRST_BYTES_SECONDS)
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        raise

    async def whole() -> AsyncGenerator[bytes, None]:
        try:
            yield b""  # taken below: only a generator that has begun does its clean-up when it is closed
            chunk = await first
            while chunk is not None:
                yield chunk
                chunk = await anext(chunks, None)
        finally:
            first.cancel()
            await asyncio.wait((first,))
            await chunks.aclose()

    begun = whole()
    await anext(begun)
    return begun


async def _output(context: AppContext, wanted: _Wanted, told: TaskAnswer) -> AsyncGenerator[bytes, None]:
    """Yield the output of one attempt, or of all from the current one on."""
    offset, left = wanted.offset, wanted.limit
    attempt, nodes = wanted.attempt or told.attempts, told.node_ids
    origin = origin_of(told, attempt)
    begun = wanted.attempt is not None or told.started_at is not None or told.exit_code is not None
    while True:
        if begun and (wanted.node is None or wanted.node in nodes or wanted.attempt is not None):
            node = NodeId(wanted.node or nodes[0])
            ref = AttemptRef(wanted.task, attempt, origin)
            outputs = context.scheduler.agents.outputs
            reading = outputs.read(node, ref, offset=offset, limit=left, follow=wanted.follow, times=wanted.times)
            async with aclosing(reading) as output:
                async for chunk in output:
                    yield chunk
                    left -= len(chunk) if wanted.limit else 0
            offset = 0
        if not wanted.follow or wanted.attempt or (wanted.limit and left <= 0):
            return
        later = await _next_attempt(context, wanted.task, attempt if begun else attempt - 1)
        if later is None:
            return
        attempt, nodes, origin = later
        begun = True


async def _next_attempt(context: AppContext, task: TaskId, after: int) -> tuple[int, list[str], int] | None:
    """Wait for the next attempt to start; return its number, nodes and origin. None: the task ended without one."""
    seconds, most = LOOK_SECONDS
    while True:
        view = context.scheduler.views.tasks.get(task)
        if view is None:
            return await _last_attempt(context, task, after)
        if view.attempts > after and view.placement is not None and view.started_at is not None:
            return view.attempts, [str(node) for node in view.placement.nodes], view.origin
        if view.status in ENDED or not context.scheduler.ready:
            return None
        await asyncio.sleep(seconds)
        seconds = min(most, seconds * 1.5)


async def _last_attempt(context: AppContext, task: TaskId, after: int) -> tuple[int, list[str], int] | None:
    """Return the last attempt of a task that was archived meanwhile; None if it is not a new one."""
    kept = await context.scheduler.queries.answer(task)
    told = read_answer(kept[1]) if kept else None
    if told is None or told.attempts <= after or told.started_at is None:
        return None
    return told.attempts, told.node_ids, origin_of(told, told.attempts)

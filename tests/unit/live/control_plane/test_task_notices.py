"""Who may be told about tasks, how notices are written, and how messages are sent."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import json
from structlog.testing import capture_logs

from gpuyard.core.domain.notice import Moment, PendingNotice, TaskNotice
from gpuyard.core.domain.values import TaskId, TaskStatus
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.alerts.receivers.mail import Mail
from gpuyard.live.control_plane.alerts.receivers.notification import NotDelivered
from gpuyard.live.control_plane.nodes.outputs import NodeUnreachable
from gpuyard.live.control_plane.task_notices.message import sentence_of
from gpuyard.live.control_plane.task_notices.policy import NoticePolicy, TargetForbidden, is_local
from gpuyard.live.control_plane.task_notices.service import TaskNotices
from gpuyard.live.wire.notices import notice_of, notice_text
from gpuyard.live.wire.task_answers import TaskAnswer
from tests.unit.live.sdk.fake_server import task as answered

MAIL = Mail("ops", "smtp.example.org", 25, "yard@example.org", ("ops@example.org",), "none")
POLICY = NoticePolicy(("chat.example.org", "*.hooks.example.org"), mail=MAIL, mail_domains=("example.org",))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("end:https://x.example/a:b", TaskNotice((Moment.END,), "https://x.example/a:b")),
        ("fail,start:mailto:a@b.c,d@e.f", TaskNotice((Moment.START, Moment.FAIL), "mailto:a@b.c,d@e.f")),
        ("end, each:http://x.example", TaskNotice((Moment.END,), "http://x.example", each=True)),
        ("end:cmd:./done 'a b' | tee x:y", TaskNotice((Moment.END,), "cmd:./done 'a b' | tee x:y")),
    ],
)
def test_a_notice_is_read_and_written(text: str, meant: TaskNotice) -> None:
    assert notice_of(text) == meant
    assert notice_of(notice_text(meant)) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://x.example/hook", "does not say when"),
        ("end", "is not a notice"),
        ("end:ftp://x", "is not a notice"),
        ("ende:https://x.example", "'ende' is not an occasion"),
        ("each:https://x.example", "is not an occasion"),
        ("end:https://x.example/a b", "must not contain spaces"),
        ("end:exec:rm -rf /", "is not a notice"),
        ("end:cmd: ", "must not be empty"),
        ("cmd:./done", "does not say when"),
    ],
)
def test_a_wrong_notice_gets_a_sentence(text: str, said: str) -> None:
    with pytest.raises(WrongRequest, match=said) as refused:
        notice_of(text)
    assert refused.value.field == "notify"


@pytest.mark.parametrize(
    "target",
    [
        "https://chat.example.org/hook",
        "http://CHAT.example.org:8080/",
        "https://a.hooks.example.org/x",
        "mailto:me@example.org",
    ],
)
def test_a_listed_target_is_allowed(target: str) -> None:
    assert POLICY.wrong(target) is None


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("https://evil.example/", "may not notify evil.example"),
        ("https://hooks.example.org/", "may not notify"),
        ("https://chat.example.org.evil.example/", "may not notify"),
        ("https://a..hooks.example.org/", "is not the name of a host"),
        (f"https://{'a' * 64}.hooks.example.org/", "is not the name of a host"),
        ("https://user:pw@chat.example.org/", "must not contain a password"),
        ("mailto:me@evil.example", "may not send mail to evil.example"),
        ("mailto:=?utf-8?q?=0A?=@example.org", "is not a mail address"),  # the mail library ends with an exception
        ("mailto:", "needs 1 to 10 addresses"),
        ("mailto:a@b@example.org", "is not a mail address"),
        ('mailto:"x"@example.org', "is not a mail address"),
    ],
)
def test_another_target_is_refused_with_the_setting_or_the_mistake(target: str, said: str) -> None:
    assert said in (POLICY.wrong(target) or "")


def test_commands_can_be_forbidden() -> None:
    assert NoticePolicy().wrong("cmd:./done") is None
    assert "notifications.commands" in (NoticePolicy(commands=False).wrong("cmd:./done") or "")


def test_by_default_nobody_may_be_told() -> None:
    assert "notifications.hosts" in (NoticePolicy().wrong("https://x.example") or "")
    assert "notifications.mail" in (NoticePolicy().wrong("mailto:a@b.c") or "")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "a.localhost",
        "127.0.0.1",
        "127.8.9.1",
        "::1",
        "169.254.169.254",
        "fe80::1%eth0",
        "0.0.0.0",
        "::ffff:127.0.0.1",
    ],
)
def test_addresses_of_this_machine_and_link_are_known(host: str) -> None:
    assert is_local(host)
    assert not is_local("10.1.2.3")
    assert "own machine" in (
        NoticePolicy(("*",)).wrong(f"http://{f'[{host}]' if ':' in host else host}/") or "own machine"
    )


def test_a_name_that_leads_to_this_machine_is_refused_when_it_is_looked_up() -> None:
    async def look(policy: NoticePolicy) -> str:
        loop = asyncio.get_running_loop()

        async def found(*_: object, **__: object) -> list[object]:
            return [(2, 1, 6, "", ("127.0.0.1", 0))]

        loop.getaddrinfo = found  # type: ignore[assignment, method-assign]
        return await policy.address_of("http://inside.example.org/")

    with pytest.raises(TargetForbidden, match="own machine"):
        asyncio.run(look(NoticePolicy(("*",))))
    assert asyncio.run(look(NoticePolicy(("*",), local=True))) == "127.0.0.1"


def test_the_end_of_an_array_is_told_with_numbers() -> None:
    pending = PendingNotice(TaskId(9), 0, Moment.END, "x", 0.0, 3, (("failed", 1), ("success", 2)))
    assert sentence_of(pending, None) == "All 3 tasks of the array of task-9 have ended: 1 failed, 2 success."


@pytest.mark.parametrize("local_part", ["[", "a\\", "é", "."])
@pytest.mark.parametrize("problem", [None, UnicodeError("label too long")])
def test_no_target_ends_the_service(
    local_part: str, problem: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception would end the scheduler, and again after each start: the message is still pending."""

    async def fails(*_: object) -> None:
        raise problem or NotDelivered("refused")

    async def nothing(_: TaskId) -> None:
        return None

    monkeypatch.setattr(Mail, "deliver", fails)
    service = TaskNotices(
        cast(Any, None), cast(Any, SimpleNamespace(answer=nothing)), cast(Any, None), POLICY,
        clock=lambda: 7.0, run_beside=cast(Any, None),
    )  # fmt: skip
    pending = PendingNotice(TaskId(1), 1, Moment.END, f"mailto:{local_part}@example.org", 5.0)
    tried = asyncio.run(service._try(pending, 1))
    assert tried.result == (None if problem is None else (False, "It could not be sent: UnicodeError."))


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("", (True, "")),
        ("The command ended with exit code 4.", (False, "The command ended with exit code 4.")),
        (NodeUnreachable("Node n1 is not connected."), None),
    ],
)
def test_a_command_is_repeated_only_if_its_node_could_not_be_asked(
    answer: str | Exception, result: tuple[bool, str] | None
) -> None:
    ran: list[tuple[str, str]] = []

    async def run(task: TaskAnswer, shell: str, env: Mapping[str, str], _: float) -> str:
        ran.append((shell, f"{env['GPUYARD_NOTICE']} {env['GPUYARD_TASK_STATUS']} {task.node_ids}"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    service = service_of(answered(7, TaskStatus.SUCCESS, attempts=1, node_ids=["n1"]), run)
    tried = asyncio.run(service._try(PendingNotice(TaskId(7), 0, Moment.END, "cmd:./done", 5.0), 1))
    assert tried.result == result
    assert ran == [("./done", "end success ['n1']")]
    assert (tried.again_at > 7.0) == (result is None)


def test_a_command_of_a_task_that_never_ran_is_given_up() -> None:
    async def run(*_: object) -> str:
        raise AssertionError("there is no node to run it")

    service = service_of(answered(7, TaskStatus.CANCELLED), run)
    tried = asyncio.run(service._try(PendingNotice(TaskId(7), 0, Moment.END, "cmd:./done", 5.0), 1))
    assert tried.result == (False, "The task never ran on a node that could run the command.")


def test_slow_commands_of_one_user_delay_neither_those_of_others_nor_messages() -> None:
    ran: list[str] = []

    async def story() -> None:
        never, on_way = asyncio.Event(), {"a": 0, "b": 0}

        async def run(task: TaskAnswer, shell: str, *_: object) -> str:
            ran.append(f"{task.node_ids[0]} {shell}")
            on_way[task.node_ids[0]] += 1
            assert on_way[task.node_ids[0]] <= 4
            await never.wait()
            return ""

        async def known(task: TaskId) -> tuple[None, bytes]:
            node = "b" if task == 3 else "a"
            return None, json.encode(answered(task, TaskStatus.SUCCESS, attempts=1, node_ids=[node]))

        service = TaskNotices(
            cast(Any, None), cast(Any, SimpleNamespace(answer=known)), cast(Any, None), POLICY,
            clock=lambda: 7.0, run_beside=run,
        )  # fmt: skip
        slow = [PendingNotice(TaskId(1), n, Moment.END, "cmd:slow", 5.0, tenant="t", user="al") for n in range(9)]
        bobs = [PendingNotice(TaskId(n), 0, Moment.END, f"cmd:bob{n}", 5.0, tenant="t", user="bob") for n in (2, 3)]
        service._begin([*slow, *bobs])
        assert (service._busy[True, ("t", "al")], service._busy[True, ("t", "bob")]) == (4, 2)
        for _ in range(20):
            await asyncio.sleep(0)
        for sending in service._sending.values():
            sending.cancel()

    asyncio.run(story())
    assert "b bob3" in ran
    assert len([one for one in ran if one.startswith("a")]) == 4
    assert "a bob2" in ran, "it takes its turn, although four were there before it"


def test_dropped_messages_are_told_of_in_the_log() -> None:
    service = service_of(answered(7, TaskStatus.SUCCESS), None)
    with capture_logs() as told:
        service._tell_of_dropped({("t", "al"): 5})
        service._tell_of_dropped({("t", "al"): 5, ("t", "bob"): 2})
        service._tell_of_dropped({("t", "al"): 8, ("t", "bob"): 2})
    assert [(one["event"], one["user"], one["count"]) for one in told] == [
        ("task_notices_dropped", "bob", 2),
        ("task_notices_dropped", "al", 3),
    ]


def service_of(task: TaskAnswer, run: Any) -> TaskNotices:
    """Return a service that knows one task."""

    async def known(_: TaskId) -> tuple[None, bytes]:
        return None, json.encode(task)

    return TaskNotices(
        cast(Any, None), cast(Any, SimpleNamespace(answer=known)), cast(Any, None), POLICY,
        clock=lambda: 7.0, run_beside=run,
    )  # fmt: skip

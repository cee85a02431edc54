"""Notices of a task as text: `end,fail:https://chat.example.org/hook`, `start,end,each:mailto:me@example.org`, `end:cmd:./done`."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from gpuyard.core.domain.notice import Moment, TaskNotice
from gpuyard.input.strict import WrongRequest

LONGEST_NOTICE = 2200
NoticeText: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LONGEST_NOTICE,
        description="start, end or fail, or several with commas, a colon, and a web address, mailto: with mail addresses, "
        "or cmd: with a command that runs on the node",
    ),
]
MAIL = "mailto:"
COMMAND = "cmd:"
EACH = "each"
_SCHEMES = ("http://", "https://", MAIL, COMMAND)


def notice_of(text: str) -> TaskNotice:
    """Return the notice that a text describes."""
    words, colon, target = text.partition(":")
    target = target.strip()
    if text.startswith(_SCHEMES):
        raise _wrong(f"{text[:60]!r} does not say when; write end,fail:{text[:60]}.")
    if not colon or not target.startswith(_SCHEMES):
        raise _wrong(
            f"{text[:60]!r} is not a notice; write start, end or fail, a colon, and a web address, mailto:ADDRESS or "
            "cmd:COMMAND, such as end,fail:mailto:me@example.org."
        )
    said = [word.strip() for word in words.split(",") if word.strip()]
    unknown = [word for word in said if word not in {*Moment, EACH}]
    moments = tuple(moment for moment in Moment if moment in said)
    if unknown or not moments:
        raise _wrong(
            f"{(unknown or [words])[0][:60]!r} is not an occasion; use start, end and fail, and each for arrays."
        )
    if target.startswith(COMMAND):
        if not target.removeprefix(COMMAND).strip() or "\0" in target:
            raise _wrong("The command of a notice must not be empty; write end:cmd:COMMAND.")
    elif any(not letter.isprintable() or letter == " " for letter in target):
        raise _wrong("The target of a notice must not contain spaces or control characters.")
    return TaskNotice(moments, target, each=EACH in said)


def notice_text(notice: TaskNotice) -> str:
    """Return a notice as text."""
    return f"{','.join((*notice.on, *([EACH] if notice.each else [])))}:{notice.target}"


def _wrong(message: str) -> WrongRequest:
    return WrongRequest("WrongNotice", message, "notify")

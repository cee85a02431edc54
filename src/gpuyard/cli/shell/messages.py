"""Messages in the language of the person: English, or Chinese from the catalog `zh.po` beside this file.

The language is the first that is set of GPUYARD_LANG, LANGUAGE, LC_ALL, LC_MESSAGES and LANG. Names of options and
commands, statuses, codes, events and everything with `--json` stay as they are. The catalog is read directly: there is
no compiled form that could be older than its source, and English needs none.
"""

import os
import re
import sys

TYPE_CHECKING = False  # importing `typing` takes as long as a completion
if TYPE_CHECKING:
    from datetime import datetime

VARIABLES = ("GPUYARD_LANG", "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
LANGUAGES = ("en", "zh")
SENTENCES = frozenset({"reason", "error"})
"""Values of messages that are messages themselves."""
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_catalogs: dict[str, dict[str, str]] = {}


def language() -> str:
    """Return the language of messages: `en` or `zh`. A terminal that cannot show Chinese gets English."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    if encoding not in {"utf8", "gb18030", "gbk"}:
        return "en"
    for name in VARIABLES:
        value = os.environ.get(name, "")
        if value:
            words = value.split(":") if name == "LANGUAGE" else [value]
            return next((code for word in words if (code := re.split("[_.@-]", word)[0].lower()) in LANGUAGES), "en")
    return "en"


def translated(text: str) -> str:
    """Return a text without values in the language of the person."""
    return catalog(language()).get(text, text)


def translated_about(text: str) -> str:
    """Return a help text in the language of the person; it may have several paragraphs."""
    return catalog(language()).get(text.strip(), text)


def localized(text: str) -> str:
    """Return a whole message in the language of the person, if the catalog has its sentences.

    A message that was made elsewhere, such as a refusal of the scheduler, has its values in it already. It is compared
    with the texts of the catalog, whose names in braces stand for values; values that are messages are looked up, too.
    Instants that the scheduler has written in UTC are given in local time, as everywhere on the command line.
    """
    if " UTC" in text:
        from datetime import datetime

        text = in_local_time(text, datetime.now().astimezone())
    known = catalog(language())
    return _localized(text, known) if known else text


def in_local_time(text: str, now: "datetime") -> str:
    """Return a message with its instants (`utc_text` of the core) in local time; those of today without a date."""
    from datetime import UTC, datetime

    def here(found: re.Match[str]) -> str:
        try:
            there = datetime.fromisoformat(found[1]).replace(tzinfo=UTC).astimezone()
        except (ValueError, OverflowError):
            return found[0]  # digits that are no date
        return there.strftime("%H:%M" if there.date() == now.date() else "%Y-%m-%d %H:%M")

    return re.sub(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d) UTC\b", here, text)


def _localized(text: str, known: dict[str, str]) -> str:
    if text in known:
        return known[text]
    whole = _filled_in(text, known)
    if whole is not None:
        return whole
    for found in re.finditer(r"\. (?=[A-Z])", text):
        first = text[: found.start() + 1]
        begun = known.get(first) or _filled_in(first, known)
        if begun is not None:
            return begun + _localized(text[found.end() :], known)
    return text


def _filled_in(text: str, known: dict[str, str]) -> str | None:
    """Return the translation of the text that matches, with its values; None if none does.

    If several match, the one with the most words of its own is meant: a value of the others has some of these words.
    """
    best, values = -1, dict[str, str]()
    translation: str | None = None
    for original, translated_to in known.items():
        begin = original.find("{")
        if begin < 0 or not text.startswith(original[:begin]) or original[-1] not in (text[-1:], "}"):
            continue
        found = re.fullmatch(_pattern(original), text, re.DOTALL)
        own = len(text) - sum(map(len, found.groups())) if found is not None else -1
        if found is not None and own > best:
            best, translation, values = own, translated_to, found.groupdict()
    if translation is None:
        return None
    for name, value in values.items():
        translation = translation.replace(f"{{{name}}}", _localized(value, known) if name in SENTENCES else value)
    return translation


def _pattern(original: str) -> str:
    """Return the regular expression for a text with values. "1 GPUs" may be written as "1 GPU"."""
    parts: list[str] = []
    seen: set[str] = set()
    for literal, name in re.findall(r"([^{]*)(?:\{(\w+)\})?", original):
        plain = re.sub(r"(GPU|CPU|node|task)s\b", r"\1s?", re.escape(literal))
        parts.append(plain.replace(r"\ are\ in\ use", r"\ (?:are|is)\ in\ use"))
        if not name:
            continue
        value = r".+?" if name in SENTENCES else r"(?:(?!\. [A-Z])[^\n])+?"
        if name == "task" and not literal.endswith("task-"):
            value = r"task-\d+"
        parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>{value})")
        seen.add(name)
    return "".join(parts)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line and without its period."""
    return re.split(r"(?<=[a-z0-9)`])\. |。", " ".join(text.split()), maxsplit=1)[0].rstrip(".。")


def catalog(code: str) -> dict[str, str]:
    """Return the translations into a language by their English text; empty for English."""
    if code not in _catalogs:
        path = os.path.join(os.path.dirname(__file__), f"{code}.po")  # noqa: PTH118, PTH120 - pathlib takes long to import
        _catalogs[code] = read_catalog(path) if code != "en" else {}
    return _catalogs[code]


def read_catalog(path: str) -> dict[str, str]:
    """Read a catalog in the format of gettext: pairs of `msgid` and `msgstr`; one without a translation is left out."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        text = file.read()
    found: dict[str, str] = {}
    for entry in text.split("\n\n"):
        parts: dict[str, list[str]] = {}
        place = ""
        for line in entry.splitlines():
            if line.startswith("#"):
                continue
            keyword, space, rest = line.partition(" ")
            begins = space and keyword in {"msgid", "msgstr"}
            place = keyword if begins else place
            parts.setdefault(place, []).append(_unquoted(rest if begins else line))
        original, translation = "".join(parts.get("msgid", [])), "".join(parts.get("msgstr", []))
        if original and translation:
            found[original] = translation
    return found


def _unquoted(line: str) -> str:
    inner = line.strip()[1:-1]
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), inner) if "\\" in inner else inner

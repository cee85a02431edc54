"""Parses JSON or YAML into plain values; errors name the line."""

import json
import re
from typing import Any, Final, NoReturn

from gpuyard.core.domain.errors import WrongInput

_WITH_AN_EXPONENT: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


def parsed(text: bytes) -> Any:
    """Parse JSON or YAML."""
    if not text.strip():
        raise WrongInput("The file is empty.")
    try:
        words = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise WrongInput(f"line {line}: this is not UTF-8; save the file as UTF-8.") from None
    return _json(words) if words.lstrip()[:1] in {"{", "["} else _yaml(words)


def _json(words: str) -> Any:
    try:
        return json.loads(words, object_pairs_hook=without_doubles, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if error.pos >= len(words.rstrip()) or error.msg.startswith("Unterminated"):
            raise WrongInput(f"line {error.lineno}: the file ends too early; part of it is missing.") from None
        place = f"line {error.lineno}, column {error.colno}"
        raise WrongInput(f"{place}: this is not JSON: {error.msg[0].lower()}{error.msg[1:]}.") from None
    except RecursionError:
        raise WrongInput("The file is nested too deeply.") from None


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raise an error if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise WrongInput(f"{twice!r} occurs twice in one object; remove one of them.")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise WrongInput(f"{name} is not a number in JSON; all numbers must be finite.")


def _yaml(words: str) -> Any:
    import yaml

    class Loader(yaml.CSafeLoader):
        """Refuses a name that occurs twice in a mapping, and reads 1e3 as a number, unlike YAML 1.1."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if str(key.value) in seen:
                    raise WrongInput(
                        f"line {key.start_mark.line + 1}: {key.value!r} occurs twice in one object; "
                        "remove one of them."
                    )  # fmt: skip
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_AN_EXPONENT, list("-+0123456789"))
    try:
        return yaml.load(words, Loader=Loader)  # noqa: S506 - it is a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        if line > len(words.rstrip().splitlines()) or "stream end" in (error.problem or ""):
            raise WrongInput(f"line {line}: the file ends too early; part of it is missing.") from None
        raise WrongInput(f"line {line}: this is not YAML: {error.problem or 'it cannot be read'}.") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise WrongInput("The file is neither valid JSON nor valid YAML.") from None

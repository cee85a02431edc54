"""Makefiles: targets, what they are made from, and their recipes.

Rules, variables and pattern rules as people write them by hand, and the functions that rewrite lists of words (foreach,
patsubst, addprefix, addsuffix). Others are not reckoned: what they would give is *.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

ASSIGNMENT = re.compile(r"^\s*(?:export\s+|override\s+)?([\w.-]+)\s*(\?=|:?:?=|\+=|!=)\s*(.*)$")
CLEANS = re.compile(r"(^|[-_])(\w*clean|uninstall)($|[-_])")
REMOVES = re.compile(r"^[@-]*\s*(rm|rmdir|git clean)\b")
RULE = re.compile(r"^([^\s:#=][^:#=]*?)\s*::?\s*(?!=)([^;]*)(?:;(.*))?$")


@dataclass
class Target:
    """Something make can make."""

    name: str
    line: int
    needs: list[str] = field(default_factory=list)
    recipe: list[tuple[int, str]] = field(default_factory=list)
    is_phony: bool = False

    @property
    def only_removes(self) -> bool:
        """Whether it is for starting anew, as `clean` is: nobody means it when asking for all that can be made."""
        return CLEANS.search(self.name) is not None or all(REMOVES.match(line) for _, line in self.recipe)


def targets(content: str) -> dict[str, Target]:
    """Every target, also those a pattern makes for somebody, in the order in which they are written."""
    variables: dict[str, str] = {}
    found: dict[str, Target] = {}
    patterns: dict[str, Target] = {}
    phony: set[str] = set()
    now: list[Target] = []
    for number, whole in _lines(content):
        if whole.startswith("\t"):
            for target in now:
                target.recipe.append((number, whole.strip()))
            continue
        line = re.sub(r"(^|\s)#.*$", "", whole)
        set_ = ASSIGNMENT.match(line)
        if set_:
            _assign(variables, *set_.groups())
            continue
        rule = RULE.match(line)
        if rule is None:
            if line.strip() and not line.startswith(" "):
                now = []
            continue
        names, needs = (expanded(part, variables).split() for part in rule.groups()[:2])
        needs = [need for need in needs if need != "|"]
        if names == [".PHONY"]:
            phony |= set(needs)
            continue
        now = []
        for name in names:
            if name.startswith(".") and "/" not in name:
                continue
            target = (patterns if "%" in name else found).setdefault(name, Target(name, number))
            target.needs += needs
            if rule[3]:
                target.recipe.append((number, rule[3].strip()))
            now.append(target)
    _instantiate(found, patterns)
    for target in found.values():
        target.is_phony = target.name in phony
        target.recipe = [(number, _filled(line, target, variables)) for number, line in target.recipe]
    return found


def _lines(content: str) -> Iterator[tuple[int, str]]:
    kept, first = "", 0
    for number, line in enumerate(content.splitlines(), 1):
        first = first or number
        if line.endswith("\\"):
            kept += line[:-1] + " "
            continue
        yield first, kept + (line.lstrip() if kept else line)
        kept, first = "", 0
    if kept:
        yield first, kept


def _assign(variables: dict[str, str], name: str, how: str, value: str) -> None:
    if how == "?=" and name in variables:
        return
    value = value.strip()
    variables[name] = f"{variables.get(name, '')} {value}".strip() if how == "+=" else "*" if how == "!=" else value


def expanded(text: str, variables: Mapping[str, str], depth: int = 0) -> str:
    """With variables put in, and the functions that only rewrite lists of words."""
    made, at = "", 0
    while (start := text.find("$", at)) >= 0:
        made += text[at:start]
        opening = text[start + 1 : start + 2]
        if opening in {"(", "{"} and opening:
            end = _closing(text, start + 1)
            made += _reckoned(text[start + 2 : end], variables, depth)
            at = end + 1
        elif opening.isalpha():
            made += _reckoned(opening, variables, depth)
            at = start + 2
        else:
            made += "$"
            at = start + 1
    return made + text[at:]


def _closing(text: str, start: int) -> int:
    """Where the bracket that opens there is closed; the end, if it never is."""
    opening, closing = text[start], {"(": ")", "{": "}"}[text[start]]
    open_ = 0
    for place in range(start, len(text)):
        open_ += (text[place] == opening) - (text[place] == closing)
        if not open_:
            return place
    return len(text)


def _reckoned(inner: str, variables: Mapping[str, str], depth: int) -> str:
    """What a variable, `VAR:.a=.b` or a function gives."""
    if depth > 10:
        return "*"

    def full(text: str, more: Mapping[str, str] = variables) -> str:
        return expanded(text, more, depth + 1)

    changed = re.fullmatch(r"([\w.-]+):([^=]*)=(.*)", inner)
    if changed:
        old, new = (form if "%" in form else f"%{form}" for form in map(full, changed.groups()[1:]))
        return " ".join(_matched(word, old, new) for word in full(f"$({changed[1]})").split())
    if re.fullmatch(r"[\w.-]+", inner):
        return full(variables[inner]) if inner in variables else "*"
    function, _, rest = inner.partition(" ")
    parts = rest.split(",", 2)
    match function, parts:
        case "foreach", [name, words, body]:
            own = [{**variables, full(name).strip(): word} for word in full(words).split()]
            return " ".join(full(body.strip(), more) for more in own)
        case "patsubst", [old, new, words]:
            return " ".join(_matched(word, full(old).strip(), full(new).strip()) for word in full(words).split())
        case "addprefix" | "addsuffix", [part, words]:
            first, last = (full(part), "") if function == "addprefix" else ("", full(part))
            return " ".join(f"{first}{word}{last}" for word in full(words).split())
    return "*"


def _matched(word: str, old: str, new: str) -> str:
    """With what stands for % of the old form put into the new one."""
    begin, _, end = old.partition("%")
    if word.startswith(begin) and word.endswith(end) and len(word) >= len(begin) + len(end):
        return new.replace("%", word[len(begin) : len(word) - len(end)])
    return word


def _instantiate(found: dict[str, Target], patterns: dict[str, Target]) -> None:
    """A pattern rule is a rule for every name that somebody needs and nobody makes."""
    waiting = [need for target in found.values() for need in target.needs]
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        for form, rule in patterns.items():
            begin, _, end = form.partition("%")
            if name.startswith(begin) and name.endswith(end) and len(name) > len(begin) + len(end):
                stem = name[len(begin) : len(name) - len(end)]
                needs = [need.replace("%", stem) for need in rule.needs]
                recipe = [(number, line.replace("$*", stem)) for number, line in rule.recipe]
                found[name] = Target(name, rule.line, needs, recipe)
                waiting += needs
                break


def _filled(line: str, target: Target, variables: dict[str, str]) -> str:
    """A line of a recipe as the shell gets it."""
    line = line.lstrip("@-+")
    own = {"@": target.name, "<": target.needs[0] if target.needs else "*", "^": " ".join(target.needs), "*": "*"}
    line = re.sub(r"\$([@<^*])", lambda found: own[found[1]], line)
    line = re.sub(r"\$[({]([@<^*])[DF]?[)}]", lambda found: own[found[1]], line)
    return expanded(line.replace("$$", "\0"), variables).replace("\0", "$")

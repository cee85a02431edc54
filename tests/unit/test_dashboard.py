"""The source of the dashboard: a lock file without addresses and with every platform, nothing built, no inline code."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import REFUSALS, Never, NotNow, Refusal
from gpuyard.core.domain.values import NodeId, TaskClass, TaskId
from gpuyard.live.control_plane.alerts.rules.built_in import BUILT_IN
from gpuyard.live.control_plane.prediction.accuracy import NAMES
from tools.page_build import is_recent

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "dashboard"
SOURCES = sorted((DASHBOARD / "src").rglob("*.ts*"))


def test_the_lock_file_has_no_address_of_a_registry() -> None:
    assert "://" not in (DASHBOARD / "package-lock.json").read_text(encoding="utf-8")


def test_the_lock_file_has_a_binding_for_every_platform_that_people_build_on() -> None:
    packages = json.loads((DASHBOARD / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for platform in (
        "linux-x64-gnu",
        "linux-arm64-gnu",
        "linux-x64-musl",
        "darwin-arm64",
        "darwin-x64",
        "win32-x64-msvc",
    ):
        assert f"node_modules/@rolldown/binding-{platform}" in packages


def test_every_version_is_exact() -> None:
    package = json.loads((DASHBOARD / "package.json").read_text(encoding="utf-8"))
    for name, version in {**package["dependencies"], **package["devDependencies"]}.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), f"{name} {version}"


def test_no_built_file_is_in_the_repository() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src/gpuyard/page", "dashboard/node_modules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.stdout == ""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_source_makes_html_or_code_from_text(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in text, f"{word} in {source.name}"


def test_every_word_on_the_page_is_in_the_catalogs() -> None:
    """Text between tags and in labels comes from a catalog; what is left are names, units and signs."""
    allowed = {"English", "gpuyard", "GPU", "npm", "s"}
    found = []
    for source in (path for path in SOURCES if path.suffix == ".tsx"):
        text = re.sub(r"//.*|/\*.*?\*/", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
        for said in re.findall(
            r"(?:aria-label|placeholder|title)=\"([^\"]+)\"|(?<=[\w\"'}/])>([^<>{}=;()]*[A-Za-z]{2,}[^<>{}=;()]*)</",
            text,
        ):
            words = (said[0] or said[1]).strip()
            if words and words not in allowed and not words.startswith(("python train.py", "gpuyard agent")):
                found.append(f"{source.name}: {words}")
    assert not found


def test_both_catalogs_have_the_same_places_for_values() -> None:
    english = (DASHBOARD / "src/i18n/en.ts").read_text(encoding="utf-8")
    chinese = (DASHBOARD / "src/i18n/zh.ts").read_text(encoding="utf-8")

    def functions(text: str) -> dict[str, int]:
        return {
            name: len([one for one in arguments.split(",") if one.strip()])
            for name, arguments in re.findall(r"^    (\w+): \(([^)]*)\) =>", text, re.MULTILINE)
        }

    ours, theirs = functions(english), functions(chinese)
    assert ours
    assert {name: theirs.get(name) for name in ours} == ours


CHINESE = (DASHBOARD / "src/i18n/zh.ts").read_text(encoding="utf-8")


def section(name: str) -> str:
    """A part of the Chinese catalog."""
    found = re.search(rf"^( +){name}: \{{$(.*?)^\1\}},$", CHINESE, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[2]


def example(kind: type[Refusal]) -> Refusal:
    """A refusal of this kind with values in all its fields."""
    values: dict[type, object] = {
        bool: False,
        int: 3,
        float: 2.5,
        str: "x",
        tuple: ("a", "b"),
        TaskClass: TaskClass.BATCH,
    }
    types = get_type_hints(kind)

    def plain(name: str) -> Any:
        return get_origin(types[name]) or getattr(types[name], "__supertype__", types[name])

    return kind(**{name: values[plain(name)] for name in kind.__struct_fields__})


@pytest.mark.parametrize(
    "kind", [one for one in REFUSALS if issubclass(one, Never | NotNow)], ids=lambda one: one.__name__
)
def test_every_reason_to_wait_has_a_chinese_form_with_its_figures(kind: type[Refusal]) -> None:
    line = re.search(rf"^    {kind.__name__}: (.+),$", section("codes"), re.MULTILINE)
    assert line, f"{kind.__name__} has no Chinese form"
    pattern = re.fullmatch(r'figures\(/(.+)/, "(.+)", "(.+)"\)', line[1])
    if pattern:
        sentence = example(kind).sentence()
        found = re.search(pattern[1], sentence)
        assert found, f"{pattern[1]} does not occur in: {sentence}"
        used = {int(one) for one in re.findall(r"\$(\d)", pattern[2])}
        assert used == set(range(1, len(found.groups()) + 1))


@pytest.mark.parametrize("kind", CauseKind, ids=str)
def test_every_cause_has_a_chinese_form(kind: CauseKind) -> None:
    line = re.search(rf"^    {kind.value}: (.+),$", section("codes"), re.MULTILINE)
    if kind is CauseKind.EXIT_CODE:  # three sentences
        assert "    exit_code: (sentence) =>" in section("codes")
        return
    assert line, f"{kind.value} has no Chinese form"
    pattern = re.fullmatch(r'cause\(/(.+)/, "(.+)"\)', line[1])
    if pattern:
        assert re.search(pattern[1], Cause(kind, TaskId(7), NodeId("n1")).sentence()), pattern[1]


def test_every_rule_of_alerts_and_every_predictor_has_a_chinese_form() -> None:
    rules = re.findall(r"^      (\w+):", section("ruleNames"), re.MULTILINE)
    assert set(rules) == set(BUILT_IN)
    units = re.search(r"^    units: \{(.+)\},$", CHINESE, re.MULTILINE)
    assert units
    assert set(re.findall(r"(\w+): \"", units[1])) == {name for name, rule in BUILT_IN.items() if rule.unit}
    abouts = re.search(r"^    abouts: \{(.+)\},$", CHINESE, re.MULTILINE)
    assert abouts
    assert set(re.findall(r"(\w+): \"", abouts[1])) == set(NAMES)


def test_tasks_that_fit_nowhere_have_an_advice_in_both_languages() -> None:
    never = {one.__name__ for one in REFUSALS if issubclass(one, Never)}
    for catalog in ("en", "zh"):
        text = (DASHBOARD / f"src/i18n/{catalog}.ts").read_text(encoding="utf-8")
        advice = re.search(r"^  advice: \{$(.*?)^  \}", text, re.MULTILINE | re.DOTALL)
        assert advice
        listed = re.search(r"fromEntries\(\[(.+?)\]", advice[1])
        assert listed
        found = {*re.findall(r"^    (\w+):", advice[1], re.MULTILINE), *re.findall(r"\w+", listed[1])}
        assert found == never, catalog


@pytest.mark.parametrize(
    ("version", "recent"),
    [
        ("v20.19.0\n", True),
        ("v20.18.3\n", False),
        ("v22.12.0", True),
        ("v22.11.0", False),
        ("v24.19.0", True),
        ("v23.0.0", True),
        ("v18.20.1", False),
        ("", False),
    ],
)
def test_the_build_takes_the_nodes_that_vite_takes(version: str, recent: bool) -> None:
    assert is_recent(version) is recent

"""The source of the dashboard: a lock file without addresses and with every platform, nothing built, no inline code."""

import json
import re
import subprocess
from pathlib import Path

import pytest

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

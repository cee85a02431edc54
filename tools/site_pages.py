"""Make one site of docs/ and of the pages that stand outside it, such as the README (MkDocs calls these hooks).

A link from a page to a file that is not part of the site, for example a source file, becomes plain text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "readme.zh-CN.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security_policy.md",
    "benchmarks/README.md": "benchmarks.md",
    "profiles/README.md": "profiles.md",
    **{
        page.relative_to(ROOT).as_posix(): f"source/{page.parent.name}.md"
        for page in sorted((ROOT / "src" / "gpuyard").glob("*/README.md"))
    },
}
"""Pages outside docs/, by path in the repository, with their path in the site."""

LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)\s]*\)|[^\]])*)\]\(([^)\s]+)\)")
ELSEWHERE = ("http://", "https://", "mailto:", "#")
PICTURES = {".png", ".svg"}


def on_config(config: MkDocsConfig) -> None:
    """List every decision record and the README of every package in the navigation."""
    tour = [page for page in OUTSIDE.values() if page.startswith("source/")]
    understand = next(entry for entry in config.nav or [] if "Understand it" in entry)
    understand["Understand it"] += [{"Tour of the source": tour}] if tour else []
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))
    section = next(entry for entry in config.nav or [] if "Decisions" in entry)
    section["Decisions"] = ["decisions/README.md", *(f"decisions/{name}" for name in records)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that stand outside docs/."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
        for picture in sorted((ROOT / source).parent.glob("*")) if "/" in source else []:
            if picture.suffix in PICTURES:
                name = picture.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into links of the site."""
    del config
    target = page.file.src_uri
    source = next((name for name, there in OUTSIDE.items() if there == target), f"docs/{target}")

    def replaced(match: re.Match[str]) -> str:
        bang, text, link = match.groups()
        if link.startswith(ELSEWHERE):
            return match[0]
        path, _, anchor = link.partition("#")
        here = _in_site(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if files.get_file_from_path(here) is None:
            return text
        place = posixpath.relpath(here, posixpath.dirname(target) or ".")
        return f"{bang}[{text}]({place}{'#' + anchor if anchor else ''})"

    return LINK.sub(replaced, markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Fail if a page would be published that no entry of the navigation leads to."""
    del config
    reachable = {page.file.src_uri for page in nav.pages}
    missing = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri not in reachable)
    assert not missing, f"add to nav in mkdocs.yml: {', '.join(missing)}"
    return nav


def _in_site(path: str) -> str:
    """Return the path in the site of a file of the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path.removeprefix("docs/")

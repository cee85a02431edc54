"""Build hook of the wheel: a wheel contains the dashboard and the manual pages for `man`. Editable installs need no Node; `make page` builds it there."""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _page_build(root: str) -> ModuleType:
    return _module("page_build", Path(root) / "tools" / "page_build.py")


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PageHook(BuildHookInterface):
    """Builds the page before the files of a wheel are collected, unless it is there."""

    PLUGIN_NAME = "page"

    def dependencies(self) -> list[str]:
        """Return the package with Node if the page must be built and the machine has no recent Node."""
        tools = _page_build(self.root)
        if (tools.PAGE / "index.html").is_file() or tools.node_of_machine() is not None:
            return []
        return [tools.NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, and the manual pages, which `man` finds below share/man of the environment."""
        if version != "editable":
            sys.path.insert(0, str(Path(self.root) / "src"))
            writer = _module("man_pages", Path(self.root) / "src" / "gpuyard" / "cli" / "shell" / "man_pages.py")
            folder = tempfile.mkdtemp(prefix="gpuyard-man-")
            for path in writer.write_pages(folder, self.metadata.version):
                build_data["shared_data"][path] = f"share/man/man1/{Path(path).name}"
        tools = _page_build(self.root)
        if version == "editable" or (tools.PAGE / "index.html").is_file():
            return
        npm = tools.node_of_machine() or tools.node_of_package()
        if npm is None:
            raise RuntimeError(
                "The wheel of gpuyard contains the dashboard, whose build needs Node 20.19, 22.12 or newer."
            )
        tools.build(npm)

"""Build hook of the wheel: a wheel contains the dashboard. Editable installs need no Node; `make page` builds it there."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _page_build(root: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("page_build", Path(root) / "tools" / "page_build.py")
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

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface of hatchling
        """Build the page."""
        tools = _page_build(self.root)
        if version == "editable" or (tools.PAGE / "index.html").is_file():
            return
        npm = tools.node_of_machine() or tools.node_of_package()
        if npm is None:
            raise RuntimeError(
                "The wheel of gpuyard contains the dashboard, whose build needs Node 20.19, 22.12 or newer."
            )
        tools.build(npm)

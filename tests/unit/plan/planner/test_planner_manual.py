"""The page about planning names everything there is."""

from pathlib import Path

import pytest

from gpuyard.plan.planner.generate import FAMILIES
from gpuyard.plan.planner.instance import Instance, WrittenGpu, WrittenModel, WrittenNode, WrittenRequest
from gpuyard.plan.planner.strategies import STRATEGIES

PAGE = (Path(__file__).parents[4] / "docs" / "manual" / "planning.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*STRATEGIES, *FAMILIES])
def test_every_strategy_and_family_has_a_row(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE


@pytest.mark.parametrize("type_", [Instance, WrittenModel, WrittenGpu, WrittenNode, WrittenRequest])
def test_every_key_of_a_file_is_documented(type_: type[Instance]) -> None:
    assert [key for key in type_.__struct_fields__ if f'"{key}"' not in PAGE] == []

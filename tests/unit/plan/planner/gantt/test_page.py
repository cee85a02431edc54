import subprocess
from pathlib import Path
from shutil import which

import msgspec
import pytest

from gpuyard.plan.planner.gantt.bars import chart
from gpuyard.plan.planner.gantt.page import page
from tests.unit.plan.planner.gantt.plans import back_to_back, plan, two_step_problem


def test_a_page_is_self_contained() -> None:
    problem = two_step_problem(2)
    text = page(chart(problem, [("by hand", back_to_back(problem))], 10.0))
    assert "http:" not in text
    assert "https:" not in text
    assert "src=" not in text


def test_a_name_cannot_end_its_script_element() -> None:
    problem = two_step_problem(1)
    text = page(chart(problem, [("</script><b>", plan((0, 1, 5), (0, 8, 14)))]))
    assert "</script><b>" not in text


def test_a_large_plan_stays_a_small_page() -> None:
    problem = two_step_problem(30_000, gpus=4)
    text = page(chart(problem, [("by hand", back_to_back(problem))]))
    assert len(text) < 2_000_000


@pytest.mark.skipif(which("node") is None, reason="the script of the page runs in node")
def test_the_page_draws_its_plans_and_describes_each_bar() -> None:
    problem = two_step_problem(2)
    seen = chart(problem, [("mine", back_to_back(problem)), ("yours", back_to_back(problem))], 10.0)
    script = Path(__file__).with_name("page_in_node.js")
    ran = subprocess.run(["node", script], input=page(seen), capture_output=True, text=True, check=True, timeout=60)
    said = msgspec.json.decode(ran.stdout)
    assert said["canvases"] == 2
    assert said["outside"] == [], "no label is cut at the border"
    assert said["heading"] == "two steps"
    assert said["names"] == ["small", "large", "loading a model", "idle", "critical path", "lower bound"]
    assert "r0 / draft\nsmall on GPU 0\n1.00 s to 5.00 s (4.00 s)" in said["told"]
    assert "GPU 1 loads large\n5.00 s to 8.00 s (3.00 s)" in said["told"]

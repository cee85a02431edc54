from dataclasses import replace

from gpuyard.plan.planner.gantt.bars import chart
from gpuyard.plan.planner.gantt.figure import figure
from tests.unit.plan.planner.gantt.plans import back_to_back, plan, two_step_problem


def test_two_plans_share_one_time_axis() -> None:
    problem = two_step_problem(2)
    drawn = figure(chart(problem, [("mine", back_to_back(problem)), ("yours", back_to_back(problem))], 10.0))
    above, below = drawn.axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_title(loc="left").startswith("mine: 14.0 s")


def test_the_legend_names_what_is_shown_and_a_bound_only_if_there_is_one() -> None:
    problem = two_step_problem(1)
    by_hand = plan((0, 1, 5), (0, 8, 14))
    names = [text.get_text() for text in figure(chart(problem, [("", by_hand)])).legends[0].get_texts()]
    assert names == ["small", "large", "loading a model", "idle", "critical path"]
    names = [text.get_text() for text in figure(chart(problem, [("", by_hand)], 9.0)).legends[0].get_texts()]
    assert names[-1] == "lower bound"


def test_long_names_are_not_cut_at_the_border() -> None:
    problem = replace(two_step_problem(1), name="problem-" * 30)
    problem = replace(problem, models=tuple(replace(model, name=f"{model.name}-" * 20) for model in problem.models))
    drawn = figure(chart(problem, [("a long name of a plan " * 8, plan((0, 1, 5), (0, 8, 14)))], 9.0))
    drawn.draw_without_rendering()
    assert drawn._suptitle is not None  # type: ignore[attr-defined]
    texts = [drawn._suptitle, drawn.axes[0]._left_title, *drawn.legends]  # type: ignore[attr-defined]
    for text in texts:
        box = text.get_window_extent()
        assert drawn.bbox.x0 <= box.x0 < box.x1 <= drawn.bbox.x1
        assert drawn.bbox.y0 <= box.y0 < box.y1 <= drawn.bbox.y1

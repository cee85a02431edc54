"""Pictures of tasks."""

from pathlib import Path
from xml.etree import ElementTree

from gpuyard.learn.analysis.drawing import layout, page, reduced, save_png, summary, svg
from tests.unit.learn.analysis.reading import script

SOURCE = """
def load(): return 1
def clean(x): return x
def both(x, y): return x
a = load()
b = clean(a)
c = both(a, b)
"""


def test_every_task_is_drawn_and_the_critical_path_is_black(tmp_path: Path) -> None:
    graph = script(tmp_path, SOURCE).graph
    root = ElementTree.fromstring(svg(graph))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"load", "clean", "both"} <= set(words)
    assert summary(graph) in words
    assert svg(graph).count('stroke-width="2.4"') == 2 + 1  # two needs, and the legend


def test_what_others_imply_is_not_drawn(tmp_path: Path) -> None:
    drawn = layout(script(tmp_path, SOURCE).graph).needs
    assert [(line.one, line.other) for line in drawn] == [("load", "clean"), ("clean", "both")]
    before = {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["a"]}
    assert reduced(before, [["a"], ["b", "d"], ["c"]]) == [("a", "b"), ("a", "d"), ("b", "c")]


def test_no_line_runs_behind_a_box(tmp_path: Path) -> None:
    source = SOURCE + "d = load()\n" + "".join(f"e{i} = clean({'a' if not i else f'e{i - 1}'})\n" for i in range(4))
    plan = layout(script(tmp_path, source + "f = both(d, e3)\ng = both(b, e3)\n").graph)
    long = [line for line in plan.needs if len(line.points) > 2]
    assert {(line.one, line.other) for line in long} >= {("load-2", "both-2"), ("clean", "both-3")}
    for line in long:
        for _, y in line.points[1:-1]:
            columns = [x for x, at in line.points[1:-1] if at == y]
            boxes = [box for box in plan.boxes.values() if box.x in columns]
            assert boxes
            assert not [box.task.id for box in boxes if box.y <= y <= box.y + 50]


def test_boxes_stand_apart(tmp_path: Path) -> None:
    boxes = list(
        layout(script(tmp_path, SOURCE + "".join(f"v{i} = clean(a)\n" for i in range(20))).graph).boxes.values()
    )
    places = {(box.x, box.y) for box in boxes}
    assert len(places) == len(boxes) == 23


def test_code_in_a_picture_is_text_and_never_markup(tmp_path: Path) -> None:
    graph = script(tmp_path, "def f(x): return x\nf('<script>alert(1)</script>')\nf('$x_{1}$')\n").graph
    ElementTree.fromstring(svg(graph))
    assert "<script>alert" not in page(graph)
    assert "&lt;script&gt;" in page(graph)


def test_a_picture_can_be_a_png_and_one_of_nothing_is_a_picture_too(tmp_path: Path) -> None:
    for source in (SOURCE, ""):
        save_png(script(tmp_path, source).graph, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

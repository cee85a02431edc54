"""A public class name says what the class is, so that a search for it finds one place."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
TWICE = {
    "Rule": "the functions of a placement rule, and the rule of an alert: each is the word of its field",
    "Order": "an order to a worker of a plan, and the order of a list of ended tasks",
}
"""Names with two meanings that are kept, with the reason; ten at most."""


def test_public_class_names_are_defined_once_or_have_a_reason() -> None:
    places = defaultdict(list)
    for path in SOURCES.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCES)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert set(twice) == set(TWICE), twice

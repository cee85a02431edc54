"""What a step is: the words that tell work from glue, the loops and conditions a step stands in, and the files two steps share."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpuyard.learn.analysis.signs import CALLS
from gpuyard.learn.analysis.sources import Found, Module
from gpuyard.learn.analysis.survey import Seen
from gpuyard.learn.analysis.texts import meet, unmarked

KNOWN: Final = {name.split(".")[0] for name in CALLS} | set(sys.stdlib_module_names) | {
    "absl", "attr", "click", "einops", "fire", "hydra", "matplotlib", "ml_collections", "msgspec", "numpy", "omegaconf",
    "pydantic", "rich", "seaborn", "tensorboard", "tensorboardX", "tensorflow", "timm", "torch", "torchmetrics", "torchvision",
    "tqdm", "transformers", "typer", "wandb", "yaml",
}  # fmt: skip
"""Libraries whose functions are no tasks unless a sign says so."""
QUICK = re.compile(
    r"^_?((parse|get|read|load|make|build|create|set|setup|init)_?)?(args?|arguments|opts?|options|config|cfg|conf|settings|parser|"
    r"logger|logging|log|seeds?|random_seed|rng|device|env|environment|paths?|dirs?|rank|world_size|lr|learning_rate)$"
    r"|^_?seed_everything$|^_?is_\w+$|^_?(setup|cleanup|usage|print\w*|log\w*|adjust_\w+|main_process_first|display\w*)$"
)
"""Functions that are glue by their name, whatever they do."""
BUILDERS = re.compile(
    r"^_?(get|make|build|create|init|define|new)_?\w*(weights|model|net|network|optimizers?|optim|schedulers?|criterion|loss|loss_fn|transforms?)$"
    r"|^_?weights?_init$"
)
"""Functions that are glue by their name, unless they work."""
PLAIN = {
    "range", "int", "float", "str", "bool", "len", "min", "max", "sum", "round", "abs", "time.time",
    "time.perf_counter", "torch.device",
}  # fmt: skip
PLAIN_METHODS = {"parse_args", "parse_known_args", "item", "get_rank", "get_world_size"}
"""Calls that give numbers, texts and options."""


@dataclass(eq=False)
class Loop:
    """A loop that was walked into."""

    text: str
    rounds: int | None
    mark: str
    """Stands in paths for what changes from round to round; see `texts.MARK`."""
    carried: set[str] = field(default_factory=set)
    """What goes from one round to the next, and why that matters."""


class When(NamedTuple):
    """A condition, and on which side of it."""

    condition: int
    side: int
    text: str


@dataclass(eq=False)
class Step:
    """A part of the work."""

    number: int
    node: ast.stmt | ast.expr
    module: Module
    top: ast.stmt
    """The statement of the walked body that it belongs to."""
    found: Found | None
    name: str
    loops: tuple[Loop, ...]
    whens: tuple[When, ...]
    seen: Seen


def shared_files(earlier: Seen, later: Seen, *, only_results: bool = False) -> Iterator[str]:
    """Why one has to be before the other, because of files."""
    for wrote in sorted(earlier.writes):
        for read in sorted(later.reads):
            if meet(wrote, read):
                yield f"file {read if '*' in unmarked(wrote) and '*' not in unmarked(read) else unmarked(wrote)}"
    if only_results:
        return
    for read in sorted(earlier.reads):
        for wrote in sorted(later.writes):
            if meet(read, wrote):
                yield f"file {unmarked(wrote)}, before it changes"


def unseen_effects(earlier: Seen, later: Seen) -> Iterator[str]:
    """Why one has to be before the other, because nobody can see what code that is made at run time, or a program, does."""
    if "runs text" in earlier.effects | later.effects:
        yield "text that is run as code"
    if ("starts programs" in earlier.effects and later.touches_files) or (
        "starts programs" in later.effects and earlier.touches_files and earlier.effects | earlier.writes
    ):
        yield "a program is started"


def exclusive(one: Step, other: Step) -> bool:
    """Whether they stand on different sides of a condition."""
    return exclusive_sides(one.whens, other.whens)


def exclusive_sides(one: tuple[When, ...], other: tuple[When, ...]) -> bool:
    """Whether two places can not both be reached."""
    sides = {when.condition: when.side for when in one}
    return any(sides.get(when.condition, when.side) != when.side for when in other)

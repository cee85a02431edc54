"""`gpuyard gpus`: all GPUs and what they do, as a list or as a map of the cluster."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.output.watching import IntervalOption, WatchOption, keep_printing

if TYPE_CHECKING:
    from gpuyard.cli.output.screen import Screen
    from gpuyard.live.sdk import Client
    from gpuyard.live.wire.answers import GpuAnswer

NAMES = ("ID", "MODEL", "MEMORY", "STATUS", "USER", "TASKS", "USED", "MEM USED", "TEMP", "NOTE")
RIGHT = ("MEMORY", "USED", "MEM USED", "TEMP")
STATES = ("idle", "busy", "external", "offline")
LIST_AT_MOST = 32
"""A terminal shows more GPUs than this as a map, unless --list is given."""


def gpus(
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NODE", help="Only GPUs of this node; again for others.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("-m", "--gpu-model", metavar="MODEL", help="Only GPUs of this model.")
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("-s", "--status", metavar="STATUS", help="Only idle, busy, external or offline GPUs."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("-u", "--user", metavar="NAME", help="Only GPUs that tasks of this user hold.")
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="One line for each GPU.")] = False,
    as_map: Annotated[bool, typer.Option("--map", help="One line for each node, one cell for each GPU.")] = False,
    watch: WatchOption = False,
    interval: IntervalOption = 2.0,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Show all GPUs and what they do: a list, or at a terminal a map if there are many."""
    if as_list and as_map:
        raise typer.BadParameter("choose one of --list and --map", param_hint="'--map'")
    if watch and as_json:
        raise typer.BadParameter("choose one of --watch and --json", param_hint="'--watch'")
    wanted = _Wanted(node, model, _states(status), user)
    if as_json and wanted:
        raise typer.BadParameter("it prints all GPUs; filter them there", param_hint="'--json'")
    cluster = client(server, token)
    if as_json:
        from gpuyard.cli.output.printing import print_answer

        cluster.gpus()
        print_answer(cluster)
        return
    if watch:
        keep_printing(lambda screen: _lines(cluster, wanted, screen, as_list=as_list, as_map=as_map), interval)
        return
    from gpuyard.cli.output.screen import screen_of

    lines = _lines(cluster, wanted, screen_of(), as_list=as_list, as_map=as_map)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


class _Wanted:
    """Which GPUs."""

    def __init__(self, nodes: list[str] | None, models: list[str] | None, states: list[str], user: str | None) -> None:
        self._nodes, self._models, self._states, self._user = nodes, models, states, user

    def __bool__(self) -> bool:
        return bool(self._nodes or self._models or self._states or self._user)

    def chosen(self, gpus: "list[GpuAnswer]") -> "list[GpuAnswer]":
        """Return those; a node or model that does not exist is refused with the nearest name."""
        _must_exist("node", self._nodes, {gpu.node_id for gpu in gpus}, "--node")
        _must_exist("GPU model", self._models, {gpu.model for gpu in gpus}, "--gpu-model")
        return [
            gpu
            for gpu in gpus
            if (not self._nodes or gpu.node_id in self._nodes)
            and (not self._models or gpu.model in self._models)
            and (not self._states or gpu.status in self._states)
            and (self._user is None or gpu.user == self._user)
        ]


def _must_exist(what: str, names: list[str] | None, known: set[str], option: str) -> None:
    for name in names or ():
        if name not in known:
            from gpuyard.input.nearest_name import closest_word

            near = closest_word(name, sorted(known))
            hint = (
                f"; did you mean {near}?" if near else f"; there are {', '.join(sorted(known)[:10])}" if known else ""
            )
            raise typer.BadParameter(f"there is no {what} {name}{hint}", param_hint=f"'{option}'")


def _states(given: list[str] | None) -> list[str]:
    words = [word for one in given or () for word in one.split(",")]
    for word in words:
        if word not in STATES:
            from gpuyard.input.nearest_name import closest_word

            near = closest_word(word, STATES)
            hint = f"did you mean {near}?" if near else f"choose from {', '.join(STATES)}"
            raise typer.BadParameter(f"{word} is no status of a GPU; {hint}", param_hint="'--status'")
    return words


def _lines(cluster: "Client", wanted: _Wanted, screen: "Screen", *, as_list: bool, as_map: bool) -> list[str]:
    found = wanted.chosen(cluster.gpus().gpus)
    if as_list or not (as_map or (screen.width is not None and len(found) > LIST_AT_MOST)):
        return _table(found, screen)
    return gpu_map(cluster, screen, found)


def gpu_map(cluster: "Client", screen: "Screen", found: "list[GpuAnswer] | None" = None) -> list[str]:
    """Return totals, who holds what, and the map of these GPUs; of all, if none are given."""
    from gpuyard.cli.output.gpu_map import LEGEND, map_lines, total_lines, user_lines
    from gpuyard.cli.output.screen import cut

    found = cluster.gpus().gpus if found is None else found
    nodes = cluster.nodes().nodes
    legend = cut(LEGEND, screen.width) if screen.width else LEGEND
    return [
        *total_lines(found, screen),
        *user_lines(found, screen),
        "",
        *map_lines(found, nodes, screen),
        screen.paint(legend, "dim"),
    ]


def _table(gpus: "list[GpuAnswer]", screen: "Screen") -> list[str]:
    from gpuyard.cli.output.fitted_table import TableColumn, table_lines
    from gpuyard.cli.output.gpu_map import CELL_COLORS
    from gpuyard.cli.output.printing import one_line

    ranks = {"NOTE": 1, "TEMP": 4, "MEM USED": 3, "MEMORY": 5, "USER": 2, "MODEL": 6}
    least = {"NOTE": 8, "MODEL": 8, "TASKS": 8, "USER": 6}
    columns = [TableColumn(name, name in RIGHT, least.get(name), ranks.get(name, 0)) for name in NAMES]
    rows = [
        [
            gpu.id,
            one_line(gpu.model),
            f"{gpu.memory / 1024:.0f} GB",
            gpu.status,
            one_line(gpu.user or "–"),
            " ".join(gpu.tasks) or "–",
            "–" if gpu.utilization is None else f"{gpu.utilization:.0f}%",
            "–" if gpu.memory_used is None else f"{gpu.memory_used / 1024:.1f} GB",
            "–" if gpu.temperature is None else f"{gpu.temperature:.0f} °C",
            one_line(gpu.why or ("virtual" if gpu.virtual else "–")),
        ]
        for gpu in gpus
    ]
    place = NAMES.index("STATUS")
    colors = [[CELL_COLORS.get(row[place]) if at == place else None for at in range(len(NAMES))] for row in rows]
    return table_lines(columns, rows, screen, colors)

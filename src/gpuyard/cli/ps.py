"""`gpuyard ps`: the queue, as a table."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, past_instant_of
from gpuyard.cli.output.watching import IntervalOption, WatchOption, keep_printing

if TYPE_CHECKING:
    from gpuyard.cli.output.screen import Screen
    from gpuyard.cli.output.task_rows import TaskRow
    from gpuyard.live.sdk import Client

OPEN = ("pending", "running", "suspended")
ENDED = "success,failed,cancelled,timeout"
SORT_WORDS = {
    "id": "created_at", "age": "created_at", "started": "started_at", "ran": "started_at", "finished": "finished_at",
    "tries": "attempts",
}  # fmt: skip
"""Names of columns, and what the scheduler calls the order."""


def ps(
    every: Annotated[bool, typer.Option("-a", "--all", help="Include ended tasks.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "-s", "--status", metavar="STATUS", help="Only tasks with this status: pending, running, success, …"
        ),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only your tasks.")] = False,
    tenant: Annotated[
        str | None, typer.Option("-t", "--tenant", metavar="NAME", help="Only tasks of this tenant.")
    ] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="Only tasks of this user.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", help="Only tasks of this project.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only tasks with exactly this name.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("-q", "--search", metavar="TEXT", help="Only tasks with this text in name, command, id or user."),
    ] = None,
    priority: Annotated[
        str | None, typer.Option("-p", "--priority", metavar="high|low|N", help="Only tasks with this priority.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only tasks submitted since then, such as 2h (ago), 14:30, yesterday or a date.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="Order: queue, id, name, user, priority, gpus, started, …; -COLUMN reverses.",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="LIST", help="Columns to print, such as id,name,why.")
    ] = None,
    unfold: Annotated[
        bool, typer.Option("--unfold", help="One line for each task of an array, a sweep or a map.")
    ] = False,
    watch: WatchOption = False,
    interval: IntervalOption = 2.0,
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=1, max=1000, help="Maximum number of lines.")
    ] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Continue a list where --json ended.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Show the queue: running tasks, then waiting ones in the order in which they go, then with -a ended ones.

    With --json the tasks are listed newest first, unless --sort gives another order.
    """
    chosen = _columns(columns)
    if watch and as_json:
        raise typer.BadParameter("choose one of --watch and --json", param_hint="'--watch'")
    if cursor is not None and not as_json:
        raise typer.BadParameter("it continues a list of --json; use -n to show more lines", param_hint="'--cursor'")
    begin = past_instant_of(since, "--since")
    cluster = client(server, token)
    if mine:
        from gpuyard.cli.input.task_selection import own_name

        own = own_name(cluster)
        if user not in {None, own}:
            raise typer.BadParameter(f"--mine means {own}; use one of the two", param_hint="'--user'")
        user = own
    filters: dict[str, Any] = {
        "tenant": tenant, "user": user, "project": project, "name": name, "priority": priority, "since": None if begin is None else begin.isoformat(),
    }  # fmt: skip
    asked = QueueTable(cluster, filters, search, _statuses(status, every=every), _order(sort), limit, fold=not unfold)
    if as_json:
        asked.print_json(cursor)
    elif watch:
        keep_printing(lambda screen: asked.lines(screen, chosen, watched=True), interval)
    else:
        from gpuyard.cli.output.screen import screen_of

        sys.stdout.write("".join(f"{line}\n" for line in asked.lines(screen_of(), chosen)))
        if asked.hidden:
            typer.echo(asked.hidden, err=True)


class QueueTable:
    """What to show."""

    def __init__(
        self,
        cluster: "Client",
        filters: dict[str, Any],
        search: str | None,
        statuses: list[str],
        sort: str | None,
        limit: int,
        *,
        fold: bool,
    ) -> None:
        self._cluster = cluster
        self._filters = filters
        self._search = search
        self._open = [word for word in statuses if word in OPEN]
        self._ended = [word for word in statuses if word not in OPEN]
        self._sort = sort
        self._limit = limit
        self._fold = fold
        self.hidden = ""
        """A sentence if not everything is shown."""

    def print_json(self, cursor: str | None) -> None:
        """Print the list of the scheduler as it sent it."""
        from gpuyard.cli.output.printing import print_answer

        status = ",".join(self._open + self._ended)
        if len(self._open) == len(OPEN) and len(self._ended) == ENDED.count(",") + 1:
            status = ""
        if self._sort in {"queue", "-queue"}:
            self._cluster.queue(
                **self._filters, status=",".join(self._open), query=self._search, limit=self._limit, sort=self._sort,
                fold=self._fold,
            )  # fmt: skip
        else:
            self._cluster.page(
                **self._filters, status=status or None, query=self._search, limit=self._limit, cursor=cursor,
                sort=self._sort,
            )  # fmt: skip
        print_answer(self._cluster)

    def lines(self, screen: "Screen", columns: list[str] | None, *, watched: bool = False) -> list[str]:
        """Return the table, as long as allowed; when watched, below a line of totals."""
        from gpuyard.cli.output.fitted_table import table_lines
        from gpuyard.cli.output.task_rows import COLUMNS, cells_of, usual_columns

        limit = min(self._limit, max(1, screen.height - 4)) if watched and screen.height else self._limit
        tasks, total, totals, older = self._look(limit)
        chosen = columns or usual_columns(tasks)
        texts, colors = cells_of(tasks, chosen)
        lines = table_lines([COLUMNS[name][0] for name in chosen], texts, screen, colors)
        self.hidden = ""
        if len(tasks) < total or older:
            self.hidden = f"{len(tasks):,} of {total:,} lines" if len(tasks) < total else f"{len(tasks):,} lines"
            self.hidden += f" ({totals})" if totals else ""
            self.hidden += f", without {older:,} tasks that ended earlier" if older else ""
            self.hidden += "; -n shows more."
        return [*([totals, ""] if watched and totals else []), *lines]

    def _look(self, limit: int) -> "tuple[list[TaskRow], int, str, int]":
        """Return the rows, how many there are, the totals of the queue in words, and the number of further ended tasks.

        If there is too much of everything, what runs, what waits and what has ended get equal shares.
        """
        if self._ended and self._sort is not None:  # one order for both: a list of the scheduler
            page = self._cluster.page(
                **self._filters, status=",".join(self._open + self._ended), query=self._search, limit=limit,
                sort=self._sort,
            )  # fmt: skip
            return list(page.tasks), page.total, "", 0
        rows: list[TaskRow] = []
        total, totals, older = 0, "", 0
        if self._open:
            answer = self._queue(self._open, limit)
            rows, total = list(answer.rows), answer.total
            totals = f"{answer.running:,} running, {answer.pending:,} waiting"
            totals += f", {answer.suspended:,} suspended" if answer.suspended else ""
            if self._sort is None and total > limit and "pending" in self._open and len(self._open) > 1:
                waiting = self._queue(["pending"], limit).rows
                busy = [row for row in rows if row.status != "pending"]
                shown = min(len(busy), max(limit // 2, limit - len(waiting)))
                rows = [*busy[:shown], *waiting[: limit - shown]]
        if self._ended:
            over, older = self._over(limit)
            known = {row.id for row in rows}
            over = [task for task in over if task.id not in known]
            total += len(over)
            rows = rows[: max(limit - len(over), limit // 2)]
            rows = [*rows, *over[: limit - len(rows)]]
        return rows, total, totals, older

    def _over(self, limit: int) -> "tuple[list[TaskRow], int]":
        """Return lines of ended tasks, the latest end first, and the number of ended tasks behind them."""
        status = ",".join(self._ended)
        if self._fold:
            ended = self._cluster.ended(**self._filters, status=status, query=self._search, limit=limit)
            shown = sum(row.count for row in ended.rows)
            return list(ended.rows), max(0, ended.tasks - shown) if ended.has_more else 0
        page = self._cluster.page(**self._filters, status=status, query=self._search, limit=limit, sort="-finished_at")
        return list(page.tasks), page.total - len(page.tasks)

    def _queue(self, statuses: list[str], limit: int) -> Any:
        return self._cluster.queue(
            **self._filters,
            status=",".join(statuses),
            query=self._search,
            limit=limit,
            sort=self._sort,
            fold=self._fold,
        )


def _statuses(given: list[str] | None, *, every: bool) -> list[str]:
    if given:
        return [word for one in given for word in one.split(",")]
    return [*OPEN, *(ENDED.split(",") if every else ())]


def _order(sort: str | None) -> str | None:
    if sort is None:
        return None
    down, by = ("-" if sort.startswith("-") else ""), sort.removeprefix("-")
    return down + SORT_WORDS.get(by, by)


def _columns(given: str | None) -> list[str] | None:
    """Return the columns that were asked for; a wrong one is refused with the nearest."""
    if given is None:
        return None
    from gpuyard.cli.output.task_rows import COLUMNS

    chosen = [word.strip().lower() for word in given.split(",") if word.strip()]
    for word in chosen:
        if word not in COLUMNS:
            from gpuyard.input.nearest_name import closest_word

            near = closest_word(word, COLUMNS)
            message = f"there is no column {word}; " + (f"did you mean {near}?" if near else f"choose from {', '.join(COLUMNS)}")  # fmt: skip
            raise typer.BadParameter(message, param_hint="'--columns'")
    if not chosen:
        raise typer.BadParameter(f"it names no column; choose from {', '.join(COLUMNS)}", param_hint="'--columns'")
    return list(dict.fromkeys(chosen))

"""Names that a shell completes: tasks, nodes, tenants, GPU models. Bounded, and answered from memory."""

import re

from gpuyard.core.domain.values import TenantId
from gpuyard.live.control_plane.access.principal import Action, may, visible_tenant
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.query import Parameter, counted, one_of
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.views import TaskView
from gpuyard.live.wire.answers import CompletionList, CompletionWord
from gpuyard.live.wire.tasks import format_task_id

KINDS = ("task", "node", "tenant", "gpu_model")
USUAL_LIMIT, MOST_LIMIT = 50, 200
LONGEST_PREFIX = 200
_WORD = re.compile(r"[\w.:@+%-][\w.:@+%/-]*")
"""Names that every shell takes as one word without quotes."""


def _prefix(value: str) -> str:
    if len(value) > LONGEST_PREFIX:
        raise ValueError(f"it must be at most {LONGEST_PREFIX} characters long")
    return value


PARAMETERS = (
    Parameter("kind", "What is named.", one_of({kind: kind for kind in KINDS}), values=KINDS),
    Parameter("prefix", "The beginning of the name; for a task also of its number.", _prefix),
    counted("limit", f"Number of names (default: {USUAL_LIMIT}).", 1, MOST_LIMIT),
)


async def get_completions(context: AppContext, request: Request) -> Response:
    """Return names that begin with a prefix; members and viewers see the tasks of their tenant."""
    asked = request.query
    kind, prefix, limit = asked.get("kind", "task"), asked.get("prefix", ""), asked.get("limit", USUAL_LIMIT)
    if kind == "task":
        words = await _tasks(context, visible_tenant(request.principal), prefix, limit)
    else:
        named = await _names(context, request, kind)
        words = sorted((one for one in named if one.word.casefold().startswith(prefix.casefold())), key=_by_word)
    return json_response(CompletionList(kind, words[:limit]))


def _by_word(one: CompletionWord) -> str:
    return one.word


async def _tasks(context: AppContext, tenant: TenantId | None, prefix: str, limit: int) -> list[CompletionWord]:
    """Return open tasks, and ended ones that are not in the archive yet, the newest first."""

    def wanted(view: TaskView) -> bool:
        if tenant is not None and view.spec.tenant != tenant:
            return False
        number = str(view.id)
        ids = number.startswith(prefix) or format_task_id(view.id).startswith(prefix)
        return ids or view.spec.name.startswith(prefix)

    found = await context.scheduler.views.newest(wanted, most=limit)
    words: dict[str, CompletionWord] = {}
    for view in found:
        name, status = view.spec.name, view.status.value
        word = next(
            (one for one in (format_task_id(view.id), str(view.id), name) if one.startswith(prefix) and _WORD.fullmatch(one)),
            None,
        )  # fmt: skip
        if word is not None:
            words.setdefault(word, CompletionWord(word, f"{name}, {status}" if name and word != name else status))
    return list(words.values())


async def _names(context: AppContext, request: Request, kind: str) -> list[CompletionWord]:
    views, principal = context.scheduler.views, request.principal
    if kind == "tenant":
        names = [str(name) for name in await context.scheduler.queries.look(lambda state, _: list(state.tenants))]
        return [
            CompletionWord(name)
            for name in names
            if may(principal, Action.SEE, TenantId(name)) and _WORD.fullmatch(name)
        ]
    if not may(principal, Action.SEE_CLUSTER):
        return []
    if kind == "node":
        return [CompletionWord(str(node.spec.id), node.status) for node in list(views.nodes.values())]
    return [CompletionWord(model.replace(" ", "-")) for model in views.gpu_models]

"""The table: every address there is, what it takes to use it, what goes in and what comes out.

Dispatch, the OpenAPI document and the page of the documentation are made from it, so none of them can know of an
address that the others do not.
"""

from gpuyard.control_plane.access.who import Action
from gpuyard.control_plane.rest import gpus, health, submit, tasks
from gpuyard.control_plane.rest.call import Route
from gpuyard.domain import commands as command
from gpuyard.wire import answers as wire
from gpuyard.wire.tasks import BatchAnswer, BatchRequest, TaskAnswer, TaskRequest

SEE, SUBMIT, STOP = Action.SEE, Action.SUBMIT, Action.STOP
SEE_YARD, RUN_YARD = Action.SEE_YARD, Action.RUN_YARD
V1 = "/api/v1"

TASKS = (
    Route("POST", f"{V1}/tasks", submit.post_task, SUBMIT, "Submit a task; with `array`, many, told as a batch is.", TaskRequest, TaskAnswer, 201, errors=(409, 413)),
    Route("POST", f"{V1}/tasks:batch", submit.post_batch, SUBMIT, "Submit many tasks, all or none.", BatchRequest, BatchAnswer, 201, errors=(409, 413)),
    Route("GET", f"{V1}/tasks", tasks.list_tasks, SEE, "Tasks, the newest first.", None, wire.TaskList, query=tasks.FILTERS),
    Route("GET", f"{V1}/tasks/{{id}}", tasks.get_task, SEE, "One task.", None, TaskAnswer, errors=(404,)),
    Route("PATCH", f"{V1}/tasks/{{id}}", tasks.change_task, STOP, "Another priority, or a longer timeout.", tasks.TaskChange, TaskAnswer, errors=(404, 409)),
    Route("DELETE", f"{V1}/tasks/{{id}}", tasks.cancel_task, STOP, "Cancel a task; one that has ended stays as it was.", None, wire.CancelAnswer, errors=(404,)),
    Route("GET", f"{V1}/tasks/{{id}}/explain", tasks.explain_task, SEE, "Why a task waits, and when it is likely to start.", None, wire.ExplainAnswer, errors=(404,)),
    Route("POST", f"{V1}/tasks/{{id}}/suspend", tasks.telling(command.SuspendTask), STOP, "Move a running task to host memory.", None, TaskAnswer, errors=(404, 409)),
    Route("POST", f"{V1}/tasks/{{id}}/resume", tasks.telling(command.ResumeTask), STOP, "Let a suspended task go on.", None, TaskAnswer, errors=(404, 409)),
    Route("POST", f"{V1}/tasks/{{id}}/hold", tasks.telling(command.HoldTask), STOP, "Keep a waiting task out of the queue.", None, TaskAnswer, errors=(404, 409)),
    Route("POST", f"{V1}/tasks/{{id}}/release", tasks.telling(command.ReleaseTask), STOP, "Let a held task go on.", None, TaskAnswer, errors=(404, 409)),
)  # fmt: skip

YARD = (
    Route("GET", f"{V1}/gpus", gpus.get_gpus, SEE_YARD, "All GPUs.", None, wire.GpusAnswer),
    Route("GET", f"{V1}/quota", gpus.get_quota, SEE_YARD, "How the GPUs are split between online and batch work.", None, wire.QuotaAnswer),
    Route("PUT", f"{V1}/quota", gpus.put_quota, RUN_YARD, "Split them anew, at once.", wire.QuotaRequest, wire.QuotaAnswer),
)  # fmt: skip

ROOT = (
    Route("GET", "/health", health.get_health, None, "Whether the scheduler works.", None, wire.HealthAnswer),
    Route("GET", "/healthz", health.get_health, None, "The same.", None, wire.HealthAnswer),
    Route("GET", "/readyz", health.get_ready, None, "Whether it accepts work.", None, wire.HealthAnswer, errors=(503,)),
)  # fmt: skip

ROUTES: tuple[Route, ...] = (*TASKS, *YARD, *ROOT)

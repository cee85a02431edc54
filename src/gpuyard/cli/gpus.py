"""`gpuyard gpus`: all GPUs and what they do."""

from gpuyard.cli.options import Json, Server, Token, client

NAMES = ("ID", "MODEL", "MEMORY", "STATUS", "TASKS", "USED", "MEM USED", "TEMP", "NOTE")


def gpus(as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """List all GPUs and what they do."""
    yard = client(server, token)
    known = yard.gpus()
    from gpuyard.cli.printing import print_answer, print_table

    if as_json:
        print_answer(yard)
        return
    rows = (
        (
            gpu.id,
            gpu.model,
            f"{gpu.memory / 1024:.0f} GB",
            gpu.status,
            gpu.tasks,
            None if gpu.utilization is None else f"{gpu.utilization:.0f}%",
            None if gpu.memory_used is None else f"{gpu.memory_used / 1024:.1f} GB",
            None if gpu.temperature is None else f"{gpu.temperature:.0f} °C",
            gpu.why or ("virtual" if gpu.virtual else None),
        )
        for gpu in known.gpus
    )
    print_table(NAMES, rows, right=("MEMORY", "USED", "MEM USED", "TEMP"))

"""Runs one pickled call in a task: `python -m gpuyard.system.call_runner INDEX`.

It finds the function and the arguments of its chunk in GPUYARD_FILES_DIR, and leaves the value or the exception at
GPUYARD_RESULT_FILE. The exit code is 1 if the call raised, so that the task counts as failed and its retries apply.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuyard.system import payloads

CALL_RUNNER = "gpuyard.system.call_runner"
"""The name of this module, which is `__main__` in a task."""
FUNCTION, ARGUMENTS = "function", "arguments"
LONGEST_TRACEBACK = 100_000


def main(index: int) -> int:
    """Run the call with this number in its chunk; return the exit code."""
    folder, result = Path(os.environ["GPUYARD_FILES_DIR"]), Path(os.environ["GPUYARD_RESULT_FILE"])
    try:
        function, args, kwargs = _call(folder, index)
        value = function(*args, **kwargs)
        content = _pickled(value)
    except BaseException as error:
        import traceback

        text = "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]
        print(text, end="", file=sys.stderr, flush=True)
        _leave(result, _failure(error, text))
        return 1
    _leave(result, payloads.pack(content, kind=payloads.VALUE))
    return 0


def _call(folder: Path, index: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    packed = payloads.read((folder / FUNCTION).read_bytes())
    payloads.check(packed)
    arguments = payloads.read((folder / ARGUMENTS).read_bytes())
    known = set(sys.path)
    sys.path += [path for path in packed.header.get("path", []) if path not in known and Path(path).exists()]
    function = packed.load()
    args, kwargs = arguments.load(*payloads.part_of(arguments, index))
    return function, args, kwargs


def _pickled(value: Any) -> bytes:
    import cloudpickle

    content: bytes = cloudpickle.dumps(value)
    return content


def _failure(error: BaseException, text: str) -> bytes:
    """Return the exception as a payload. One that does not survive pickling, or would end its reader, is described."""
    about = {
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "text": str(error)[:10_000],
        "traceback": text,
    }
    if isinstance(error, Exception):
        try:
            import pickle

            content = _pickled(error)
            if type(pickle.loads(content)) is type(error):  # noqa: S301 - our own
                return payloads.pack(content, kind=payloads.EXCEPTION, **about)
        except Exception as lost:  # its description is still useful
            about["not_pickled"] = str(lost)[:1000]
    return payloads.pack(b"", kind=payloads.DESCRIBED, **about)


def _leave(path: Path, content: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

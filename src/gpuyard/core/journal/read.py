"""Print the facts of a journal, or of a folder of retired facts, a line of JSON each.

    python -m gpuyard.core.journal.read FOLDER [--after NUMBER]

Every fact is checked against the chain. A journal that is being written can be read as well.
"""

import argparse
import signal
import sys
from pathlib import Path

import msgspec

from gpuyard.core.domain.errors import JournalError
from gpuyard.core.journal.stores.sqlite import read_folder


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuyard.core.journal.read", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--after", type=int, metavar="NUMBER", help="only events with higher numbers")
    given = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when the reader, such as `head`, closes the pipe
    encode = msgspec.json.Encoder().encode
    try:
        for record in read_folder(given.folder, given.after):
            sys.stdout.buffer.write(encode(record) + b"\n")
    except JournalError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

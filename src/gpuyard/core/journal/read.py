"""Print the events of a journal, or of a folder of retired events, a line of JSON each.

    python -m gpuyard.core.journal.read FOLDER_OR_URL [--after NUMBER]

Every event is checked against the chain. A journal that is being written can be read as well.
"""

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpuyard.core.domain.errors import JournalError
from gpuyard.core.journal.copying import is_url
from gpuyard.core.journal.records import Record
from gpuyard.core.journal.stores.sqlite import read_folder


def read_journal(place: str, after: int | None = None) -> Iterator[Record]:
    """Read the journal in a folder or a database. `after` None: begin with the first stored event."""
    if not is_url(place):
        return read_folder(Path(place), after)
    from gpuyard.core.journal.stores.postgres_follower import PostgresFollower

    return PostgresFollower.open(place).read(after)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuyard.core.journal.read", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("place", metavar="FOLDER_OR_URL")
    parser.add_argument("--after", type=int, metavar="NUMBER", help="only events with higher numbers")
    given = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when the reader, such as `head`, closes the pipe
    encode = msgspec.json.Encoder().encode
    try:
        for record in read_journal(given.place, given.after):
            sys.stdout.buffer.write(encode(record) + b"\n")
    except JournalError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

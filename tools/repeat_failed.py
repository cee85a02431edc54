"""Run the few tests that failed beside others once more, alone: `python -m tools.repeat_failed`, called by `make test`.

Tests with real processes share the machine with the other workers of pytest, and a machine that stalls for seconds
makes one of some thousand fail. Such a test passes alone. It is printed, so that it is mended; one that fails alone,
too, or more than `MOST` failures, fail the run. Reasons: docs/decisions/0061-failed-tests-run-again-alone.md.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 5
"""More failures than this are not the machine's."""
RECORD = Path(".pytest_cache/v/cache/lastfailed")


def failed_tests(record: Path) -> list[str]:
    """Return the tests that failed in the last run; one with parameters once, as a fixture may fail for all of them."""
    failed = json.loads(record.read_text()) if record.is_file() else {}
    return sorted({name.partition("[")[0] for name in failed})


def main(record: Path = RECORD) -> int:
    """Run them again; return 0 if all of them pass."""
    tests = failed_tests(record)
    if not 0 < len(tests) <= MOST:
        print(f"{len(tests)} tests failed. At most {MOST} are run again alone.")
        return 1
    print(f"{len(tests)} of the tests failed beside others. They are run again alone.", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *tests], check=False)  # noqa: S603
    if again.returncode == 0:
        print("Passed only when run alone; make them independent of the load of the machine:", *tests, sep="\n  ")
    return again.returncode


if __name__ == "__main__":
    sys.exit(main())

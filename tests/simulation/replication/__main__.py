"""Run the model of the replication protocol with many seeds."""

import argparse
import json
import sys
import time

from tests.simulation.replication.campaign import campaign, play, repeat
from tests.simulation.replication.rules import RULES


def seeds_of(text: str) -> range:
    """`17` is one seed, `0:1000` are those from 0 to 999."""
    first, colon, last = text.partition(":")
    return range(int(first), int(last)) if colon else range(int(first), int(first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.replication", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default=range(1000), help="one seed, or FIRST:LAST without the last")
    parser.add_argument("--without", default="", help="rules to switch off, separated by commas; see --rules")
    parser.add_argument("--old-backups", action="store_true", help="restore old journals, too, which is not safe")
    parser.add_argument("--choose-voters", action="store_true", help="let `choose_voters` say which nodes vote")
    parser.add_argument("--grouped", action="store_true", help="append several entries for some requests")
    parser.add_argument("--trace", action="store_true", help="print every message; for one seed")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--rules", action="store_true", help="list the rules and stop")
    given = parser.parse_args()
    if given.rules:
        for name, rule in RULES.items():
            print(f"{name:18} {rule.sentence}")
        return 0
    without = tuple(filter(None, given.without.split(",")))
    unknown = [name for name in without if name not in RULES]
    if unknown:
        parser.error(f"unknown rule {unknown[0]}; the rules are {', '.join(RULES)}")
    kinds = {"old_backups": given.old_backups, "choose": given.choose_voters, "grouped": given.grouped}
    if given.trace:
        for seed in given.seeds:
            violation, _ = play(seed, without, **kinds, trace=True)
            print(f"seed {seed}: {violation or 'no violation'}")
        return 0
    began = shown = time.monotonic()

    def progress(done: int, broken: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{done} of {len(given.seeds)} runs, {broken} violations, {shown - began:.0f} s", file=sys.stderr)

    done, counts, broken = campaign(given.seeds, without, **kinds, progress=progress)
    if given.json:
        violations = {kind: [{"seed": seed, "story": story} for seed, story in found] for kind, found in broken.items()}
        result = {"seeds": [given.seeds.start, given.seeds.stop], "without": without, "runs": done}
        print(json.dumps({**result, "counts": dict(sorted(counts.items())), "violations": violations}, indent=1))
        return 1 if broken else 0
    for name, count in sorted(counts.items()):
        print(f"{count:12,} {name}")
    print(f"{done:,} runs in {time.monotonic() - began:.0f} s")
    for kind, found in broken.items():
        seed, story = found[0]
        print(f"VIOLATION in {len(found)} runs: {kind}: {story}")
        print(f"    repeat: {repeat(seed, without, **kinds)}")
    if not broken:
        print("no violation")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

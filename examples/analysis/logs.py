"""Log lines are made, split by level into files, and counted."""

import json
import re


def make(path):
    with open(path, "w") as file:
        file.writelines(
            f"{n:03d} {['INFO', 'WARN', 'ERROR'][n % 3]} task-{n % 7} took {n * 3 % 13} ms\n" for n in range(40)
        )


def select(level, source, target):
    with open(source) as file:
        lines = [line for line in file if f" {level} " in line]
    with open(target, "w") as file:
        file.writelines(lines)


def slowest(source, target):
    with open(source) as file:
        found = re.findall(r"(task-\d+) took (\d+) ms", file.read())
    with open(target, "w") as file:
        json.dump(max(found, key=lambda pair: int(pair[1])), file)


make("all.log")
select("WARN", "all.log", "warn.log")
select("ERROR", "all.log", "error.log")
slowest("warn.log", "slowest_warn.json")
slowest("error.log", "slowest_error.json")

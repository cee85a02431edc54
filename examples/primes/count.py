"""Count primes in ten blocks of numbers, one file for each block, and add them up: steps that share only files.

gpuyard analyze examples/primes/count.py                     what is in here, and what could run at once
gpuyard analyze examples/primes/count.py --submit            the same as tasks of the scheduler
"""

import json
from pathlib import Path

BLOCK = 20000


def count_primes(block, path):
    found = 0
    for number in range(max(block * BLOCK, 2), (block + 1) * BLOCK):
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            found += 1
    Path(path).write_text(json.dumps(found))


def add_up(path):
    counts = [json.loads(file.read_text()) for file in sorted(Path(".").glob("primes_*.json"))]
    Path(path).write_text(json.dumps(sum(counts)))


def main():
    for block in range(10):
        count_primes(block, f"primes_{block}.json")
    add_up("total.json")


if __name__ == "__main__":
    main()

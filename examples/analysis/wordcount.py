"""Map and reduce over files: one count for each text, then their sum."""

import json
from pathlib import Path


def write_text(number, path):
    words = ["map", "reduce", "shuffle", "sort"]
    Path(path).write_text(" ".join(words[(number * k) % 4] for k in range(20)))


def count_words(source, target):
    counts = {}
    for word in Path(source).read_text().split():
        counts[word] = counts.get(word, 0) + 1
    Path(target).write_text(json.dumps(counts))


def reduce_counts(number, target):
    total = {}
    for n in range(number):
        for word, count in json.loads(Path(f"count_{n}.json").read_text()).items():
            total[word] = total.get(word, 0) + count
    Path(target).write_text(json.dumps(total))


for n in range(3):
    write_text(n, f"text_{n}.txt")
for n in range(3):
    count_words(f"text_{n}.txt", f"count_{n}.json")
reduce_counts(3, "total.json")

"""A script of stages with options: prepare, features, statistics, report; the middle two share only a file."""

import argparse
import json


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="work")
    parser.add_argument("--count", type=int, default=20)
    return parser.parse_args()


def prepare(path, count):
    with open(path, "w") as file:
        json.dump([n * n % 11 for n in range(count)], file)


def features(source, target):
    with open(source) as file:
        values = json.load(file)
    with open(target, "w") as file:
        json.dump([[v, v % 2] for v in values], file)


def statistics(source, target):
    with open(source) as file:
        values = json.load(file)
    with open(target, "w") as file:
        json.dump({"mean": sum(values) / len(values), "max": max(values)}, file)


def report(first, second, target):
    with open(first) as one, open(second) as other:
        text = one.read() + "\n" + other.read()
    with open(target, "w") as file:
        file.write(text)


def main():
    args = parse_args()
    prepare("data.json", args.count)
    features("data.json", "features.json")
    statistics("data.json", "statistics.json")
    report("features.json", "statistics.json", "report.txt")


if __name__ == "__main__":
    main()

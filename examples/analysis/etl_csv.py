"""A pipeline over CSV files: make raw data, clean it, aggregate it, write a report."""

import csv
import json


def extract(path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["city", "value"])
        for n in range(30):
            writer.writerow([["oslo", "rome", ""][n % 3], n * 1.5])


def clean(source, target):
    with open(source, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["city"]]
    with open(target, "w", newline="") as file:
        writer = csv.DictWriter(file, ["city", "value"])
        writer.writeheader()
        writer.writerows(rows)


def aggregate(source, target):
    totals = {}
    with open(source, newline="") as file:
        for row in csv.DictReader(file):
            totals[row["city"]] = totals.get(row["city"], 0.0) + float(row["value"])
    with open(target, "w") as file:
        json.dump(totals, file)


def describe(source, target):
    with open(source, newline="") as file:
        count = sum(1 for _ in csv.reader(file)) - 1
    with open(target, "w") as file:
        json.dump({"rows": count}, file)


extract("raw.csv")
clean("raw.csv", "clean.csv")
aggregate("clean.csv", "totals.json")
describe("raw.csv", "raw.json")

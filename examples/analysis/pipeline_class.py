"""A pipeline as an object: its methods pass data on through its attributes."""

import json


class Pipeline:
    def __init__(self, size):
        self.size, self.data, self.report = size, [], {}

    def load(self):
        self.data = [n % 7 for n in range(self.size)]

    def clean(self):
        self.data = [n for n in self.data if n]

    def summarize(self):
        self.report = {"count": len(self.data), "sum": sum(self.data)}

    def save(self, path):
        with open(path, "w") as file:
            json.dump(self.report, file)


pipeline = Pipeline(30)
pipeline.load()
pipeline.clean()
pipeline.summarize()
pipeline.save("report.json")

"""Texts become vectors, vectors an index, queries answers: each stage passes a file on."""

import json

import numpy as np


def embed(texts, path):
    vectors = np.array([[text.count(c) for c in "abcdefgh"] for text in texts], dtype=float)
    np.save(path, vectors)


def index(source, target):
    vectors = np.load(source)
    np.save(target, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def search(index_path, query_path, target):
    similarity = np.load(query_path) @ np.load(index_path).T
    with open(target, "w") as file:
        json.dump(similarity.argmax(1).tolist(), file)


embed(["a bad cab", "deaf head", "big bag", "faded facade"], "vectors.npy")
embed(["bad bag", "head"], "queries.npy")
index("vectors.npy", "index.npy")
search("index.npy", "queries.npy", "answers.json")

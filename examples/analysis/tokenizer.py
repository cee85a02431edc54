"""Byte pair encoding: the most frequent pair is merged again and again."""

import json

text = "low lower lowest newer wider new low low"
words = [list(word) + ["_"] for word in text.split()]
merges = []
for _ in range(8):
    pairs = {}
    for word in words:
        for left, right in zip(word, word[1:]):
            pairs[left, right] = pairs.get((left, right), 0) + 1
    if not pairs:
        break
    best = max(pairs, key=lambda pair: (pairs[pair], pair))
    merges.append(best)
    for word in words:
        at = 0
        while at < len(word) - 1:
            if (word[at], word[at + 1]) == best:
                word[at : at + 2] = ["".join(best)]
            at += 1
with open("merges.json", "w") as file:
    json.dump(merges, file)
with open("words.json", "w") as file:
    json.dump(words, file)

"""Measured rows, from whoever measured them.

Files of profiles come from many hands, each with its own columns. `sources/` has a file for each of them; it turns lines
into `ProfileRows`: which GPU, what was done there, how long it took or how much memory it needed. A file is known by its columns,
so it may be called anything. What kind of work the rows are decides which features they have (`rooflines/`) and which model
learns them.
"""

import csv
import gzip
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.arrays import Floats, Words
from gpuyard.learn.performance.operation_profile import OperationProfiles


@dataclass(frozen=True, slots=True)
class ProfileRows:
    """Rows of one kind of work. What a GPU has to do with it is not in here: that is for the features."""

    kind: str
    gpu: Words
    family: Words
    """Rows of one family are alike: whoever wants to know how good predictions are for something new leaves out all of them."""
    precision: Words
    measured: Floats
    """Milliseconds, or MiB where the kind is one of memory."""
    shape: Mapping[str, Floats]
    """How large it is, in the words of its kind."""
    words: Mapping[str, Words] = field(default_factory=dict)
    """Which sort of it, where that is not a number."""
    works: OperationProfiles | None = None
    """What a step is made of, for whole models."""

    def __len__(self) -> int:
        return len(self.gpu)

    def take(self, which: NDArray[Any]) -> "ProfileRows":
        """Some of them: a mask, or places."""
        return ProfileRows(
            self.kind,
            self.gpu[which],
            self.family[which],
            self.precision[which],
            self.measured[which],
            {name: values[which] for name, values in self.shape.items()},
            {name: values[which] for name, values in self.words.items()},
            None if self.works is None else self.works.take(which),
        )

    def of(self, works: OperationProfiles) -> "ProfileRows":
        """The same, made of this."""
        return ProfileRows(
            self.kind, self.gpu, self.family, self.precision, self.measured, self.shape, self.words, works
        )


def constant_column(word: str, count: int) -> Words:
    """A column that says the same in every row."""
    return np.full(count, word)


def missing_column(count: int) -> Floats:
    """A column that says nothing."""
    return np.full(count, np.nan)


def families(models: Words) -> Words:
    """Models whose names begin with the same letters: `resnet50` and `resnet101_d`."""
    named = {name: (re.match(r"[a-z]+", name.lower()) or [name])[0] for name in set(models.tolist())}
    return np.array([named[name] for name in models.tolist()])


def merge_rows(parts: Sequence[ProfileRows]) -> dict[str, ProfileRows]:
    """Rows of the same kind in one, by kind."""
    kinds: dict[str, list[ProfileRows]] = {}
    for rows in parts:
        kinds.setdefault(rows.kind, []).append(rows)
    return {kind: _joined(found) for kind, found in kinds.items()}


def _joined(parts: list[ProfileRows]) -> ProfileRows:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]

    works = [rows.works for rows in parts if rows.works is not None]
    return ProfileRows(
        first.kind,
        np.concatenate([rows.gpu for rows in parts]),
        np.concatenate([rows.family for rows in parts]),
        np.concatenate([rows.precision for rows in parts]),
        np.concatenate([rows.measured for rows in parts]),
        {name: np.concatenate([rows.shape[name] for rows in parts]) for name in first.shape},
        {name: np.concatenate([rows.words[name] for rows in parts]) for name in first.words},
        OperationProfiles.joined(works) if works else None,
    )


class CsvColumns:
    """A file as it was written: its columns as text, turned into what they mean when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            try:
                self.names = next(reader, [])
                lines = list(reader)
            except (UnicodeDecodeError, csv.Error, OSError, EOFError) as error:
                raise WrongInput(f"{path} is not a table of CSV: {error}") from None
        for line, cells in enumerate(lines, start=2):
            if len(cells) != len(self.names):
                raise WrongInput(f"{path}, line {line}: {len(cells)} columns where {len(self.names)} are named")
        self._texts = dict(zip(self.names, zip(*lines, strict=True) if lines else [()] * len(self.names), strict=True))

    def __len__(self) -> int:
        return len(self._texts[self.names[0]]) if self.names else 0

    def texts(self, name: str) -> Words:
        """A column of words."""
        return np.array(self._texts[name], dtype=np.str_)

    def numbers(self, name: str, *, above: float | None = None, empty: float | None = None) -> Floats:
        """A column of numbers. `above`: all of them must be; `empty`: what an empty cell means, else it is an error."""
        texts = self._texts[name]
        try:
            values = np.array(texts if empty is None else [t or empty for t in texts], dtype=np.float64)
        except ValueError:
            values = np.array([_number(t) if t or empty is None else empty for t in texts], dtype=np.float64)
        unsaid = np.array([not t for t in texts]) if empty is not None else np.zeros(len(values), dtype=np.bool_)
        wrong = (~np.isfinite(values) | (values <= (-np.inf if above is None else above))) & ~unsaid
        if wrong.any():
            line = int(wrong.argmax())
            must = "must be a number" if above is None else f"must be a number above {above:g}"
            raise WrongInput(f"{self.path}, line {line + 2}: {name} {must}, not {texts[line]!r}")
        return values


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def read(path: Path) -> list[ProfileRows]:
    """The rows of one file, a part for each kind of work in it."""
    from gpuyard.learn.performance.sources import SOURCES

    columns = CsvColumns(path)
    if not columns.names:
        raise WrongInput(f"{path} is empty")
    for source in SOURCES.values():
        if source.columns <= set(columns.names):
            if not len(columns):
                raise WrongInput(f"{path} has no rows")
            return source.rows(columns)
    name, source = max(SOURCES.items(), key=lambda s: len(s[1].columns & set(columns.names)) / len(s[1].columns))
    missing = ", ".join(sorted(source.columns - set(columns.names)))
    raise WrongInput(
        f"{path} has no column {missing} (it looks like {name}; its columns are {', '.join(columns.names)})"
    )

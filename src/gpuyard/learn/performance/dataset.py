"""Measured rows, from several sources.

Files of profiles have different columns depending on their source. `sources/` has a file for each source; it converts
lines to `ProfileRows`: the GPU, the work, and the time or memory it took. The source is recognized by the columns, so a
file may have any name. The kind of work determines the features of the rows (`rooflines/`) and the model that learns
them.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import read_file
from gpuyard.learn.performance.arrays import FloatArray, TextArray
from gpuyard.learn.performance.operation_profile import OperationProfiles


@dataclass(frozen=True, slots=True)
class ProfileRows:
    """Rows of one kind of work. Properties of the GPU are not included; the features add them."""

    kind: str
    gpu: TextArray
    family: TextArray
    """Rows of one family are similar: to evaluate predictions for new models, leave out whole families."""
    precision: TextArray
    measured: FloatArray
    """Milliseconds, or MiB if the kind is memory."""
    shape: Mapping[str, FloatArray]
    """Numeric properties of the work; the columns depend on the kind."""
    words: Mapping[str, TextArray] = field(default_factory=dict)
    """Categorical properties of the work."""
    works: OperationProfiles | None = None
    """The operations of a step, for whole models."""

    def __len__(self) -> int:
        return len(self.gpu)

    def take(self, which: NDArray[Any]) -> "ProfileRows":
        """Return some of the rows, by a mask or by indices."""
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
        """Return the same rows with these operations."""
        return ProfileRows(
            self.kind, self.gpu, self.family, self.precision, self.measured, self.shape, self.words, works
        )


def constant_column(word: str, count: int) -> TextArray:
    """Return a column with the same word in every row."""
    return np.full(count, word)


def missing_column(count: int) -> FloatArray:
    """Return a column of missing values."""
    return np.full(count, np.nan)


def families(models: TextArray) -> TextArray:
    """Return the family of each model: the common first letters of names such as `resnet50` and `resnet101_d`."""
    named = {name: (re.match(r"[a-z]+", name.lower()) or [name])[0] for name in set(models.tolist())}
    return np.array([named[name] for name in models.tolist()])


def merge_rows(parts: Sequence[ProfileRows]) -> dict[str, ProfileRows]:
    """Merge rows of the same kind; return them by kind."""
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
        # Rows of memory that were read from files have no operations: then the merged rows have none either.
        OperationProfiles.joined(works) if len(works) == len(parts) else None,
    )


class CsvColumns:
    """A CSV file: its columns as text, converted on access."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = read_file(path)
            if b"\0" in content:
                raise csv.Error("it has NUL characters")
            reader = csv.reader(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline=""))
            self.names = next(reader, [])
            lines = list(reader)
        except OSError as error:
            raise WrongInput(f"{path}: {error.strerror}.") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise WrongInput(f"{path} is not a CSV table: {error}") from None
        for line, cells in enumerate(lines, start=2):
            if len(cells) != len(self.names):
                raise WrongInput(f"{path}, line {line}: {len(cells)} columns, but the header has {len(self.names)}")
        self._texts = dict(zip(self.names, zip(*lines, strict=True) if lines else [()] * len(self.names), strict=True))

    def __len__(self) -> int:
        return len(self._texts[self.names[0]]) if self.names else 0

    def texts(self, name: str) -> TextArray:
        """Return a column of words."""
        return np.array(self._texts[name], dtype=np.str_)

    def numbers(self, name: str, *, above: float | None = None, empty: float | None = None) -> FloatArray:
        """Return a column of numbers. `above`: exclusive lower bound; `empty`: value of empty cells; None: an error."""
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
    """Read one file; return a part for each kind of work in it."""
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

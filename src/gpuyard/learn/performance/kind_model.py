"""Learns one kind of work: the ratio of measured time to roofline, on measured and on new GPUs.

Trees do not extrapolate, so they never predict a time. They learn the logarithm of measured over roofline from ratios,
which behaves similarly on every GPU. Which head predicts depends on what was measured:

    gpu_and_family   this GPU and this family of models were measured: both are features
    gpu              this GPU was measured, the family was not: the GPU is a feature
    same_chip        the GPU was not measured, one with the same chip was: it is used instead, with its own memory and
                     power
    data_sheet       the GPU was not measured: only ratios that do not identify a GPU, learned from all GPUs together;
                     where each GPU has enough rows for a model of its own, their median counts as much (a committee)
    corrected        as data_sheet, with a `Correction` from the few rows that were measured on the GPU

A GPU counts as measured for the modes and precisions that were measured on it, and up to the share of launching that was:
inference of large batches says little about training or about steps that wait for their host.

Each head has a band by split conformal prediction: held-out rows, families or GPUs are predicted from the rest, and the
band is as wide as those errors; separately for each measured GPU, because some are harder to predict than others. The
band of `data_sheet` also depends on the work: coarse trees (`spread`) learn the size of the errors on held-out GPUs, and
the band is fitted to errors over that size. A correction narrows it only near the measured rows, and never below the
band of `gpu`, for a measured family not below the middle between it and the band of `gpu_and_family`. A mode that was measured nowhere doubles the band; so does such a source, a GPU of another maker than every
measured one, and one that does not compute in bf16 if all of them do. As far as a step waits for its host, the band of a GPU that was
not measured covers hosts half and twice as fast: nothing is known about its host.
LightGBM's own quantiles promise 80 % and reach 60 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.arrays import FloatArray, TextArray
from gpuyard.learn.performance.calibration import DEVIATIONS, Correction, ErrorShares, MeasuredWork, error_shares
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.gpu_specs import GpuSpecs
from gpuyard.learn.performance.rooflines import ROOFLINES
from gpuyard.learn.performance.rooflines.chips import GpuColumns

BAND = 0.80
"""The share of new rows that a band contains."""
LEAST_ROWS = 10
"""Minimum number of rows of a kind to learn anything."""
MEASURED_ROWS = 400
"""Number of rows from which a GPU counts as measured; fewer suffice if they are half of the average per GPU."""
TreeParameters = Mapping[str, float]
"""Settings of LightGBM, and the number of trees."""
FINEST: TreeParameters = {"num_leaves": 127, "learning_rate": 0.09, "min_data_in_leaf": 8, "trees": 230}
FINE: TreeParameters = {"num_leaves": 127, "learning_rate": 0.14, "min_data_in_leaf": 8, "trees": 150}
"""Settings for work of kinds seen in training: the finest trees for single operations; for whole models as many as
allow 10,000 predictions in a fifth of a second."""
SHARED: TreeParameters = {"num_leaves": 63, "learning_rate": 0.08, "min_data_in_leaf": 20, "trees": 200}
DETAILED: TreeParameters = {"num_leaves": 40, "learning_rate": 0.11, "min_data_in_leaf": 20, "trees": 160}
PLAIN: TreeParameters = {"num_leaves": 15, "learning_rate": 0.08, "min_data_in_leaf": 60, "trees": 150}
COARSE: TreeParameters = {"num_leaves": 4, "learning_rate": 0.1, "min_data_in_leaf": 300, "trees": 40}
"""For the size of errors: trees that are too coarse to learn the errors of one GPU."""
LEAST_ERROR = 0.03
"""Added to errors before the logarithm is taken, so that the smallest do not count most."""
LEAST_FEW = 5
"""Number of rows from which a partly measured GPU is corrected."""
FEW_ROWS = 20
"""Number of rows from which a mode and precision counts as measured on a GPU."""
UNLIKE_WORDS = ("mode", "source")
UNLIKE = 2.0
"""Factor on the band for each of these: a mode or a source that was measured nowhere, a maker whose GPUs were not, a
GPU without bf16 if all measured ones have it."""
OTHER_HOST = 2.0
"""Factor between hosts: one host was up to twice as fast at one time as at another (`profiles/README.md`)."""
SQUARED_ERROR_ROWS = 5_000
"""From this number of rows on, fine trees use squared instead of absolute errors; with fewer, outliers mislead them."""
MOST_ROWS = {"gpu_and_family": 80_000, "gpu": 80_000, "data_sheet": 24_000, "expert": 8_000, "fold": 16_000}
"""Maximum number of rows that a head is trained on; more make it slower and hardly better."""
FOLDS = 4
OWN_BAND_ERRORS = 100
"""Number of errors on a GPU from which it has a band of its own."""
THREADS = 1
"""Threads of LightGBM; 0 means all cores. On a busy machine the threads wait for each other, which is slower."""


Band = tuple[float, float]
"""Lower and upper end, as logarithms of measured over predicted."""
OTHERS = ""
"""The key for GPUs without a band of their own."""


@dataclass(frozen=True, slots=True)
class TreeModel:
    """Trees and their feature columns."""

    columns: tuple[str, ...]
    trees: Any

    def __call__(self, table: "FeatureTable") -> FloatArray:
        """Predict the logarithm of measured over roofline."""
        return np.asarray(self.trees.predict(table.matrix(self.columns), num_threads=1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """Rows as numbers."""

    base: FloatArray
    columns: dict[str, FloatArray]

    def matrix(self, names: tuple[str, ...]) -> FloatArray:
        """Return these columns as a matrix."""
        return np.column_stack([self.columns[name] for name in names])

    def take(self, which: NDArray[Any]) -> "FeatureTable":
        """Return some of the rows."""
        return FeatureTable(self.base[which], {name: values[which] for name, values in self.columns.items()})


@dataclass(frozen=True, slots=True)
class KindPrediction:
    """Predictions in the unit of the kind."""

    middle: FloatArray
    low: FloatArray
    high: FloatArray
    head: TextArray


@dataclass(slots=True)
class KindModel:
    """The heads and bands of one kind of work; see the head of this file."""

    kind: str
    vocabulary: dict[str, list[str]]
    """The known words of each categorical column in order, including `gpu` and `family`."""
    heads: dict[str, list[TreeModel]]
    """gpu_and_family, gpu, data_sheet, experts (one for each measured GPU), and spread, the size of errors from a data
    sheet."""
    bands: dict[str, dict[str, Band]]
    """For each head: the bands of GPUs that have their own, and one for all others; of data_sheet in units of `spread`."""
    corrections: dict[str, Correction] = field(default_factory=dict)
    """Corrections of GPUs with few rows."""
    measured: dict[str, float] = field(default_factory=dict)
    """The kinds of work measured on the GPUs of the vocabulary (`_situations`), with their largest share of launching."""
    scale: list[float] = field(default_factory=list)
    """Scale of each feature of corrections over all measured GPUs."""
    shares: ErrorShares = field(default_factory=ErrorShares)
    """What the errors of rows of a GPU have in common."""

    def correct(self, rows: ProfileRows, specs: GpuSpecs) -> None:
        """Correct the data sheet of a partly measured GPU by all rows that were measured on it."""
        (name,) = set(_names(rows, specs).tolist())
        self.corrections[name] = _correction(self, rows, specs)

    def table(self, rows: ProfileRows, specs: GpuSpecs) -> FeatureTable:
        """Return the features of the rows; an unknown word is NaN."""
        base, columns = ROOFLINES[self.kind].features(rows, GpuColumns.of(rows, specs))
        words = {name: rows.words[name] for name in ROOFLINES[self.kind].words}
        words |= {"gpu": self._with_same_chip(_names(rows, specs), specs), "family": rows.family}
        return FeatureTable(
            base, columns | {name: _numbered(said, self.vocabulary[name]) for name, said in words.items()}
        )

    def predict(self, rows: ProfileRows, specs: GpuSpecs) -> KindPrediction:
        """Predict each row by the most specific head that applies."""
        table = self.table(rows, specs)
        logs, bands = np.zeros(len(rows)), np.zeros((len(rows), 2))
        head, gpus = self._heads(rows, table), _names(rows, specs)
        for name in np.unique(head).tolist():
            which = np.flatnonzero(head == name)
            some = table.take(which)
            if name == "data_sheet":
                logs[which], bands[which] = self.from_data_sheet(some), self.data_sheet_bands(some)
                continue
            logs[which] = self.heads[name][0](some)
            known = np.array([self._band(name, gpu) for gpu in self.vocabulary["gpu"]])
            bands[which] = known[some.columns["gpu"].astype(np.intp)]
        same_chip = np.flatnonzero((head != "data_sheet") & ~np.isin(gpus, self.vocabulary["gpu"]))
        bands[same_chip] = 0.5 * (self.data_sheet_bands(table.take(same_chip)) + np.array(self.bands["gpu"][OTHERS]))
        head[same_chip] = "same_chip"
        bands *= UNLIKE ** self.unlike(table, gpus, specs)[:, None]
        elsewhere = np.isin(head, ("data_sheet", "same_chip"))
        bands[elsewhere] = _with_other_hosts(bands[elsewhere], self.kind, table.take(elsewhere))
        new_family, known_family = (np.array(self.bands[name][OTHERS]) for name in ("gpu", self._most_specific))
        same_family = 0.5 * (new_family + known_family)
        for gpu, correction in self.corrections.items():
            which = np.flatnonzero(gpus == gpu)
            if len(which):
                some, sheet = table.take(which), bands[which]
                more, factor, is_same = correction.at(self.seen(some), self.words(some), rows.family[which])
                logs[which] += more * _deviation(sheet)
                narrowest = np.where(is_same[:, None], same_family, new_family)
                bands[which] = _between(sheet * factor[:, None], narrowest, sheet)
                head[which] = "corrected"
        low, high = bands.T
        middle = table.base * np.exp(logs)
        most = 1.0 if ROOFLINES[self.kind].unit == "part" else np.inf
        low, high = np.minimum(middle * np.exp(low), most), np.minimum(middle * np.exp(high), most)
        return KindPrediction(np.minimum(middle, most), low, high, head)

    def _with_same_chip(self, gpus: TextArray, specs: GpuSpecs) -> TextArray:
        """Replace each GPU without rows of its own by a measured one with the same chip, if there is one."""
        known = [specs.gpus[name] for name in self.vocabulary["gpu"] if name in specs.gpus]
        taken = {
            gpu: next(
                (k.gpu for k in known if gpu not in self.corrections and specs.gpus[gpu].has_same_chip_as(k)), gpu
            )
            for gpu in set(gpus.tolist()) - set(self.vocabulary["gpu"])
        }
        return np.array([taken.get(gpu, gpu) for gpu in gpus.tolist()])

    def _heads(self, rows: ProfileRows, table: FeatureTable) -> TextArray:
        gpu, family = self._is_measured(rows, table), np.isfinite(table.columns["family"])
        both = gpu & family if "gpu_and_family" in self.heads else np.zeros(len(gpu), dtype=np.bool_)
        return np.where(both, "gpu_and_family", np.where(gpu, "gpu", "data_sheet")).astype("<U14")

    def _is_measured(self, rows: ProfileRows, table: FeatureTable) -> NDArray[np.bool_]:
        """Return whether this kind of work was measured on the GPU of each row."""
        numbers = table.columns["gpu"]
        known = np.isfinite(numbers)
        at = np.flatnonzero(known)
        names = np.array(self.vocabulary["gpu"])[numbers[at].astype(np.intp)]
        most = np.array([self.measured.get(name, -np.inf) for name in _situations(names, rows.take(at)).tolist()])
        known[at] = _launching(self.kind, table.take(at)) <= most + 1.0
        return known

    def unlike(self, table: FeatureTable, gpus: TextArray, specs: GpuSpecs) -> FloatArray:
        """Return for how many reasons nothing like a row was measured: its mode, its source, a GPU of this sort."""
        words = [np.isnan(table.columns[name]) for name in ROOFLINES[self.kind].words if name in UNLIKE_WORDS]
        known = [specs.gpus[name] for name in self.vocabulary["gpu"] if name in specs.gpus]
        makers = {name: specs.gpus[name].is_unlike(known) for name in set(gpus.tolist())}
        reasons = [*words, np.array([makers[name] for name in gpus.tolist()])]
        return np.asarray(np.sum(reasons, axis=0), dtype=np.float64)

    def words(self, table: FeatureTable) -> FloatArray:
        """Return the categorical features of the rows as numbers; NaN for a word that was measured nowhere."""
        names = ROOFLINES[self.kind].words
        return np.column_stack([table.columns[name] for name in names]) if names else np.zeros((len(table.base), 0))

    def data_sheet_bands(self, table: FeatureTable) -> FloatArray:
        """Return the low and high end of the band of each row if only the data sheet of its GPU is known."""
        size = np.exp(self.heads["spread"][0](table)) if "spread" in self.heads else np.ones(len(table.base))
        return np.outer(size, np.array(self.bands["data_sheet"][OTHERS]))

    def from_data_sheet(self, table: FeatureTable) -> FloatArray:
        """Predict rows of GPUs without measurements."""
        together = self.heads["data_sheet"][0](table)
        experts = self.heads.get("experts")
        if experts:
            together = 0.5 * (together + np.median([expert(table) for expert in experts], axis=0))
        return np.asarray(together, dtype=np.float64)

    def seen(self, table: FeatureTable) -> FloatArray:
        """Return the features in which corrections are made: the ratios, and what other heads predict."""
        words = ROOFLINES[self.kind].words
        ratios = table.matrix(tuple(name for name in self.heads["data_sheet"][0].columns if name not in words))
        return np.column_stack([ratios, *(expert(table) for expert in self.heads.get("experts", []))])

    @property
    def _most_specific(self) -> str:
        return "gpu_and_family" if "gpu_and_family" in self.bands else "gpu"

    def _band(self, head: str, gpu: str) -> Band:
        bands = self.bands[head]
        return bands.get(gpu, bands[OTHERS])


def _names(rows: ProfileRows, specs: GpuSpecs) -> TextArray:
    """Return the GPUs by their name in the specs."""
    named = {gpu: specs.find(gpu).gpu for gpu in set(rows.gpu.tolist())}
    return np.array([named[gpu] for gpu in rows.gpu.tolist()])


def _situations(gpus: TextArray, rows: ProfileRows) -> TextArray:
    """Return what must have been measured for a row to be known on its GPU: the GPU, the mode and the precision."""
    mode = rows.words.get("mode", np.full(len(rows), ""))
    return np.char.add(np.char.add(np.char.add(np.char.add(gpus, "|"), mode), "|"), rows.precision)


def _launching(kind: str, table: FeatureTable) -> FloatArray:
    """Return the logarithm of the share of launching; zero for kinds of work in which it plays no part."""
    name = ROOFLINES[kind].launch_share
    return table.columns[name] if name else np.zeros(len(table.base))


def _between(band: FloatArray, narrowest: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Return the bands, not narrower than `narrowest` unless `otherwise` already was."""
    low = np.minimum(band[:, 0], np.maximum(narrowest[:, 0], otherwise[:, 0]))
    return np.column_stack([low, np.maximum(band[:, 1], np.minimum(narrowest[:, 1], otherwise[:, 1]))])


def _with_other_hosts(bands: FloatArray, kind: str, table: FeatureTable) -> FloatArray:
    """Return the bands, wider as far as a step waits for its host, whose speed is unknown."""
    if not ROOFLINES[kind].launch_share or ROOFLINES[kind].unit != "ms":
        return bands
    ratio = 4.0 ** _launching(kind, table)
    wide = np.log(OTHER_HOST) * ratio / (1.0 + ratio)
    return np.asarray(np.sign(bands) * np.hypot(bands, wide[:, None]), dtype=np.float64)


def _deviation(bands: FloatArray) -> FloatArray:
    """Return the standard deviation of errors that have these bands."""
    return np.asarray((bands[:, 1] - bands[:, 0]) / 2.0 / DEVIATIONS, dtype=np.float64)


def _numbered(said: TextArray, known: list[str]) -> FloatArray:
    if not known:
        return np.full(len(said), np.nan)
    words = np.array(known)  # already sorted
    place = np.minimum(np.searchsorted(words, said), len(words) - 1)
    return np.where(words[place] == said, place.astype(np.float64), np.nan)


def fit(rows: ProfileRows, specs: GpuSpecs, seed: int = 1) -> KindModel:
    """Learn a kind of work from its rows."""
    if len(rows) < LEAST_ROWS:
        raise WrongInput(f"The training data has {len(rows)} rows of {rows.kind}; at least {LEAST_ROWS} are needed")
    kind = ROOFLINES[rows.kind]
    gpu, family = _names(rows, specs), rows.family
    names, counts = np.unique(gpu, return_counts=True)
    enough = min(MEASURED_ROWS, len(rows) / len(names) / 2)
    measured_gpus = [name for name, count in zip(names.tolist(), counts.tolist(), strict=True) if count >= enough]
    taught = np.isin(gpu, measured_gpus)
    vocabulary = {name: sorted(set(rows.words[name][taught].tolist())) for name in kind.words}
    vocabulary |= {"gpu": measured_gpus, "family": sorted(set(family.tolist())) if kind.knows_family else []}
    made = KindModel(rows.kind, vocabulary, {}, {})
    table = made.table(rows, specs)
    target = np.log(rows.measured / table.base)
    learner = _Learner(table, target, gpu, np.random.default_rng(seed), seed)
    common = tuple(name for name in table.columns if name not in {"gpu", "family"})
    ratios = tuple(name for name in common if name not in kind.gives_away)
    with_gpu, with_both = (*common, "gpu"), (*common, "gpu", "family")
    if len(measured_gpus) == 1:
        with_gpu, with_both = common, (*common, "family")
    coarse = SHARED if kind.is_shared else PLAIN
    made.heads["data_sheet"] = [learner.head(ratios, taught, coarse, "data_sheet")]
    shape = DETAILED if kind.knows_family else FINEST
    made.heads["gpu"] = [learner.head(with_gpu, taught, shape, "gpu")]
    made.bands["gpu"] = learner.bands(with_gpu, taught, family, shape)
    if kind.knows_family:
        made.heads["gpu_and_family"] = [learner.head(with_both, taught, FINE, "gpu_and_family")]
        made.bands["gpu_and_family"] = learner.bands(with_both, taught, None, FINE)
    if kind.is_committee and len(measured_gpus) > 1:
        made.heads["experts"] = [learner.head(ratios, gpu == one, coarse, "expert") for one in measured_gpus]
    places, errors = _held_out_errors(made, learner, coarse, measured_gpus, taught)
    _fit_data_sheet_band(made, learner, places, errors)
    made.measured = _measured_situations(rows.take(taught), gpu[taught], table.take(taught))
    scale = np.nanstd(made.seen(table.take(learner.some(taught, MOST_ROWS["fold"]))), axis=0)
    made.scale = np.where(scale > 1e-9, scale, 1.0).tolist()
    made.shares = _error_shares(made, learner, places, errors, family)
    for one in sorted(set(names.tolist()) - set(measured_gpus)):
        if (gpu == one).sum() >= LEAST_FEW:
            made.correct(rows.take(gpu == one), specs)
    return made


def _correction(made: KindModel, rows: ProfileRows, specs: GpuSpecs) -> Correction:
    """Return what these rows of one GPU imply for others there."""
    few = made.table(rows, specs)
    wrong = np.log(rows.measured / few.base) - made.from_data_sheet(few)
    bands = made.data_sheet_bands(few) * UNLIKE ** made.unlike(few, _names(rows, specs), specs)[:, None]
    expected = _deviation(_with_other_hosts(bands, made.kind, few))
    return Correction.of(
        made.seen(few), made.words(few), rows.family, wrong / expected, np.array(made.scale), made.shares
    )


def _measured_situations(rows: ProfileRows, gpus: TextArray, table: FeatureTable) -> dict[str, float]:
    """Return the kinds of work with enough rows, and the largest share of launching among 99 of 100 of these rows."""
    named, launching = _situations(gpus, rows), _launching(rows.kind, table)
    different, counts = np.unique(named, return_counts=True)
    least = min(FEW_ROWS, int(counts.max()))
    return {
        name: float(np.quantile(launching[named == name], 0.99))
        for name, count in zip(different.tolist(), counts.tolist(), strict=True)
        if count >= least
    }


def _held_out_errors(
    made: KindModel,
    learner: "_Learner",
    shape: TreeParameters,
    known: list[str],
    taught: NDArray[np.bool_],
) -> tuple[list[NDArray[np.intp]], list[FloatArray]]:
    """Return rows of each known GPU, and the errors if they are predicted from the other GPUs."""
    experts, ratios, gpu = made.heads.get("experts"), made.heads["data_sheet"][0].columns, learner.gpu
    places: list[NDArray[np.intp]] = []
    wrong: list[FloatArray] = []
    for place, one in enumerate(known if len(known) > 1 else []):
        which = learner.some(gpu == one, MOST_ROWS["fold"] // len(known))
        said = learner.head(ratios, taught & (gpu != one), shape, "fold")(learner.table.take(which))
        if experts and len(known) > 2:
            others = [expert(learner.table.take(which)) for at, expert in enumerate(experts) if at != place]
            said = 0.5 * (said + np.median(others, axis=0))
        places.append(which)
        wrong.append(learner.target[which] - said)
    return places, wrong


def _fit_data_sheet_band(
    made: KindModel, learner: "_Learner", places: list[NDArray[np.intp]], wrong: list[FloatArray]
) -> None:
    """Fit `spread` and the band to held-out known GPUs. With one GPU, families are held out and the band is doubled."""
    if not places:
        low, high = made.bands["gpu"][OTHERS]
        made.bands["data_sheet"] = {OTHERS: (2.0 * low, 2.0 * high)}
        return
    every = np.concatenate(places)
    sizes = np.log(np.abs(np.concatenate(wrong)) + LEAST_ERROR)
    made.heads["spread"] = [learner.trees(made.heads["data_sheet"][0].columns, every, sizes, COARSE)]
    size = np.exp(made.heads["spread"][0](learner.table.take(every)))
    cuts = np.cumsum([len(which) for which in places])[:-1]
    relative = [w / s for w, s in zip(wrong, np.split(size, cuts), strict=True)]
    low, high = _quantiles(relative)
    less = _one_gpu_more(len(places))
    made.bands["data_sheet"] = {OTHERS: (less * low, less * high)}


def _one_gpu_more(known: int) -> float:
    """Return the factor from the errors on a GPU predicted from all known ones but itself to those on a further GPU.

    If GPUs differ by chance, the error of the mean of n GPUs for another one has a variance proportional to 1 + 1/n. A
    held-out GPU is predicted from one GPU less than one that a user asks for.
    """
    return float(np.sqrt((1.0 + 1.0 / known) / (1.0 + 1.0 / (known - 1))))


def _error_shares(
    made: KindModel,
    learner: "_Learner",
    places: list[NDArray[np.intp]],
    wrong: list[FloatArray],
    family: TextArray,
) -> ErrorShares:
    works, relative = [], []
    scale = np.array(made.scale)
    for which, errors in zip(places, wrong, strict=True):
        some = learner.table.take(which)
        works.append(MeasuredWork.of(made.seen(some), made.words(some), family[which], scale))
        relative.append(errors / np.exp(made.heads["spread"][0](some)))
    return error_shares(works, relative, learner.seed)


def _quantiles(wrong: list[FloatArray], part: float = BAND) -> Band:
    """Return the band that contains this part of the errors; each group has equal weight."""
    errors = np.concatenate(wrong)
    weights = np.concatenate([np.full(len(w), 1.0 / len(w)) for w in wrong])
    order = np.argsort(errors)
    below = np.cumsum(weights[order]) / weights.sum()
    low, high = (
        float(errors[order][np.searchsorted(below, q).clip(0, len(errors) - 1)])
        for q in ((1 - part) / 2, (1 + part) / 2)
    )
    return min(low, 0.0), max(high, 0.0)


@dataclass(slots=True)
class _Learner:
    """Fits heads to parts of one table."""

    table: FeatureTable
    target: FloatArray
    gpu: TextArray
    chance: np.random.Generator
    seed: int

    def some(self, which: NDArray[np.bool_], most: int) -> NDArray[np.intp]:
        """Return indices of at most `most` rows, with equally many of each GPU as far as it has them."""
        places = np.flatnonzero(which)
        if len(places) <= most:
            return places
        places = self.chance.permutation(places)
        turn = np.zeros(len(places), dtype=np.intp)
        for one in np.unique(self.gpu[places]).tolist():
            mine = np.flatnonzero(self.gpu[places] == one)
            turn[mine] = np.arange(len(mine))
        return np.sort(places[np.argsort(turn, kind="stable")[:most]])

    def head(self, columns: tuple[str, ...], which: NDArray[np.bool_], shape: TreeParameters, size: str) -> TreeModel:
        """Train a head on these rows."""
        places = self.some(which, MOST_ROWS[size])
        return self.trees(columns, places, self.target[places], shape)

    def trees(
        self, columns: tuple[str, ...], places: NDArray[np.intp], target: FloatArray, shape: TreeParameters
    ) -> TreeModel:
        """Train trees on the rows at these places."""
        import lightgbm

        settings = {
            "objective": "regression"
            if shape in (FINEST, FINE, SHARED) and len(places) >= SQUARED_ERROR_ROWS
            else "regression_l1",
            "feature_fraction": 0.7,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "lambda_l2": 1.0,
            "cat_smooth": 10.0,
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": THREADS,
            "verbosity": -1,
        } | {name: value for name, value in shape.items() if name != "trees"}
        settings["min_data_in_leaf"] = max(2, min(int(shape["min_data_in_leaf"]), len(places) // 40))
        data = lightgbm.Dataset(
            self.table.take(places).matrix(columns),
            target,
            feature_name=list(columns),
            categorical_feature=[name for name in columns if name in {"gpu", "family"}],
        )
        return TreeModel(columns, lightgbm.train(settings, data, int(shape["trees"])))

    def bands(
        self, columns: tuple[str, ...], which: NDArray[np.bool_], groups: TextArray | None, shape: TreeParameters
    ) -> dict[str, Band]:
        """Return the bands of a head from its errors on held-out rows, or on held-out groups if there are groups."""
        places = self.some(which, MOST_ROWS["fold"])
        names = places.astype(np.str_) if groups is None or len(np.unique(groups[places])) < 2 else groups[places]
        different = np.unique(names)
        lots = self.chance.permutation(len(different)) % FOLDS
        lot = dict(zip(different.tolist(), lots.tolist(), strict=True))
        fold = np.array([lot[name] for name in names.tolist()])
        errors = np.zeros(len(places))
        for number in range(FOLDS):
            held = places[fold == number]
            rest = np.zeros(len(self.target), dtype=np.bool_)
            rest[places[fold != number]] = True
            if len(held) and rest.any():
                errors[fold == number] = self.target[held] - self.head(columns, rest, shape, "fold")(
                    self.table.take(held)
                )
        there = self.gpu[places]
        own = {one: errors[there == one] for one in np.unique(there).tolist()}
        told = {one: _quantiles([some]) for one, some in own.items() if len(some) >= OWN_BAND_ERRORS}
        return told | {OTHERS: _quantiles([errors])}

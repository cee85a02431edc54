"""What calls tell: the tables. A sign says what kind of work a call belongs to and what that work waits for.

`CALLS` are looked up by dotted name, the longest beginning wins; `METHODS` by the name of a method, whatever it is called on.
Weights say how sure a sign is: `backward()` is training and nothing else (8), a `Linear` layer is only a hint (1). Signs in loops
count more. `FILES` says which argument of a call is a file, and whether it is read or written.
"""

from functools import lru_cache
from typing import Final, Literal, NamedTuple

from gpuyard.learn.analysis.graph import Bound, Kind


class Sign(NamedTuple):
    """What one call tells."""

    kind: Kind | None
    bound: Bound | None
    weight: float
    says: str
    gpu: bool = False
    """Whether it runs on a GPU where there is one."""
    work: bool = True
    """Whether it takes time of its own, or only makes ready what others do."""


class FileUse(NamedTuple):
    """Which file a call uses."""

    how: Literal["read", "write", "mode"]
    """`mode`: as the argument after it says, as for `open`."""
    place: int
    """Number of the argument; -1 is what the method is called on, -2 the paths that the call gives."""
    keyword: str = ""


_TRAINS = Sign("training", "compute", 8, "computes gradients", gpu=True)
_LAYER = Sign(None, "compute", 1, "a layer that computes", gpu=True)
_MOVES = Sign(None, "memory", 1, "a layer that moves memory", gpu=True)
_READS = Sign("data", "io", 3, "reads a file")
_WRITES = Sign("data", "io", 3, "writes a file")
_FETCHES = Sign("data", "io", 5, "fetches from the network")
_TALKS = Sign(None, "communication", 4, "speaks to other processes")
_LINEAR = Sign("hpc", "compute", 4, "linear algebra")
_ARRAYS = Sign("hpc", "memory", 0.5, "works through arrays")
_MPI = Sign("hpc", "communication", 5, "speaks MPI")
_TABLES = Sign("data", "memory", 2, "works through tables")
_INFERS = Sign("inference", "compute", 5, "runs a model without gradients", gpu=True)
_SPREADS = Sign("training", "communication", 3, "one model on many GPUs", gpu=True, work=False)

CALLS: Final[dict[str, Sign]] = {
    "torch.no_grad": _INFERS,
    "torch.inference_mode": _INFERS,
    "torch.optim": Sign("training", None, 3, "an optimizer", gpu=True, work=False),
    "torch.autograd.grad": _TRAINS,
    "torch.autograd.backward": _TRAINS,
    "torch.amp.GradScaler": Sign("training", None, 2, "scales gradients", gpu=True, work=False),
    "torch.cuda.amp.GradScaler": Sign("training", None, 2, "scales gradients", gpu=True, work=False),
    "torch.utils.data.DataLoader": Sign("data", "io", 2, "loads batches", work=False),
    "torch.utils.data.random_split": Sign("data", None, 1, "divides data"),
    "torchvision.datasets": Sign("data", "io", 3, "a data set"),
    "torchvision.transforms": Sign("data", None, 0.5, "changes images"),
    "torchaudio.datasets": Sign("data", "io", 3, "a data set"),
    "torch.nn.parallel.DistributedDataParallel": _SPREADS,
    "torch.nn.DataParallel": _SPREADS,
    "torch.distributed.fsdp": _SPREADS,
    "torch.distributed.get": Sign(None, None, 0, "asks who it is"),
    "torch.distributed.is": Sign(None, None, 0, "asks who it is"),
    "torch.distributed": _TALKS,
    "torch.nn.functional.scaled_dot_product_attention": _LAYER,
    "torch.nn.functional.linear": _LAYER,
    "torch.nn.functional.conv": _LAYER,
    "torch.nn.Conv": _LAYER,
    "torch.nn.Linear": _LAYER,
    "torch.nn.MultiheadAttention": _LAYER,
    "torch.nn.Transformer": _LAYER,
    "torch.nn.LSTM": _LAYER,
    "torch.nn.GRU": _LAYER,
    "torch.nn.RNN": _LAYER,
    "torch.nn.Embedding": _MOVES,
    "torch.nn.EmbeddingBag": _MOVES,
    "torch.nn.BatchNorm": _MOVES,
    "torch.nn.LayerNorm": _MOVES,
    "torch.matmul": Sign("hpc", "compute", 2, "a matrix product", gpu=True),
    "torch.bmm": Sign("hpc", "compute", 2, "a matrix product", gpu=True),
    "torch.mm": Sign("hpc", "compute", 2, "a matrix product", gpu=True),
    "torch.einsum": Sign("hpc", "compute", 2, "a matrix product", gpu=True),
    "torch.linalg": Sign("hpc", "compute", 4, "linear algebra", gpu=True),
    "torch.fft": Sign("hpc", "memory", 4, "a Fourier transform", gpu=True),
    "torch.save": _WRITES,
    "torch.load": _READS,
    "torch.jit.load": Sign("inference", "io", 2, "loads a model"),
    "torch.onnx.export": Sign("inference", "io", 2, "writes a model for inference"),
    "onnxruntime.InferenceSession": Sign("inference", "compute", 4, "a model for inference", gpu=True),
    "tensorrt": Sign("inference", "compute", 4, "a model for inference", gpu=True),
    "vllm.LLM": Sign("inference", "memory", 5, "serves a language model", gpu=True),
    "transformers.pipeline": Sign("inference", "compute", 4, "a model for inference", gpu=True),
    "transformers.Trainer": Sign("training", None, 3, "a trainer", gpu=True, work=False),
    "transformers.TrainingArguments": Sign("training", None, 1, "how to train", gpu=True, work=False),
    "datasets.load_dataset": _FETCHES,
    "lightning.Trainer": Sign("training", None, 3, "a trainer", gpu=True, work=False),
    "pytorch_lightning.Trainer": Sign("training", None, 3, "a trainer", gpu=True, work=False),
    "accelerate.Accelerator": Sign("training", "communication", 2, "one model on many GPUs", gpu=True, work=False),
    "deepspeed.initialize": _SPREADS,
    "xgboost.train": Sign("training", "compute", 8, "trains trees"),
    "lightgbm.train": Sign("training", "compute", 8, "trains trees"),
    "sklearn.model_selection.cross_val_score": Sign("training", "compute", 6, "trains and tests"),
    "sklearn.model_selection.train_test_split": Sign("data", "memory", 2, "divides data"),
    "tensorflow.GradientTape": _TRAINS,
    "jax.grad": _TRAINS,
    "jax.value_and_grad": _TRAINS,
    "jax": Sign("hpc", "compute", 1, "works through arrays", gpu=True),
    "numpy.linalg": _LINEAR,
    "numpy.dot": _LINEAR,
    "numpy.matmul": _LINEAR,
    "numpy.einsum": _LINEAR,
    "numpy.fft": Sign("hpc", "memory", 4, "a Fourier transform"),
    "numpy.load": _READS,
    "numpy.loadtxt": _READS,
    "numpy.genfromtxt": _READS,
    "numpy.fromfile": _READS,
    "numpy.memmap": _READS,
    "numpy.save": _WRITES,
    "numpy.random": Sign(None, None, 0, "chance"),
    "numpy": _ARRAYS,
    "scipy.linalg": _LINEAR,
    "scipy.sparse": Sign("hpc", "memory", 4, "sparse algebra"),
    "scipy.fft": Sign("hpc", "memory", 4, "a Fourier transform"),
    "scipy.integrate": Sign("hpc", "compute", 4, "integrates"),
    "scipy.optimize": Sign("hpc", "compute", 4, "optimises"),
    "scipy.ndimage": Sign("hpc", "memory", 3, "works through grids"),
    "cupy.linalg": Sign("hpc", "compute", 4, "linear algebra", gpu=True),
    "cupy": Sign("hpc", "memory", 2, "works through arrays", gpu=True),
    "numba.njit": Sign("hpc", "compute", 4, "a compiled kernel"),
    "numba.jit": Sign("hpc", "compute", 4, "a compiled kernel"),
    "numba.vectorize": Sign("hpc", "compute", 4, "a compiled kernel"),
    "numba.stencil": Sign("hpc", "memory", 4, "a stencil"),
    "numba.cuda": Sign("hpc", "compute", 5, "a kernel for GPUs", gpu=True),
    "triton": Sign("hpc", "compute", 4, "a kernel for GPUs", gpu=True),
    "pycuda": Sign("hpc", "compute", 4, "a kernel for GPUs", gpu=True),
    "mpi4py": _MPI,
    "pandas.read": _READS,
    "pandas": _TABLES,
    "polars.read": _READS,
    "polars.scan": _READS,
    "polars": _TABLES,
    "pyarrow.parquet.read": _READS,
    "pyarrow.parquet.write": _WRITES,
    "pyspark": Sign("data", "io", 4, "works through tables on many machines"),
    "open": Sign("data", "io", 2, "opens a file"),
    "gzip.open": Sign("data", "io", 3, "opens a packed file"),
    "h5py.File": Sign("data", "io", 3, "opens a file"),
    "zarr.open": Sign("data", "io", 3, "opens a file"),
    "PIL.Image.open": Sign("data", "io", 3, "reads an image"),
    "cv2.imread": Sign("data", "io", 3, "reads an image"),
    "cv2.VideoCapture": Sign("data", "io", 3, "reads a film"),
    "cv2.imwrite": _WRITES,
    "cv2": Sign("data", "compute", 1, "works on images"),
    "json.load": Sign("data", "io", 1, "reads a file"),
    "json.dump": Sign("data", "io", 1, "writes a file"),
    "pickle.load": Sign("data", "io", 1, "reads a file"),
    "pickle.dump": Sign("data", "io", 1, "writes a file"),
    "csv": Sign("data", "io", 2, "works through a table in a file"),
    "joblib.load": _READS,
    "joblib.dump": _WRITES,
    "safetensors.torch.load_file": _READS,
    "safetensors.torch.save_file": _WRITES,
    "shutil.copy": Sign("data", "io", 4, "copies files"),
    "shutil.copytree": Sign("data", "io", 4, "copies files"),
    "shutil.move": Sign("data", "io", 4, "moves files"),
    "tarfile": Sign("data", "io", 4, "packs or unpacks files"),
    "zipfile": Sign("data", "io", 4, "packs or unpacks files"),
    "shutil.unpack_archive": Sign("data", "io", 4, "packs or unpacks files"),
    "shutil.make_archive": Sign("data", "io", 4, "packs or unpacks files"),
    "shutil.rmtree": Sign("data", "io", 2, "removes files"),
    "glob.glob": Sign("data", "io", 1, "lists files"),
    "os.listdir": Sign("data", "io", 1, "lists files"),
    "os.walk": Sign("data", "io", 1, "lists files"),
    "os.scandir": Sign("data", "io", 1, "lists files"),
    "sqlite3.connect": Sign("data", "io", 3, "asks a database"),
    "sqlalchemy.create_engine": Sign("data", "io", 3, "asks a database"),
    "requests": _FETCHES,
    "urllib.request": _FETCHES,
    "httpx": _FETCHES,
    "boto3": _FETCHES,
    "huggingface_hub": _FETCHES,
    "wget.download": _FETCHES,
    "subprocess": Sign(None, None, 1, "starts a program"),
    "os.system": Sign(None, None, 1, "starts a program"),
    "torch.multiprocessing.spawn": _TALKS,
    "multiprocessing": Sign(None, "compute", 2, "many processes"),
    "concurrent.futures": Sign(None, "compute", 1, "many workers"),
}

METHODS: Final[dict[str, Sign]] = {
    "backward": _TRAINS,
    "zero_grad": Sign("training", None, 2, "forgets gradients", gpu=True, work=False),
    "fit": Sign("training", "compute", 8, "trains"),
    "partial_fit": Sign("training", "compute", 8, "trains"),
    "fit_transform": Sign("data", "memory", 3, "learns a transformation and applies it"),
    "train_on_batch": Sign("training", "compute", 8, "trains", gpu=True),
    "generate": Sign("inference", "memory", 5, "generates word by word", gpu=True),
    "predict": Sign("inference", "compute", 5, "asks a model"),
    "predict_proba": Sign("inference", "compute", 5, "asks a model"),
    "eval": Sign("inference", None, 1.5, "a model without training", gpu=True),
    "all_reduce": _TALKS,
    "all_gather": _TALKS,
    "reduce_scatter": _TALKS,
    "Allreduce": _MPI,
    "allreduce": _MPI,
    "Bcast": _MPI,
    "bcast": _MPI,
    "Send": _MPI,
    "Recv": _MPI,
    "Isend": _MPI,
    "Irecv": _MPI,
    "Gather": _MPI,
    "Scatter": _MPI,
    "Allgather": _MPI,
    "Alltoall": _MPI,
    "to_csv": _WRITES,
    "to_parquet": _WRITES,
    "to_json": _WRITES,
    "to_pickle": _WRITES,
    "to_hdf": _WRITES,
    "to_feather": _WRITES,
    "write_parquet": _WRITES,
    "write_csv": _WRITES,
    "save_pretrained": _WRITES,
    "save_to_disk": _WRITES,
    "save_model": _WRITES,
    "push_to_hub": Sign("data", "io", 5, "sends over the network"),
    "from_pretrained": Sign(None, "io", 1, "loads a model", gpu=True),
    "savefig": _WRITES,
    "write_text": _WRITES,
    "write_bytes": _WRITES,
    "read_text": _READS,
    "read_bytes": _READS,
    "imsave": _WRITES,
    "tofile": _WRITES,
    "groupby": _TABLES,
    "merge": _TABLES,
    "sort_values": _TABLES,
    "pivot_table": _TABLES,
    "drop_duplicates": _TABLES,
    "dropna": _TABLES,
    "fillna": _TABLES,
    "tokenize": Sign("data", "compute", 2, "divides text into words"),
    "extractall": Sign("data", "io", 4, "unpacks files"),
}

MPI_METHODS: Final = frozenset({
    "allgather", "allreduce", "alltoall", "barrier", "bcast", "gather", "irecv", "isend", "recv", "reduce", "scan", "scatter",
    "send", "sendrecv",
})  # fmt: skip
"""Of a communicator, in any case of letters: others have methods of these names, too."""
TRAINERS: Final = ("Trainer",)
"""Names of classes whose `train` is training; of other objects `train()` only sets a switch."""
STEPPERS: Final = ("optim", "opt", "scheduler", "sched", "scaler", "engine")
"""In names of objects whose `step` is a step of training."""

FILES: Final[dict[str, tuple[FileUse, ...]]] = {
    "open": (FileUse("mode", 0, "file"),),
    "io.open": (FileUse("mode", 0, "file"),),
    "gzip.open": (FileUse("mode", 0, "filename"),),
    "bz2.open": (FileUse("mode", 0, "filename"),),
    "lzma.open": (FileUse("mode", 0, "filename"),),
    "h5py.File": (FileUse("mode", 0, "name"),),
    "zarr.open": (FileUse("mode", 0, "store"),),
    "tarfile.open": (FileUse("mode", 0, "name"),),
    "zipfile.ZipFile": (FileUse("mode", 0, "file"),),
    "torch.load": (FileUse("read", 0, "f"),),
    "torch.save": (FileUse("write", 1, "f"),),
    "torch.jit.load": (FileUse("read", 0, "f"),),
    "torch.jit.save": (FileUse("write", 1, "f"),),
    "torch.onnx.export": (FileUse("write", 2, "f"),),
    "numpy.load": (FileUse("read", 0, "file"),),
    "numpy.loadtxt": (FileUse("read", 0, "fname"),),
    "numpy.genfromtxt": (FileUse("read", 0, "fname"),),
    "numpy.fromfile": (FileUse("read", 0, "file"),),
    "numpy.memmap": (FileUse("mode", 0, "filename"),),
    "numpy.save": (FileUse("write", 0, "file"),),
    "numpy.savez": (FileUse("write", 0, "file"),),
    "numpy.savez_compressed": (FileUse("write", 0, "file"),),
    "numpy.savetxt": (FileUse("write", 0, "fname"),),
    "joblib.load": (FileUse("read", 0, "filename"),),
    "joblib.dump": (FileUse("write", 1, "filename"),),
    "safetensors.torch.load_file": (FileUse("read", 0, "filename"),),
    "safetensors.torch.save_file": (FileUse("write", 1, "filename"),),
    "PIL.Image.open": (FileUse("read", 0, "fp"),),
    "cv2.imread": (FileUse("read", 0, "filename"),),
    "cv2.imwrite": (FileUse("write", 0, "filename"),),
    "cv2.VideoCapture": (FileUse("read", 0, "filename"),),
    "sqlite3.connect": (FileUse("read", 0, "database"), FileUse("write", 0, "database")),
    "glob.glob": (FileUse("read", 0, "pathname"),),
    "glob.iglob": (FileUse("read", 0, "pathname"),),
    "os.listdir": (FileUse("read", 0, "path"),),
    "os.walk": (FileUse("read", 0, "top"),),
    "os.scandir": (FileUse("read", 0, "path"),),
    "os.path.exists": (FileUse("read", 0, "path"),),
    "os.path.isfile": (FileUse("read", 0, "path"),),
    "os.remove": (FileUse("write", 0, "path"),),
    "os.rename": (FileUse("read", 0, "src"), FileUse("write", 0, "src"), FileUse("write", 1, "dst")),
    "os.replace": (FileUse("read", 0, "src"), FileUse("write", 0, "src"), FileUse("write", 1, "dst")),
    "shutil.move": (FileUse("read", 0, "src"), FileUse("write", 0, "src"), FileUse("write", 1, "dst")),
    "shutil.copy": (FileUse("read", 0, "src"), FileUse("write", 1, "dst")),
    "shutil.copy2": (FileUse("read", 0, "src"), FileUse("write", 1, "dst")),
    "shutil.copyfile": (FileUse("read", 0, "src"), FileUse("write", 1, "dst")),
    "shutil.copytree": (FileUse("read", 0, "src"), FileUse("write", 1, "dst")),
    "shutil.make_archive": (FileUse("read", 2, "root_dir"), FileUse("write", 0, "base_name")),
    "shutil.rmtree": (FileUse("read", 0, "path"), FileUse("write", 0, "path")),
    "shutil.unpack_archive": (FileUse("read", 0, "filename"), FileUse("write", 1, "extract_dir")),
    "urllib.request.urlretrieve": (FileUse("write", 1, "filename"),),
    "wget.download": (FileUse("write", 1, "out"),),
    "torchvision.datasets.": (FileUse("read", 0, "root"),),
    "torchvision.utils.save_image": (FileUse("write", 1, "fp"),),
    "pandas.read_": (FileUse("read", 0, "filepath_or_buffer"),),
    "polars.read_": (FileUse("read", 0, "source"),),
    "polars.scan_": (FileUse("read", 0, "source"),),
    "pyarrow.parquet.read_table": (FileUse("read", 0, "source"),),
    "pyarrow.parquet.write_table": (FileUse("write", 1, "where"),),
    "datasets.load_from_disk": (FileUse("read", 0, "dataset_path"),),
}
"""By dotted name; those that end in . or _ stand for all that begin so."""

FILE_METHODS: Final[dict[str, tuple[FileUse, ...]]] = {
    "read_text": (FileUse("read", -1),),
    "read_bytes": (FileUse("read", -1),),
    "write_text": (FileUse("write", -1),),
    "write_bytes": (FileUse("write", -1),),
    "exists": (FileUse("read", -1),),
    "is_file": (FileUse("read", -1),),
    "iterdir": (FileUse("read", -1),),
    "glob": (FileUse("read", -2),),
    "rglob": (FileUse("read", -2),),
    "unlink": (FileUse("write", -1),),
    "to_csv": (FileUse("write", 0, "path_or_buf"),),
    "to_parquet": (FileUse("write", 0, "path"),),
    "to_json": (FileUse("write", 0, "path_or_buf"),),
    "to_pickle": (FileUse("write", 0, "path"),),
    "to_hdf": (FileUse("write", 0, "path_or_buf"),),
    "to_feather": (FileUse("write", 0, "path"),),
    "write_parquet": (FileUse("write", 0, "file"),),
    "write_csv": (FileUse("write", 0, "file"),),
    "save_pretrained": (FileUse("write", 0, "save_directory"),),
    "from_pretrained": (FileUse("read", 0, "pretrained_model_name_or_path"),),
    "save_to_disk": (FileUse("write", 0, "dataset_path"),),
    "save_model": (FileUse("write", 0, "output_dir"),),
    "load_model": (FileUse("read", 0, "fname"),),
    "savefig": (FileUse("write", 0, "fname"),),
    "imsave": (FileUse("write", 0, "fname"),),
    "tofile": (FileUse("write", 0, "fid"),),
    "extractall": (FileUse("write", 0, "path"),),
    "download": (FileUse("write", 0, "path"),),
}
"""By the name of a method, whatever it is called on. `Path.open` is told by its mode; see `survey`."""


@lru_cache(maxsize=65536)
def sign_of(dotted: str) -> Sign | None:
    """The sign of the longest beginning that is in the table: whole parts, or letters where the table ends in a word's part."""
    if dotted in CALLS:
        return CALLS[dotted]
    stem = next((name for name in _STEMS if dotted.startswith(name)), None)
    if stem is not None:
        return CALLS[stem]
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        found = CALLS.get(".".join(parts[:length]))
        if found is not None:
            return found
    return None


_STEMS: Final = tuple(
    sorted((name for name in CALLS if name.count(".") and name.rsplit(".", 1)[1] in
            {"Conv", "conv", "BatchNorm", "Transformer", "read", "write", "scan", "save", "dump", "copy", "get", "is"}), key=len, reverse=True)
)  # fmt: skip
"""Names that stand for others which begin with the same letters: Conv2d, read_csv, savez."""


def files_of(dotted: str) -> tuple[FileUse, ...]:
    """Which files a call uses, by its dotted name."""
    if dotted in FILES:
        return FILES[dotted]
    return next((uses for name, uses in FILES.items() if name[-1] in "._" and dotted.startswith(name)), ())


LEAVES: Final = frozenset({
    "eval", "exists", "mkdir", "info", "debug", "warning", "error", "exception", "critical", "log", "print", "show",
    "display", "describe", "head", "savefig", "imsave", "tofile", "to_csv", "to_parquet", "to_json", "to_pickle",
    "to_hdf", "to_feather", "write_parquet", "write_csv", "write_text", "write_bytes", "save", "save_model",
    "save_pretrained", "save_to_disk", "save_checkpoint", "summary", "format", "requires_grad", "synchronize",
    "barrier", "sleep",
})  # fmt: skip
"""Methods that leave the object as it was, as far as other steps care, although nobody uses what they give back."""

CHANGES: Final = frozenset({
    "append", "appendleft", "add", "advance", "backward", "clear", "execute", "extend", "fit", "fit_transform",
    "insert", "learn", "load_state_dict", "minimize", "optimize", "partial_fit", "pop", "popitem", "popleft",
    "process", "put", "read", "readline", "readlines", "recv", "remove", "reverse", "run", "send", "setdefault",
    "shuffle", "simulate", "solve", "sort", "step", "tick", "train", "train_on_batch", "update", "write",
    "writelines",
})  # fmt: skip
"""Methods that change the object also where what they give back is used."""


def changes_object(method: str, *, discarded: bool) -> bool:
    """Whether a method changes what it is called on: it is known to, PyTorch's underscore says so, or nobody uses its result.

    A method whose result is used is mostly one of values: `loss.exp()`, `table.groupby("a")`. One whose result is thrown
    away was called for what it does.
    """
    if method in CHANGES or (method.endswith("_") and not method.endswith("__")):
        return True
    return discarded and method not in LEAVES


CHANGES_ARGUMENTS: Final = frozenset({
    "fit", "train", "fine_tune", "finetune", "optimize", "partial_fit", "shuffle", "train_on_batch",
})  # fmt: skip
"""Methods that may change what they are given."""

COLLECTS: Final = frozenset({
    "append", "extend", "add", "update", "insert", "appendleft", "setdefault",
})  # fmt: skip
"""Methods that only put something into a collection; rounds of a loop that do no more need nothing of each other."""

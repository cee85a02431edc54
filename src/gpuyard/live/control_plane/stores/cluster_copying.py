"""Copy a whole cluster between a data folder and a database, in any combination: the journal and the stores beside it.

    lock and check the journal ─► read the stores ─► copy and compare the journal ─► write the stores ─► it counts
                                  (wrong key?)        (takes the time)                (key drawn if new)

A scheduler starts on a target as soon as there is a journal, so users, secrets and documents have to be there before it
counts: in a folder they are written before the head file of the journal, in a database in the same transaction. A
scheduler refuses the folder that a killed copy leaves behind, because the head file is missing; a database stays empty.

Secrets are decrypted with the key of a database as the source and encrypted with that of the target. In a data folder
they are plain, because only its owner can read it. The archive, the history and the alerts stay in the data folder of
the scheduler: it keeps them when its journal moves into a database, and it may be the target on the way back.
"""

from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuyard.core.journal.copying import (
    CopyResult,
    JournalSource,
    Progress,
    copy_journal,
    folder_of,
    is_url,
    locked_source,
    to_database,
    to_folder,
)
from gpuyard.core.journal.files import as_journal_errors
from gpuyard.core.journal.folders import closed_folder
from gpuyard.core.journal.stores import head, segment
from gpuyard.live.control_plane.replication.log_file import FILE as REPLICATION_FILE
from gpuyard.live.control_plane.replication.log_file import ReplicationLog
from gpuyard.live.control_plane.stores.cluster_records import ClusterRecords, Put, Row, SqliteRecords
from gpuyard.live.control_plane.stores.cluster_stores import cipher_of, open_cluster_stores
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError
from gpuyard.live.control_plane.stores.documents import (
    KEY_CHECK,
    Documents,
    FolderDocuments,
    RecordDocuments,
    document_row,
)
from gpuyard.live.control_plane.stores.record_layouts import (
    ACCESS_LAYOUT,
    DOCUMENTS,
    DOCUMENTS_LAYOUT,
    LAYOUTS,
    SECRETS,
    SECRETS_LAYOUT,
    TOKENS,
    USERS,
)
from gpuyard.live.control_plane.stores.secrets import place_of
from gpuyard.live.control_plane.stores.secrets_key import (
    KEY_FILE,
    AesGcmCipher,
    Cipher,
    KeySource,
    NoCipher,
    WrongSecretsKey,
    check_value,
)

if TYPE_CHECKING:
    from gpuyard.core.journal.stores.postgres_connection import BoundedConnection, DatabaseAddress

_FILES = {ACCESS_LAYOUT.name: "access.sqlite", SECRETS_LAYOUT.name: "secrets.sqlite"}
_OF_A_SCHEDULER = frozenset(
    {
        "alerts.sqlite",
        "archive.sqlite",
        "audit",
        "clock.json",
        "history.sqlite",
        KEY_FILE,
        "pools",
        "snapshots",
    }
)
"""What a scheduler whose journal is in a database has in its data folder."""
_MOST_SHOWN = 12
"""Names in a message."""


class CopiedStores(NamedTuple):
    """What was copied beside the journal."""

    users: int
    tokens: int
    secrets: int
    """Tasks with secrets."""
    documents: int


class ClusterCopy(NamedTuple):
    """What was copied."""

    journal: CopyResult
    stores: CopiedStores | None
    """None: the journal alone."""
    key: str
    """Where the key is that the target needs; empty: it needs none."""


class _Contents(NamedTuple):
    """Everything beside a journal, decrypted."""

    users: list[Row]
    tokens: list[Row]
    secrets: list[Row]
    documents: dict[str, bytes]

    @property
    def counted(self) -> CopiedStores:
        return CopiedStores(len(self.users), len(self.tokens), len(self.secrets), len(self.documents))


def copy_cluster(
    source: str, target: str, progress: Progress, *, journal_only: bool = False, key_file: Path | None = None
) -> ClusterCopy:
    """Copy a cluster from one place to another; each is a data folder or a URL.

    A source that is only a journal is copied as one, into the target folder itself. `key_file`: the key of the secrets,
    if it is not in the environment; default: `secrets_key` in the data folder. A database gets a new key if there is
    none.
    """
    if journal_only or not _is_cluster(source):
        return ClusterCopy(copy_journal(source, target, progress), None, "")
    folder = next((Path(place) for place in (source, target) if not is_url(place)), None)
    key = KeySource(key_file or (folder / KEY_FILE if folder is not None else None))
    with locked_source(source) as found:
        contents = _from_database(source, key) if is_url(source) else _from_folder(Path(source))
        if is_url(target):
            return ClusterCopy(_to_database(found, target, contents, key, progress), contents.counted, key.shown)
        return ClusterCopy(_to_folder(found, Path(target), contents, progress), contents.counted, "")


def _is_cluster(source: str) -> bool:
    if not is_url(source):
        return folder_of(Path(source)) != Path(source)
    from gpuyard.live.control_plane.stores.postgres_records import has_stores

    return has_stores(source)


# --- reading -----------------------------------------------------------------------------------------------------------


def _from_folder(folder: Path) -> _Contents:
    """Read the stores of a data folder; a file that is missing is not created."""
    with ExitStack() as stack:
        opened: dict[str, ClusterRecords] = {}
        for layout in (ACCESS_LAYOUT, SECRETS_LAYOUT):
            path = folder / _FILES[layout.name]
            if path.exists():
                opened[layout.name] = SqliteRecords.open(path, layout)
                stack.callback(opened[layout.name].close)
        return _contents(opened, _documents_in(folder, stack), NoCipher())


def _documents_in(folder: Path, stack: ExitStack) -> Documents:
    """Open the documents of a data folder; those of a scheduler that replicates are in a store of their own."""
    if not (folder / REPLICATION_FILE).exists():
        return FolderDocuments(folder)
    log = ReplicationLog(folder / REPLICATION_FILE)
    stack.callback(log.close)
    if not log.is_complete:
        raise StoreError(
            f"The scheduler of {folder} was killed, or follows another one, and the journal there lacks entries that it "
            "has received. Copy the folder of the one that led last, after it was stopped with SIGTERM. If there is no "
            "other one, start this one with --take-over, stop it, and copy again."
        )
    if log.name not in log.record.membership.in_sync:
        raise StoreError(
            f"The scheduler of {folder} was left out by the other one, so it lacks events. Copy the folder of that one. If it is "
            "lost, start this one with --take-over, stop it, and copy again."
        )
    records = SqliteRecords.open(folder / "documents.sqlite", DOCUMENTS_LAYOUT)
    stack.callback(records.close)
    return RecordDocuments(records, NoCipher())


def _from_database(url: str, key: KeySource) -> _Contents:
    """Read the stores of a database, with the key if anything is encrypted."""
    from gpuyard.live.control_plane.stores.postgres_records import PostgresRecords

    with ExitStack() as stack:
        opened: dict[str, PostgresRecords] = {}
        for layout in LAYOUTS:
            opened[layout.name] = PostgresRecords.open(url, layout)
            stack.callback(opened[layout.name].close)
        documents, secrets = opened[DOCUMENTS_LAYOUT.name], opened[SECRETS_LAYOUT.name]
        cipher: Cipher = NoCipher()
        if secrets.keys(SECRETS) or any(sealed for _, _, sealed in documents.rows(DOCUMENTS)):
            if key.read() is None:
                raise WrongSecretsKey(
                    f"The key of the secrets in {documents.shown} is missing from {key.shown}. Copy it from a "
                    "scheduler of this cluster (secrets_key in its data folder), or name its file: --secrets-key FILE."
                )
            cipher = cipher_of(documents, secrets, key)
        return _contents(dict(opened), RecordDocuments(documents, cipher), cipher)


def _contents(opened: dict[str, ClusterRecords], documents: Documents, cipher: Cipher) -> _Contents:
    access, secrets = opened.get(ACCESS_LAYOUT.name), opened.get(SECRETS_LAYOUT.name)
    return _Contents(
        users=access.rows(USERS) if access else [],
        tokens=access.rows(TOKENS) if access else [],
        secrets=[(task, cipher.unseal(named, place_of(task))) for task, named in secrets.rows(SECRETS)]
        if secrets
        else [],
        documents={name: documents.read(name) or b"" for name in documents.names()},
    )


# --- writing -----------------------------------------------------------------------------------------------------------


def _to_database(
    found: JournalSource, target: str, contents: _Contents, key: KeySource, progress: Progress
) -> CopyResult:
    known = key.read()

    def beside(connection: "BoundedConnection", address: "DatabaseAddress") -> None:
        from gpuyard.live.control_plane.stores.postgres_records import load

        cipher = AesGcmCipher(known if known is not None else key.create())
        documents = [document_row(cipher, name, content) for name, content in contents.documents.items()]
        rows = {
            USERS.name: contents.users,
            TOKENS.name: contents.tokens,
            SECRETS.name: [(task, cipher.seal(named, place_of(task))) for task, named in contents.secrets],
            DOCUMENTS.name: [*documents, (KEY_CHECK, check_value(cipher), 1)],
        }
        for layout in LAYOUTS:
            load(connection, address, layout, rows)

    return to_database(found, target, progress, beside)


def _to_folder(found: JournalSource, folder: Path, contents: _Contents, progress: Progress) -> CopyResult:
    with as_journal_errors(folder):
        _refuse_used(folder)
        closed_folder(folder, "target folder", "--to")
    began = False

    def beside() -> None:
        nonlocal began
        began = True
        _write_stores(folder, contents)

    try:
        return to_folder(found, folder / "journal", progress, beside)
    except BaseException:
        if began:  # this process has the lock of the folder; otherwise they may belong to another one
            _remove_stores(folder, contents)
        with suppress(OSError):
            (folder / "journal").rmdir()
        raise


def _refuse_used(folder: Path) -> None:
    """Refuse a folder that is more than the data folder of a scheduler without a journal."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder. Copy to a new one.")
    inside = {path.name.removesuffix("-wal").removesuffix("-shm") for path in folder.iterdir()} - _OF_A_SCHEDULER
    inside |= set(FolderDocuments(folder).names())
    if not inside:
        return
    shown = ", ".join(sorted(inside)[:_MOST_SHOWN]) + (", …" if len(inside) > _MOST_SHOWN else "")
    within = folder / "journal"
    if segment.segments_in(within) and not (within / head.NAME).exists():
        raise StoreError(
            f"{folder} contains a copy that was interrupted: its journal has no file {head.NAME}. Remove {shown} "
            "there, and copy again."
        )
    raise StoreError(
        f"{folder} is not an empty folder: it contains {shown}. Copy to a new one, or move these away if it is the "
        "data folder of a scheduler."
    )


def _write_stores(folder: Path, contents: _Contents) -> None:
    """Write the stores of a data folder; open them again and compare."""
    with closing(open_cluster_stores(folder)) as stores:
        stores.records[ACCESS_LAYOUT.name].write(Put(USERS, contents.users), Put(TOKENS, contents.tokens))
        stores.records[SECRETS_LAYOUT.name].write(Put(SECRETS, contents.secrets))
        for name, content in contents.documents.items():
            stores.documents.write(name, content)
    stored = _from_folder(folder)
    same = all(sorted(found) == sorted(wanted) for found, wanted in zip(stored[:3], contents[:3], strict=True))
    if not same or stored.documents != contents.documents:
        raise StoreDamaged(f"The copy of users, tokens, secrets and documents in {folder} differs from its source.")


def _remove_stores(folder: Path, contents: _Contents) -> None:
    for name in [*_FILES.values(), *contents.documents]:
        for path in (folder / name, folder / f"{name}-wal", folder / f"{name}-shm"):
            with suppress(OSError):
                path.unlink()
    for path in [*folder.glob("pools/*"), folder / "pools"]:
        with suppress(OSError):  # it contains more than the nodes
            path.rmdir()

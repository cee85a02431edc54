"""Open the small stores beside the journal: users and tokens, secrets of tasks, documents.

    open_cluster_stores(folder)                               files; one scheduler
    open_cluster_stores(url=…, epoch=journal.epoch, key=…)    the database of the journal; the scheduler that leads
    open_cluster_stores(url=…, key=…)                         the same, only reading; a scheduler that stands by

A scheduler that stands by calls `refresh` as often as it likes: three short queries while nothing has changed. When it
has taken over the journal, it calls `lead` with the new epoch; the objects stay the same.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.stores.cluster_records import (
    ClusterRecords,
    Put,
    SqliteRecords,
)
from gpuyard.live.control_plane.stores.database import StoreMissing
from gpuyard.live.control_plane.stores.documents import KEY_CHECK, Documents, FolderDocuments, RecordDocuments
from gpuyard.live.control_plane.stores.record_layouts import (
    ACCESS_LAYOUT,
    DOCUMENTS,
    DOCUMENTS_LAYOUT,
    LAYOUTS,
    SECRETS,
    SECRETS_LAYOUT,
)
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.stores.secrets_key import (
    KEY_VARIABLE,
    AesGcmCipher,
    Cipher,
    KeySource,
    NoCipher,
    WrongSecretsKey,
    check_value,
    is_right,
)

if TYPE_CHECKING:
    from gpuyard.core.journal.stores.postgres_connection import Waits
    from gpuyard.live.control_plane.stores.postgres_records import PostgresRecords


class ClusterStores:
    """The small stores of a cluster. Create it with `open_cluster_stores`."""

    def __init__(
        self,
        records: dict[str, ClusterRecords],
        documents: Documents,
        cipher: Cipher,
        shared: "list[PostgresRecords]",
    ) -> None:
        self.records = records
        """The rows of `access` and `secrets`, by the name of their layout."""
        self.cipher = cipher
        self.access = AccessStore(records[ACCESS_LAYOUT.name])
        self.secrets = SecretStore(records[SECRETS_LAYOUT.name], cipher)
        self.documents = documents
        self._shared = shared

    def refresh(self) -> bool:
        """Read what another scheduler has changed; return whether it has changed anything."""
        return any([self.access.refresh(), self.secrets.refresh(), self.documents.refresh()])

    def lead(self, epoch: int) -> None:
        """Begin to write, after the journal was opened with this epoch, and read what the writer before has changed."""
        for records in self._shared:
            records.claim(epoch)
        self.refresh()

    def close(self) -> None:
        """Write the last-use times of tokens if possible, and close all files or connections."""
        for store in (self.access, self.secrets, self.documents):
            store.close()


def open_cluster_stores(
    folder: Path | None = None,
    *,
    access_file: Path | None = None,
    url: str = "",
    epoch: int | None = None,
    key: KeySource | None = None,
    waits: "Waits | None" = None,
) -> ClusterStores:
    """Open the stores in a data folder, or in the database of a journal (`url`).

    `access_file`: the file of users and tokens; default: access.sqlite in the folder. `epoch`: that of the open
    PostgresJournal (`journal.epoch`); missing tables are created, and every write is refused with WriterDeposed once
    another scheduler has taken over. Without it the stores can only be read. `key`: where the key of the secrets is;
    default: the environment variable. A missing key file is created for a database that holds nothing encrypted yet.

    Raises StoreError: StoreUnreachable (try again), WrongSecretsKey (nothing was changed), StoreMissing, StoreFromFuture and
    StoreFromPast (tables of another version), StoreLocked (a file that another process uses); WriterDeposed.
    """
    if not url:
        assert folder is not None, "name a folder or a database"
        return _in_folder(folder, access_file or folder / "access.sqlite")
    return _in_database(url, epoch, key or KeySource(), waits)


def _in_folder(folder: Path, access_file: Path) -> ClusterStores:
    with ExitStack() as stack:
        opened: dict[str, ClusterRecords] = {}
        for path, layout in ((access_file, ACCESS_LAYOUT), (folder / "secrets.sqlite", SECRETS_LAYOUT)):
            opened[layout.name] = SqliteRecords.open(path, layout)
            stack.callback(opened[layout.name].close)
        stores = ClusterStores(opened, FolderDocuments(folder), NoCipher(), [])
        stack.pop_all()
        return stores


def _in_database(url: str, epoch: int | None, key: KeySource, waits: "Waits | None") -> ClusterStores:
    from gpuyard.live.control_plane.stores.postgres_records import PostgresRecords

    with ExitStack() as stack:
        opened: dict[str, PostgresRecords] = {}
        for layout in LAYOUTS:
            opened[layout.name] = PostgresRecords.open(url, layout, epoch=epoch, waits=waits)
            stack.callback(opened[layout.name].close)
        documents = opened[DOCUMENTS_LAYOUT.name]
        cipher = cipher_of(documents, opened[SECRETS_LAYOUT.name], key, creates=epoch is not None)
        stores = ClusterStores(dict(opened), RecordDocuments(documents, cipher), cipher, list(opened.values()))
        stack.pop_all()
        return stores


def cipher_of(
    documents: "PostgresRecords", secrets: "PostgresRecords", source: KeySource, *, creates: bool = False
) -> Cipher:
    """Return the cipher of a database, after checking its key. A new database gets the key that is found or drawn."""
    found, where = source.read(), documents.shown
    # Another scheduler may found the cluster in this moment. It writes the check value before anything that is encrypted, so
    # it is read last, together with the other documents.
    has_secrets = bool(secrets.keys(SECRETS))
    rows = documents.rows(DOCUMENTS)
    check = [row for row in rows if row[0] == KEY_CHECK]
    if check:
        if found is None:
            raise WrongSecretsKey(
                _no_way_in(f"The key of the secrets in {where} is missing from {source.shown}", documents.schema)
            )
        cipher = AesGcmCipher(found)
        if not is_right(cipher, check[0][1]):
            raise WrongSecretsKey(
                _no_way_in(f"The key in {source.shown} is not the one of the secrets in {where}", documents.schema)
            )
        return cipher
    if has_secrets or any(sealed for _, _, sealed in rows):
        said = f"The check value of the key is missing from {where}, which holds encrypted values"
        raise WrongSecretsKey(_no_way_in(said, documents.schema))
    if not creates:
        raise StoreMissing(f"There is no key of the secrets in {where} yet. Start a scheduler that writes first.")
    cipher = AesGcmCipher(found if found is not None else source.create())
    documents.write(Put(DOCUMENTS, [(KEY_CHECK, check_value(cipher), 1)]))
    return cipher


def _no_way_in(problem: str, schema: str) -> str:
    encrypted = f"DELETE FROM {schema}.secrets; DELETE FROM {schema}.documents WHERE sealed = 1"  # noqa: S608 - for people
    return (
        f"{problem}. Copy the key from another scheduler of this cluster or from a backup, into the environment "
        f"({KEY_VARIABLE}) or that file. If it is lost, delete what it encrypts ({encrypted}), start with a new key, and "
        "submit tasks with secrets again."
    )

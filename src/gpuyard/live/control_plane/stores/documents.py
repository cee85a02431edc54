"""Small documents of a cluster, each read and replaced as a whole: keys, the settings that were applied, pool nodes.

    request_key, yard_key, join_token            secrets of the cluster, drawn once; encrypted in a database
    alerts.json                                  silences, and what was sent, for the next scheduler that leads
    applied.json, applied_users.json             what was last applied of the settings file
    system_users.json, pools/KIND/nodes.json     accounts of users, requested nodes of a pool

With one scheduler they are files in the data folder, under these names. A successor on another machine has to have them
too, so with a database they are rows of it.
"""

from pathlib import Path
from secrets import token_urlsafe
from threading import RLock
from typing import NamedTuple, Protocol

from gpuyard.live.control_plane.stores.cluster_records import ClusterRecords, Put, Row
from gpuyard.live.control_plane.stores.database import as_store_errors
from gpuyard.live.control_plane.stores.record_layouts import DOCUMENTS
from gpuyard.live.control_plane.stores.secrets_key import Cipher
from gpuyard.system.files import replace_file

DRAWN_SECRETS = frozenset({"request_key", "yard_key", "join_token"})
"""Names of documents that are encrypted in a database."""
KEY_CHECK = "secrets_key_check"
"""Row that recognizes the key of the database; it is no document of the cluster."""
_PLAIN = ("alerts.json", "applied.json", "applied_users.json", "system_users.json")
_DRAWN_BYTES = 24


class Documents(Protocol):
    """The documents of a cluster, by name. May be called from any thread."""

    def names(self) -> list[str]:
        """Return the names of all documents, sorted."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a document; None: there is none. A database is asked only when `refresh` finds news."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a document. Durable when this returns; it may be repeated."""
        ...

    def refresh(self) -> bool:
        """Read what another scheduler has written; return whether it has."""
        ...

    def close(self) -> None:
        """Close the connection, if there is one."""
        ...


class Document(NamedTuple):
    """One document, for code that needs no other."""

    documents: Documents
    name: str

    def read(self) -> bytes | None:
        """Return the document; None: there is none."""
        return self.documents.read(self.name)

    def write(self, content: bytes) -> None:
        """Create or replace the document."""
        self.documents.write(self.name, content)


def drawn(documents: Documents, name: str) -> str:
    """Return a secret of the cluster, generated at the first call."""
    assert name in DRAWN_SECRETS, name
    known = (documents.read(name) or b"").decode().strip()
    if not known:
        known = token_urlsafe(_DRAWN_BYTES)
        documents.write(name, f"{known}\n".encode())
    return known


def has_keys(documents: Documents) -> bool:
    """Whether the secrets of the cluster have been drawn. The join token may be a setting."""
    return {"request_key", "yard_key"} <= set(documents.names())


class FolderDocuments:
    """Files in the data folder of a cluster, readable by their owner only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of the files that exist."""
        found = {name for name in (*DRAWN_SECRETS, *_PLAIN) if (self._folder / name).exists()}
        found |= {str(path.relative_to(self._folder)) for path in self._folder.glob("pools/*/nodes.json")}
        return sorted(found)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file."""
        path = self._folder / name
        with as_store_errors(path, "documents of the cluster"):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
            if name in DRAWN_SECRETS:
                path.chmod(0o600)
            return content

    def write(self, name: str, content: bytes) -> None:
        """Replace a file."""
        path = self._folder / name
        with as_store_errors(path, "documents of the cluster"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(path, content)

    def refresh(self) -> bool:
        """Return False: files are read when they are needed."""
        return False

    def close(self) -> None:
        """Do nothing."""


class RecordDocuments:
    """Rows of a database, kept in memory as they are stored."""

    def __init__(self, records: ClusterRecords, cipher: Cipher) -> None:
        self._records = records
        self._cipher = cipher
        self._turn = RLock()
        self._seen = -1
        self._stored: dict[str, tuple[bytes, bool]] = {}
        """Content and whether it is encrypted."""
        self._load()

    def names(self) -> list[str]:
        """Return the names of all documents."""
        return sorted(name for name in self._stored if name != KEY_CHECK)

    def read(self, name: str) -> bytes | None:
        """Return a document from memory."""
        found = self._stored.get(name)
        if found is None:
            return None
        content, sealed = found
        return self._cipher.unseal(content, _place(name)) if sealed else content

    def write(self, name: str, content: bytes) -> None:
        """Replace a row."""
        row = document_row(self._cipher, name, content)
        with self._turn:
            try:
                self._records.write(Put(DOCUMENTS, [row]))
            except BaseException:
                self._seen = -1  # it may be written
                raise
            self._stored[name] = (row[1], bool(row[2]))

    def refresh(self) -> bool:
        """Read all rows again if one of them has changed."""
        with self._turn:
            if self._records.changes() == self._seen:
                return False
            self._load()
            return True

    def close(self) -> None:
        """Close the connection."""
        self._records.close()

    def _load(self) -> None:
        seen = self._records.changes()  # first: a change during the next query is then found the next time
        self._stored = {name: (content, bool(sealed)) for name, content, sealed in self._records.rows(DOCUMENTS)}
        self._seen = seen


def document_row(cipher: Cipher, name: str, content: bytes) -> Row:
    """Return a document as it is stored in a database."""
    sealed = name in DRAWN_SECRETS
    return name, cipher.seal(content, _place(name)) if sealed else content, int(sealed)


def _place(name: str) -> str:
    return f"the document {name}"

"""The tables beside the journal, in a file and in PostgreSQL.

    access     users, tokens    access.sqlite
    secrets    secrets          secrets.sqlite
    documents  documents        plain files in the data folder (see documents.py)

A change of a table needs a new version of both, and an upgrade of the file.
"""

from gpuyard.live.control_plane.stores.cluster_records import RecordColumn, RecordsLayout, Table
from gpuyard.live.control_plane.stores.database import DatabaseLayout

USERS = Table(
    "users",
    (
        RecordColumn("username", "text"),
        RecordColumn("password_hash", "text"),
        RecordColumn("tenant", "text", nullable=True),
        RecordColumn("role", "text"),
        RecordColumn("disabled", "bigint"),
        RecordColumn("created_at", "double precision"),
    ),
)
TOKENS = Table(
    "tokens",
    (
        RecordColumn("id", "text"),
        RecordColumn("digest", "bytea"),
        RecordColumn("username", "text"),
        RecordColumn("name", "text"),
        RecordColumn("via", "text"),
        RecordColumn("created_at", "double precision"),
        RecordColumn("expires_at", "double precision", nullable=True),
        RecordColumn("revoked_at", "double precision", nullable=True),
        RecordColumn("last_used_at", "double precision", nullable=True),
        RecordColumn("uid", "bigint", nullable=True),
    ),
)
SECRETS = Table("secrets", (RecordColumn("task", "bigint"), RecordColumn("named", "bytea")))
DOCUMENTS = Table(
    "documents", (RecordColumn("name", "text"), RecordColumn("content", "bytea"), RecordColumn("sealed", "bigint"))
)

ACCESS_LAYOUT = RecordsLayout(
    name="access",
    version=1,
    tables=(USERS, TOKENS),
    file=DatabaseLayout(
        what="users and tokens",
        version=2,
        upgrades=("ALTER TABLE tokens ADD COLUMN uid INTEGER",),
        durable=True,
        exclusive=True,
        tables="""
            CREATE TABLE users (
                username TEXT PRIMARY KEY, password_hash TEXT NOT NULL, tenant TEXT, role TEXT NOT NULL,
                disabled INTEGER NOT NULL, created_at REAL NOT NULL
            ) WITHOUT ROWID;
            CREATE TABLE tokens (
                id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE,
                username TEXT NOT NULL REFERENCES users ON DELETE CASCADE, name TEXT NOT NULL, via TEXT NOT NULL,
                created_at REAL NOT NULL, expires_at REAL, revoked_at REAL, last_used_at REAL, uid INTEGER
            ) WITHOUT ROWID;
            CREATE INDEX tokens_of ON tokens (username)
        """,
    ),
)
SECRETS_LAYOUT = RecordsLayout(
    name="secrets",
    version=1,
    tables=(SECRETS,),
    secure_delete=True,
    file=DatabaseLayout(
        what="secrets of tasks",
        version=1,
        durable=True,
        exclusive=True,
        tables="CREATE TABLE secrets (task INTEGER PRIMARY KEY, named BLOB NOT NULL)",
    ),
)
DOCUMENTS_LAYOUT = RecordsLayout(
    name="documents",
    version=1,
    tables=(DOCUMENTS,),
    secure_delete=True,
    file=DatabaseLayout(
        what="documents of the cluster",
        version=1,
        durable=True,
        exclusive=True,
        tables="CREATE TABLE documents (name TEXT PRIMARY KEY, content BLOB NOT NULL, sealed INTEGER NOT NULL)",
    ),
)
LAYOUTS = (ACCESS_LAYOUT, SECRETS_LAYOUT, DOCUMENTS_LAYOUT)

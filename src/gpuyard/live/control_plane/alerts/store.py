"""Alerts, silences, the history and what was sent, in a file beside the journal.

A restart continues with these states: an alert that fires is not sent again. The file is not the only place of anything
that cannot be observed again, except silences, so a commit need not survive a power loss. A damaged file is set aside.

    alerts     the present alerts
    silences   those that have not ended
    history    changes of status, the oldest are deleted
    sent       by receiver and group: what it was last told, and when
    figures    when rules were last evaluated, and what else a restart has to know, by name
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from gpuyard.core.domain.values import Value
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus, Notice
from gpuyard.live.control_plane.alerts.silences import Silence
from gpuyard.live.control_plane.stores.database import (
    DatabaseLayout,
    StoreDamaged,
    as_store_errors,
    open_database,
    transaction,
)

_Kept = TypeVar("_Kept", bound=Value)
_encode = msgspec.json.Encoder().encode
_decode_alert = msgspec.json.Decoder(Alert).decode
_WHAT = "alerts"
_TABLES = """
    CREATE TABLE alerts (id TEXT PRIMARY KEY, alert BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE silences (id TEXT PRIMARY KEY, silence BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE history (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, tenant TEXT NOT NULL, status TEXT NOT NULL,
        alert BLOB NOT NULL
    );
    CREATE TABLE sent (receiver TEXT NOT NULL, grouped TEXT NOT NULL, sent BLOB NOT NULL,
        PRIMARY KEY (receiver, grouped)) WITHOUT ROWID;
    CREATE TABLE figures (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID
"""
_UPGRADES = ("CREATE TABLE figures (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID",)
_LAYOUT = DatabaseLayout(what=_WHAT, version=2, durable=False, exclusive=True, tables=_TABLES, upgrades=_UPGRADES)


class SentGroup(Value, frozen=True):
    """What a receiver was last told about a group."""

    at: float
    firing: tuple[Alert, ...] = ()
    """The alerts that it believes to fire."""


class HistoryEntry(Value, frozen=True):
    """A change of an alert's status."""

    number: int
    at: float
    status: AlertStatus
    alert: Alert


class AlertStore:
    """The file. Its methods may be called from one thread at a time."""

    def __init__(self, database: sqlite3.Connection, path: Path, note: str | None = None) -> None:
        self._database = database
        self._path = path
        self.note = note
        """A problem found when it was opened, as a message for the log."""

    @classmethod
    def open(cls, path: Path | None) -> Self:
        """Open or create the file; None: in memory. A damaged file is set aside and replaced by an empty one."""
        if path is None:
            database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            database.executescript(_TABLES)
            return cls(database, Path(":memory:"))
        try:
            return cls(open_database(path, _LAYOUT), path)
        except StoreDamaged as damage:
            aside = path.with_name(f"{path.name}.damaged")
            with as_store_errors(path, _WHAT):
                path.replace(aside)
                for tail in ("-wal", "-shm"):
                    path.with_name(path.name + tail).unlink(missing_ok=True)
            note = (
                f"The file of alerts was damaged and replaced by an empty one; the old one is {aside.name}. ({damage})"
            )
            return cls(open_database(path, _LAYOUT), path, note)

    def close(self) -> None:
        """Close the file."""
        with suppress(sqlite3.Error):
            self._database.close()

    def alerts(self) -> list[Alert]:
        """Return the alerts as they were last written; an entry that cannot be read is left out."""
        return self._rows("SELECT alert FROM alerts", Alert)

    def silences(self) -> list[Silence]:
        """Return all silences."""
        return self._rows("SELECT silence FROM silences", Silence)

    def sent(self) -> dict[tuple[str, str], SentGroup]:
        """Return what each receiver was told, by receiver and group."""
        found = {}
        with as_store_errors(self._path, _WHAT):
            for receiver, grouped, blob in self._database.execute("SELECT receiver, grouped, sent FROM sent"):
                with suppress(msgspec.MsgspecError):
                    found[receiver, grouped] = msgspec.json.decode(blob, type=SentGroup)
        return found

    def figures(self) -> dict[str, float]:
        """Return the figures as they were last written."""
        with as_store_errors(self._path, _WHAT):
            rows = self._database.execute("SELECT name, value FROM figures").fetchall()
        return {name: value for name, value in rows if isinstance(value, float)}

    def save(
        self,
        alerts: Mapping[str, Alert | None],
        history: Sequence[tuple[float, Notice]],
        figures: Mapping[str, float],
        keep: int,
    ) -> None:
        """Write alerts by id (None: delete it) and figures, and add to the history, which keeps `keep` entries."""
        with as_store_errors(self._path, _WHAT), transaction(self._database):
            self._database.executemany(
                "INSERT OR REPLACE INTO alerts VALUES (?, ?)",
                [(id_, _encode(alert)) for id_, alert in alerts.items() if alert is not None],
            )
            self._database.executemany(
                "DELETE FROM alerts WHERE id = ?", [(id_,) for id_, alert in alerts.items() if alert is None]
            )
            self._database.executemany("INSERT OR REPLACE INTO figures VALUES (?, ?)", list(figures.items()))
            self._database.executemany(
                "INSERT INTO history (at, tenant, status, alert) VALUES (?, ?, ?, ?)",
                [(at, tenant_of(one.alert), one.status, _encode(one.alert)) for at, one in history],
            )
            self._database.execute(
                "DELETE FROM history WHERE number <= (SELECT coalesce(max(number), 0) FROM history) - ?", (keep,)
            )

    def history(self, before: int | None, limit: int, hidden_except: str | None) -> list[HistoryEntry]:
        """Return entries, newest first, before a number; those of other tenants than `hidden_except` are left out.

        An entry that cannot be read, because it is damaged or of another version, is left out, too.
        """
        conditions, values = ["number < ?"], list[object]([(1 << 62) if before is None else before])
        if hidden_except is not None:
            conditions.append("tenant IN ('', ?)")
            values.append(hidden_except)
        query = (
            f"SELECT number, at, status, alert FROM history WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants
            "ORDER BY number DESC"
        )
        found: list[HistoryEntry] = []
        with as_store_errors(self._path, _WHAT), closing(self._database.execute(query, values)) as rows:
            for number, at, status, blob in rows:
                if len(found) == limit:
                    break
                with suppress(msgspec.MsgspecError, TypeError, ValueError):
                    found.append(HistoryEntry(number, float(at), AlertStatus(status), _decode_alert(blob)))
        return found

    def keep_silence(self, silence: Silence) -> None:
        """Write a silence."""
        with as_store_errors(self._path, _WHAT), transaction(self._database):
            self._database.execute("INSERT OR REPLACE INTO silences VALUES (?, ?)", (silence.id, _encode(silence)))

    def drop_silences(self, ids: Collection[str]) -> None:
        """Delete silences."""
        with as_store_errors(self._path, _WHAT), transaction(self._database):
            self._database.executemany("DELETE FROM silences WHERE id = ?", [(each,) for each in ids])

    def keep_sent(self, receiver: str, grouped: str, sent: SentGroup | None) -> None:
        """Write what a receiver was told about a group; None: there is nothing more to tell."""
        with as_store_errors(self._path, _WHAT), transaction(self._database):
            if sent is None:
                self._database.execute("DELETE FROM sent WHERE receiver = ? AND grouped = ?", (receiver, grouped))
            else:
                self._database.execute(
                    "INSERT OR REPLACE INTO sent VALUES (?, ?, ?)", (receiver, grouped, _encode(sent))
                )

    def _rows(self, query: str, type_: type[_Kept]) -> list[_Kept]:
        found: list[_Kept] = []
        with as_store_errors(self._path, _WHAT):
            for (blob,) in self._database.execute(query):
                with suppress(msgspec.MsgspecError):
                    found.append(msgspec.json.decode(blob, type=type_))
        return found


def tenant_of(alert: Alert) -> str:
    """Return the tenant that an alert is about; empty: the cluster."""
    return next((value for name, value in alert.labels if name == "tenant"), "")

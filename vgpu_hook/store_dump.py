"""The sidecar store as plain values, for `vgpu-hook record`. Reads only, whatever its version.

Unlike store.py it knows no table by its meaning, so that a store of an older or newer vgpu-hook is
recorded as it is. What it leaves out: the paths of volumes that a deletion is to remove.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import Any

from vgpu_hook import store_file
from vgpu_hook.database import store_error

LEFT_OUT = {"domain": {"volumes"}}
"""Columns, by table."""

HISTORY_MOST = 5000
"""Lines of the history that are recorded, the newest."""

Dump = dict[str, Any]
"""{"version": n, "tables": {name: {"columns": [...], "rows": [[...], ...]}}}"""


def dump(state: str) -> Dump | None:
    """Return what is in the store of the folder `state`; None if there is none.

    Raises StoreError if it can't be read.
    """
    path = os.path.join(state, store_file.FILE)
    if store_file.place(state, create=False) is None:
        return None
    try:
        with contextlib.closing(store_file.connect(path, 5)) as connection:
            connection.execute("BEGIN")  # all tables as of one moment
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = {name: _table(connection, name) for (name,) in sorted(names)}
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    return {"version": version, "tables": tables}


def _table(connection: sqlite3.Connection, name: str) -> dict[str, Any]:
    quoted = name.replace('"', '""')
    # The name comes from the store's own schema, and is quoted.
    order = f"rowid DESC LIMIT {HISTORY_MOST}" if name == "history" else "rowid"
    cursor = connection.execute(f'SELECT * FROM "{quoted}" ORDER BY {order}')  # noqa: S608
    columns = [column[0] for column in cursor.description]
    rows = cursor.fetchall()
    if name == "history":
        rows.reverse()
    kept = [n for n, column in enumerate(columns) if column not in LEFT_OUT.get(name, ())]
    return {
        "columns": [columns[n] for n in kept],
        "rows": [[_plain(row[n]) for n in kept] for row in rows],
    }


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value

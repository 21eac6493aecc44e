"""Leases in SQLite: which process works on which run. Sweeps can share a store, and a crash needs no repair.

A lease is acquired in one statement, so two sweeps never get the same run. It expires unless its holder renews it with
new progress, so a process that hangs loses it. Each lease of a run has a larger token than the one before, and every
operation with an older token is refused. The database does not record which runs are finished: only their files do.

Only for a disk of this machine: SQLite's locks do not hold on network file systems.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dspreg.errors import CantWrite, DspregError, IntegrityError
from dspreg.io.atomic_files import holds_file
from dspreg.runs.process_id import is_gone, this_process

LEASE_SECONDS = 600.0  # without progress, after which other sweeps take over a run; longer than any single step
WINDOW = 64  # runs considered in one statement, so that its time does not grow with the sweep
PATIENCE = 60.0  # seconds to wait for another process's statement
FORMAT = 1

# Versions of dspreg work side by side on one store: neither the table nor the name of its file changes.
TABLE = """
CREATE TABLE IF NOT EXISTS claims (
    run TEXT PRIMARY KEY,
    token INTEGER NOT NULL,   -- number of leases there have been
    holder TEXT,              -- NULL: released
    boot TEXT NOT NULL,       -- id of the machine's boot: a reboot restarts the clock and ends all holders
    expires REAL NOT NULL,    -- on the machine's monotonic clock since that boot
    progress INTEGER NOT NULL,  -- the holder's, when it last renewed
    step INTEGER NOT NULL     -- of its training then, for people
) WITHOUT ROWID
"""

ACQUIRE = """
INSERT INTO claims (run, token, holder, boot, expires, progress, step)
    SELECT wanted.value, 1, :holder, :boot, :expires, 0, 0 FROM json_each(:runs) AS wanted
    LEFT JOIN claims AS there ON there.run = wanted.value
    WHERE there.run IS NULL OR there.holder IS NULL OR there.boot != :boot OR there.expires <= :now
    ORDER BY wanted.key LIMIT 1
ON CONFLICT (run) DO UPDATE SET
    token = token + 1, holder = excluded.holder, boot = excluded.boot, expires = excluded.expires,
    progress = 0, step = 0
RETURNING run, token
"""

NEWEST = "run = :run AND token = :token AND holder = :holder"
COLUMNS = ("run", "token", "holder", "boot", "expires", "progress", "step")
BESIDE = ("", "-wal", "-shm", "-journal")  # names of SQLite's files, after that of the database
ADVICE = "It holds nothing but leases: stop all sweeps and remove it"
HELD_OF = (
    "SELECT run, holder, step, boot, expires FROM claims WHERE holder IS NOT NULL "
    "AND run IN (SELECT value FROM json_each(:runs)) ORDER BY run"
)
HELD = "SELECT run, holder, step, boot, expires FROM claims WHERE holder IS NOT NULL ORDER BY run"


class LeaseLost(DspregError):
    """Another process has taken over the run; nothing more may be written."""

    exit_code = 75


@dataclass(frozen=True)
class Lease:
    """The right to work on one run, for as long as its token is the newest."""

    run: str
    token: int
    holder: str


@dataclass(frozen=True)
class LeaseInfo:
    """A lease as other processes see it."""

    run: str
    holder: str
    step: int
    left: float  # seconds until it expires; negative: it has expired

    @property
    def process(self) -> str:
        """The holder's process, as named by `this_process`."""
        return self.holder.partition(" ")[2]

    @property
    def alive(self) -> bool:
        """Whether the holder still works on the run, as far as this machine can know."""
        return self.left > 0 and not is_gone(self.process)


class Leases:
    """The leases of one store.

    Args:
        path: The database; created if missing.
        duration: Seconds without renewal after which other sweeps may acquire a run.
        now: A monotonic clock that all processes of the machine share.
        boot: Id of the boot that the clock counts from.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        duration: float = LEASE_SECONDS,
        now: Callable[[], float] = time.monotonic,
        boot: str | None = None,
    ):
        self.path, self.duration, self.now = Path(path), duration, now
        self.boot = this_boot() if boot is None else boot
        self.holder = f"{os.urandom(4).hex()} {this_process()}"
        self._process, self._connection = os.getpid(), self._open()

    # For workers.

    def acquire(self, runs: Iterable[str]) -> Lease | None:
        """A lease of the first of `runs` that no process holds, or None."""
        left = iter(runs)
        while window := list(islice(left, WINDOW)):
            now = self.now()
            values = {"runs": json.dumps(window), "holder": self.holder, "boot": self.boot, "now": now}
            for run, token in self._do(ACQUIRE, values | {"expires": now + self.duration}):
                return Lease(run, token, self.holder)
        return None

    def renew(self, lease: Lease, progress: int, step: int = 0) -> None:
        """Extend a lease by `duration`, if there was progress since the last renewal.

        Args:
            lease: A lease of this process.
            progress: A counter that grows with the work done, such as steps or batches of an evaluation.
            step: Of the training, for `dspreg status`.

        Raises:
            LeaseLost: It was released, or another process has it.
        """
        values = {**vars(lease), "progress": progress, "step": step, "boot": self.boot}
        # without progress the lease is not extended; that is not an error, since the next renewal may have some
        renewed = self._do(
            "UPDATE claims SET expires = CASE WHEN progress < :progress THEN :expires ELSE expires END, boot = :boot, "
            f"progress = MAX(progress, :progress), step = :step WHERE {NEWEST} RETURNING run",
            values | {"expires": self.now() + self.duration},
        )
        if not renewed:
            raise self._lost(lease)

    def release(self, lease: Lease) -> None:
        """Release a lease; others may acquire it immediately. Does nothing if it was lost before."""
        self._do(f"UPDATE claims SET holder = NULL, expires = 0 WHERE {NEWEST} RETURNING run", vars(lease))

    def revoke(self, run: str) -> bool:
        """Revoke the lease of a run; returns whether there was one. The holder notices at its next renewal or write."""
        with self.revoking(run) as held:
            return held

    @contextmanager
    def revoking(self, run: str) -> Iterator[bool]:
        """Revoke the lease of a run at the end of the block. The holder can't write inside the block, and fails at its
        first write afterwards."""
        with self._alone() as connection:
            (held,) = connection.execute(
                "SELECT COUNT(*) FROM claims WHERE run = :run AND holder IS NOT NULL", {"run": run}
            ).fetchone()
            yield bool(held)
            connection.execute("UPDATE claims SET holder = NULL, expires = 0 WHERE run = :run", {"run": run})

    def expire_dead(self) -> int:
        """Expire the leases of dead processes of this machine, so that no sweep waits for them; returns how many."""
        ended = 0
        for run, token, holder in self._do("SELECT run, token, holder FROM claims WHERE holder IS NOT NULL", {}):
            if isinstance(holder, str) and is_gone(holder.partition(" ")[2]):
                values = {"run": run, "token": token, "holder": holder}
                ended += len(self._do(f"UPDATE claims SET expires = 0 WHERE {NEWEST} RETURNING run", values))
        return ended

    @contextmanager
    def guard(self, lease: Lease) -> Iterator[None]:
        """The fence of every write under a lease: no process can take over the run inside the block.

        Raises:
            LeaseLost: On entry, before anything is written.
        """
        with self._alone() as connection:
            if not connection.execute(f"SELECT 1 FROM claims WHERE {NEWEST}", vars(lease)).fetchone():
                raise self._lost(lease)
            yield

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """Transaction: no other process changes a lease, or writes under one, inside the block."""
        connection = self._ours()
        with self._refusals():
            connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        finally:
            connection.execute("COMMIT")

    # For readers.

    def list_all(self) -> list[LeaseInfo]:
        """All leases that were not released, including expired ones."""
        return _infos(self._do(HELD, {}), self.now(), self.boot, self.path)

    def list_held(self, runs: Iterable[str]) -> list[LeaseInfo]:
        """Those of these runs; however many others there are, they are not looked at."""
        return _infos(self._do(HELD_OF, {"runs": json.dumps(list(runs))}), self.now(), self.boot, self.path)

    def close(self) -> None:
        self._connection.close()

    # The database.

    def _open(self) -> sqlite3.Connection:
        _require_files(self.path)
        with self._refusals():
            connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            _require_ours(connection, self.path)
            _write_ahead(connection)
            # a power cut may lose the last leases, but it also ends their holders; the file stays intact
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(TABLE)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        return connection

    def _ours(self) -> sqlite3.Connection:
        if self._process != os.getpid():  # SQLite's connections do not survive a fork
            self._process, self._connection = os.getpid(), self._open()
        return self._connection

    def _do(self, statement: str, values: dict[str, Any]) -> list[Any]:
        with self._refusals(), closing(self._ours().execute(statement, values)) as rows:
            return rows.fetchall()

    def _lost(self, lease: Lease) -> LeaseLost:
        return LeaseLost(
            f"the run {lease.run} is no longer ours: its lease of {self.duration:g} s ended, or it was released"
        )

    def _refusals(self) -> AbstractContextManager[None]:
        return _refusals(self.path)


def list_leases(
    path: str | Path, *, now: Callable[[], float] = time.monotonic, boot: str | None = None
) -> list[LeaseInfo]:
    """As `Leases.list_all`, read-only: creates no file and needs no write permission.

    Args:
        path: The database, which need not exist.
        now: As for `Leases`.
        boot: As for `Leases`.
    """
    path = Path(path)
    for last in (False, False, True):
        _require_files(path)
        if not path.exists():
            return []
        try:
            with _refusals(path), closing(sqlite3.connect(_read_only(path), uri=True)) as connection:
                if not _require_ours(connection, path):
                    return []
                rows = connection.execute(HELD).fetchall()
            return _infos(rows, now(), this_boot() if boot is None else boot, path)
        except DspregError:  # the first sweep was opening it, or the last one closing it
            if last:
                raise
            time.sleep(0.1)
    raise AssertionError("the last try returns or raises")


def _read_only(path: Path) -> str:
    """Open read-only. Without a shared-memory file no process has the database open, and the file is complete."""
    shared = path.with_name(f"{path.name}-shm").exists()
    return f"{path.absolute().as_uri()}?{'mode=ro&readonly_shm=1' if shared else 'immutable=1'}"


def _require_files(path: Path) -> None:
    """Refuse what SQLite would follow out of the store, or share with a file outside of it."""
    for beside in BESIDE:
        each = path.with_name(path.name + beside)
        if holds_file(each) and each.stat().st_nlink > 1:
            raise IntegrityError(f"{each} has several names, and a change would be one of all of them. {ADVICE}")


def _require_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Refuse a database that holds anything but leases, such as views and triggers that do who knows what.

    Returns:
        Whether there is a table yet.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > FORMAT:
        raise IntegrityError(f"{path} is of the format {version}; this version of dspreg knows {FORMAT}")
    there = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
    if not there:
        return False
    columns = tuple(row[1] for row in connection.execute("PRAGMA table_info(claims)"))
    if there != [("table", "claims")] or columns != COLUMNS:
        raise IntegrityError(f"{path} holds something else than leases. {ADVICE}")
    return True


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Set the journal that lets others read meanwhile. SQLite does not wait here while another process makes the table,
    as it does everywhere else."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.02)


def _infos(rows: Iterable[tuple[str, str, int, str, float]], now: float, boot: str, path: Path) -> list[LeaseInfo]:
    found = []
    for run, holder, step, then, end in rows:
        texts = all(isinstance(text, str) for text in (run, holder, then))
        if not (texts and isinstance(step, int) and isinstance(end, int | float)):
            raise IntegrityError(f"{path} is damaged: a lease of {run!r} is not as it is written. {ADVICE}")
        found.append(LeaseInfo(run, holder, step, (end - now) if then == boot else -1.0))
    return found


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        advice = "is the folder writable, on a disk of this machine, and no sweep stopped (SIGSTOP)?"
        raise CantWrite(f"{path}: {error}; {advice}") from error
    except sqlite3.DatabaseError as error:
        raise IntegrityError(f"{path} is damaged: {error}. {ADVICE}") from error


def this_boot() -> str:
    """Names this start of the machine, where the system says it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""

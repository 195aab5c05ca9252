"""Answers of several workers in a PostgreSQL table (a deviation from BT, decision 0062).

Each worker holds an advisory lock on its own number while it is alive. A running call is recorded with the number of
its worker: as soon as that lock is free, the call counts as lost. No clock is involved.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from agent_host.errors import UsageError
from agent_host.ids import MACHINE
from agent_host.tool_service.answers import KEPT_S, Known, Slot
from agent_host.tool_service.tool import HttpRefusal, database_unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from psycopg import AsyncConnection

    from agent_host.tool_service.answers import IdempotencyScope

__all__ = ["AsyncConnectionPool", "PoolTimeout", "PostgresAnswers", "PostgresSlots"]

_LOG: Final = logging.getLogger("agent_host.tool_service")
logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # its warnings name host and user of the database
_LOCK_CLASS: Final = 0x41474854
"""Distinguishes our advisory locks from others in the database ("AGHT")."""
_POOL_TRIES_S: Final = 10.0
"""How long the pool retries a connection by itself, at growing intervals. The next request starts the retries again."""
CONNECT_S: Final = 10
SILENT_FOR_LONG: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Settings that end a dead connection within half a minute instead of the kernel's quarter of an hour, because all
calls of a worker wait for it."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS agent_host_invocations (
    tenant text NOT NULL, session text NOT NULL, tool text NOT NULL, key text NOT NULL,
    fingerprint text NOT NULL, worker integer NOT NULL, body bytea, at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, session, tool, key));
CREATE INDEX IF NOT EXISTS agent_host_invocations_at ON agent_host_invocations (at);
CREATE TABLE IF NOT EXISTS agent_host_epoch (one boolean PRIMARY KEY DEFAULT true CHECK (one), epoch text NOT NULL);
"""
_LIVE: Final = """EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %(class)s
    AND objid = {0}.worker AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"""
_WHERE: Final = "tenant = %(tenant)s AND session = %(session)s AND tool = %(tool)s AND key = %(key)s"
_CLAIM: Final = """INSERT INTO agent_host_invocations (tenant, session, tool, key, fingerprint, worker)
    VALUES (%(tenant)s, %(session)s, %(tool)s, %(key)s, %(fingerprint)s, %(worker)s) ON CONFLICT DO NOTHING"""
_FIND: Final = f"SELECT i.fingerprint, i.body, {_LIVE.format('i')} FROM agent_host_invocations i WHERE {_WHERE}"  # noqa: S608  constants
_TAKE_OVER: Final = (
    f"UPDATE agent_host_invocations i SET worker = %(worker)s, at = now() WHERE {_WHERE} AND body IS NULL"  # noqa: S608  constants
    f" AND NOT {_LIVE.format('i')}"
)
_ANSWER: Final = (
    "UPDATE agent_host_invocations SET body = %(body)s, at = now()"  # noqa: S608  constants
    f" FROM (SELECT set_config('synchronous_commit', 'off', true)) s WHERE {_WHERE} AND worker = %(worker)s"
)
_RELEASE: Final = f"DELETE FROM agent_host_invocations WHERE {_WHERE} AND worker = %(worker)s AND body IS NULL"  # noqa: S608  constants
_CLEAN: Final = (
    "DELETE FROM agent_host_invocations i WHERE at < now() - make_interval(secs => %(kept_s)s)"  # noqa: S608  constants
    f" AND (body IS NOT NULL OR NOT {_LIVE.format('i')})"
)


_CONNECTION_LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)
"""Errors of a lost connection."""


async def _connect(url: str) -> AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=CONNECT_S, **SILENT_FOR_LONG)


class PostgresAnswers:
    """See MemoryAnswers. `open` returns a connected instance, `opening` one that retries until it is connected."""

    def __init__(self, url: str, *, kept_s: float = KEPT_S, max_connections: int = 8) -> None:
        self.epoch = ""
        self._pool = AsyncConnectionPool(
            url, min_size=1, max_size=max_connections, open=False, timeout=5.0,
            reconnect_timeout=_POOL_TRIES_S, kwargs={"autocommit": True},
        )  # fmt: skip
        self._url = url
        self._kept_s = kept_s
        self._worker = 0
        self._lock_connection: AsyncConnection[Any] | None = None
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._cleaned_at = time.monotonic()
        self._trying: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str) -> PostgresAnswers:
        """Connect, and create missing tables. Raises UsageError, whose message contains no part of `url`."""
        answers = cls(url)
        try:
            await answers._connect()
        except psycopg.Error as error:
            await answers.aclose()
            raise UsageError(
                f"the database of service.answers cannot be used ({type(error).__name__}): check its url and its rights"
            ) from None
        return answers

    @classmethod
    async def opening(cls, url: str) -> PostgresAnswers:
        """Do as `open` does, but retry until the database can be used; `epoch` is empty until then."""
        answers = cls(url)
        answers._trying = asyncio.create_task(answers._connect_at_last())
        await asyncio.wait([answers._trying], timeout=2.0)
        return answers

    async def _connect_at_last(self) -> None:
        wait_s = 0.5
        while True:
            try:
                return await self._connect()
            except psycopg.Error as error:
                if wait_s < 1:
                    _LOG.error("the database of service.answers cannot be used (%s)", type(error).__name__)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, 5.0)

    async def _connect(self) -> None:
        connection = await self._live()
        async with connection.transaction():
            # Two workers that start at the same time must not create a table twice.
            await connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK_CLASS,))
            await connection.execute(_TABLES)
            await connection.execute(
                "INSERT INTO agent_host_epoch (epoch) VALUES (%s) ON CONFLICT DO NOTHING", (MACHINE.new_id("epoch"),)
            )
            row = await (await connection.execute("SELECT epoch FROM agent_host_epoch")).fetchone()
        await self._pool.open()
        self.epoch = str(row[0]) if row else ""

    async def claim(self, place: IdempotencyScope, fingerprint: str, *, repeatable: bool) -> Known:
        """See MemoryAnswers. Raises HttpRefusal if the database does not respond: nothing may run then."""
        while True:
            if await self._insert({**self._values(place), "fingerprint": fingerprint}):
                return Known("new")
            async with self._connection() as connection:
                values = self._values(place)
                row = await (await connection.execute(_FIND, values)).fetchone()
                if row is None:  # it was released or deleted between the two statements
                    continue
                if row[0] != fingerprint:
                    return Known("other_arguments")
                known = _state_of(row)
                taken = known.state == "lost" and repeatable
                if taken and (await connection.execute(_TAKE_OVER, values)).rowcount == 1:
                    return Known("new")
                return Known("running") if taken else known

    async def _insert(self, values: dict[str, Any]) -> bool:
        """Insert the key; True if it was new. It is claimed on the connection that holds this worker's lock, so a claim
        is made only while the lock is held."""
        for _ in range(2):
            try:
                connection = await self._live()
                return (await connection.execute(_CLAIM, {**values, "worker": self._worker})).rowcount == 1
            except _CONNECTION_LOST:
                # If the claim was committed nevertheless, it has the number of a worker that is gone: it is lost, and
                # nothing runs.
                if self._lock_connection is not None:
                    await self._lock_connection.close()
        raise database_unreachable()

    async def release(self, place: IdempotencyScope) -> None:
        """See MemoryAnswers."""
        async with self._connection() as connection:
            await connection.execute(_RELEASE, self._values(place))

    async def answer(self, place: IdempotencyScope, body: bytes) -> None:
        """See MemoryAnswers. The commit does not wait for the disk: if a database crash loses the answer, the call is
        lost. If the database does not accept the answer, all running calls of this worker become lost, so that none
        stays running forever."""
        try:
            async with self._connection() as connection:
                await connection.execute(_ANSWER, {**self._values(place), "body": body})
                await self._clean(connection)
        except HttpRefusal:
            if self._lock_connection is not None:
                await self._lock_connection.close()

    async def find(self, place: IdempotencyScope) -> Known | None:
        """See MemoryAnswers."""
        async with self._connection() as connection:
            row = await (await connection.execute(_FIND, self._values(place))).fetchone()
        return None if row is None else _state_of(row)

    async def wait(self, place: IdempotencyScope, timeout_s: float) -> Known | None:
        """See MemoryAnswers. Another worker may run the call, so the table is polled at growing intervals."""
        look_s, until = 0.02, time.monotonic() + timeout_s
        while True:
            known = await self.find(place)
            left_s = until - time.monotonic()
            if known is None or known.state != "running" or left_s <= 0:
                return known
            await asyncio.sleep(min(look_s, left_s))
            look_s = min(look_s * 2, 0.5)

    async def ready(self) -> bool:
        """See MemoryAnswers."""
        if not self.epoch:
            return False
        try:
            async with self._connection() as connection:
                await connection.execute("SELECT 1")
        except HttpRefusal:
            return False
        return True

    async def aclose(self) -> None:
        """See MemoryAnswers."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])
        if self._lock_connection is not None:
            await self._lock_connection.close()
        await self._pool.close()

    async def _live(self) -> AsyncConnection[Any]:
        """Return the connection that holds the lock of this worker's number, which no other worker has. A lost
        connection has lost the lock, and with it every running call; the next connection takes a new number. Callers
        that wait for an attempt to connect fail if it fails."""
        failures = self._failures
        async with self._connecting:
            if self._lock_connection is not None and not self._lock_connection.closed:
                return self._lock_connection
            if failures < self._failures:
                raise psycopg.OperationalError
            try:
                connection = await _connect(self._url)
            except psycopg.Error:
                self._failures += 1
                raise
            while True:
                number = secrets.randbelow(2**31 - 1) + 1
                cursor = await connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (_LOCK_CLASS, number))
                row = await cursor.fetchone()
                if row and row[0]:
                    break
            self._lock_connection, self._worker = connection, number
            return connection

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (*_CONNECTION_LOST, PoolTimeout):
            raise database_unreachable() from None

    async def _clean(self, connection: AsyncConnection[Any]) -> None:
        if time.monotonic() - self._cleaned_at > 60.0:
            self._cleaned_at = time.monotonic()
            await connection.execute(_CLEAN, {"kept_s": self._kept_s, "class": _LOCK_CLASS})

    def _values(self, place: IdempotencyScope) -> dict[str, Any]:
        key = dict(zip(("tenant", "session", "tool", "key"), place, strict=True))
        return {**key, "worker": self._worker, "class": _LOCK_CLASS}


def _state_of(row: tuple[Any, ...]) -> Known:
    _, body, live = row
    if body is not None:
        return Known("answered", bytes(body))
    return Known("running") if live else Known("lost")


# Slots of a tenant across all workers, as advisory locks of PostgreSQL (decision 0070).
#
# Each slot is a lock. A worker holds the locks of its running calls on one connection. A lock is released when its
# call, the worker or the connection ends; no clock is involved.

_SLOT_BITS: Final = 16
"""Bits of the 64-bit lock number that identify the slot; the others identify the tenant. A tenant has at most 10,000
slots."""
_TRY: Final = "SELECT %(number)s WHERE pg_try_advisory_lock(%(base)s::bigint + %(number)s)"
_TRY_ALL: Final = (
    "SELECT number FROM unnest(%(numbers)s::int[]) AS number"
    " WHERE pg_try_advisory_lock(%(base)s::bigint + number) LIMIT 1"
)
_GIVE: Final = "SELECT pg_advisory_unlock(%(base)s::bigint + %(number)s)"


class PostgresSlots:
    """See Slots. Connects at the first call."""

    shared = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: AsyncConnection[Any] | None = None
        self._holder = 0  # the number of the connection: slots of an earlier one are free already
        self._mine: dict[str, set[int]] = {}
        self._using = asyncio.Lock()

    async def take(self, tenant: str, most: int) -> Slot | None:
        """See Slots."""
        async with self._using:
            for _ in range(2):
                try:
                    return await self._take(await self._connect(), tenant, most)
                except BaseException as error:  # it is unknown if the server has granted a lock
                    await self._drop()
                    if not isinstance(error, _CONNECTION_LOST):
                        raise
        raise database_unreachable()

    async def give(self, slot: Slot) -> None:
        """See Slots."""
        async with self._using:
            if self._connection is None or slot.holder != self._holder:
                return
            try:
                await self._connection.execute(_GIVE, {"base": _base(slot.tenant), "number": slot.number})
                self._mine[slot.tenant].discard(slot.number)
            except BaseException as error:  # it is unknown if the server has released it
                await self._drop()
                if not isinstance(error, psycopg.Error):
                    raise

    async def aclose(self) -> None:
        """See Slots."""
        await self._drop()

    async def _take(self, connection: AsyncConnection[Any], tenant: str, most: int) -> Slot | None:
        """Take a free lock. A connection can take its own lock again, so locks that it already holds are not tried."""
        mine = self._mine.setdefault(tenant, set())
        free = [number for number in range(most) if number not in mine]
        if not free:
            return None
        first = secrets.randbelow(len(free))
        values: dict[str, Any] = {"base": _base(tenant), "number": free[first]}
        row = await (await connection.execute(_TRY, values)).fetchone()
        if row is None:
            values["numbers"] = free[first + 1 :] + free[:first]
            row = await (await connection.execute(_TRY_ALL, values)).fetchone()
        if row is None:
            return None
        mine.add(row[0])
        return Slot(tenant, row[0], time.monotonic(), self._holder)

    async def _connect(self) -> AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            self._mine.clear()
            self._holder += 1
            self._connection = await _connect(self._url)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _base(tenant: str) -> int:
    digest = hashlib.sha256(b"agent-host tool-service slots\0" + tenant.encode()).digest()
    return int.from_bytes(digest[: 8 - _SLOT_BITS // 8], signed=True) << _SLOT_BITS

"""Slots of a tenant over all workers, as advisory locks of PostgreSQL (decision 0070).

Each slot is a lock. A worker holds the locks of its running calls on one connection. A lock becomes free when its call
ends, or when the worker or the connection does; no clock is involved.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from agent_host.tool_service.admission import Slot
from agent_host.tool_service.postgres_answers import CONNECT_S, SILENT_FOR_LONG
from agent_host.tool_service.refusals import database_is_away

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_SLOT_BITS: Final = 16
"""Of a lock's 64; the others say whose it is. A tenant has 10,000 slots at most."""
_TRY: Final = "SELECT %(number)s WHERE pg_try_advisory_lock(%(base)s::bigint + %(number)s)"
_TRY_ALL: Final = (
    "SELECT number FROM unnest(%(numbers)s::int[]) AS number"
    " WHERE pg_try_advisory_lock(%(base)s::bigint + number) LIMIT 1"
)
_GIVE: Final = "SELECT pg_advisory_unlock(%(base)s::bigint + %(number)s)"


class PostgresSlots:
    """See Slots. Nothing is connected before the first call."""

    shared = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: AsyncConnection[Any] | None = None
        self._holder = 0  # the number of the connection: a slot of an earlier one is free already
        self._mine: dict[str, set[int]] = {}
        self._using = asyncio.Lock()

    async def take(self, tenant: str, most: int) -> Slot | None:
        """See Slots."""
        async with self._using:
            for again in (True, False):
                try:
                    return await self._take(await self._connected(), tenant, most)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    await self._drop()
                    if not again:
                        raise database_is_away() from None
                except BaseException:  # whether the server has given a lock is not known
                    await self._drop()
                    raise
        raise AssertionError("the second time returns or raises")

    async def give(self, slot: Slot) -> None:
        """See Slots."""
        async with self._using:
            if self._connection is None or slot.holder != self._holder:
                return
            try:
                await self._connection.execute(_GIVE, {"base": _base(slot.tenant), "number": slot.number})
                self._mine[slot.tenant].discard(slot.number)
            except psycopg.Error:
                await self._drop()
            except BaseException:  # cancelled: whether the server has taken it back is not known
                await self._drop()
                raise

    async def aclose(self) -> None:
        """See Slots."""
        await self._drop()

    async def _take(self, connection: AsyncConnection[Any], tenant: str, most: int) -> Slot | None:
        """A lock is taken as often as its own connection asks for it, so those that are held are not tried."""
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

    async def _connected(self) -> AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            self._mine.clear()
            self._holder += 1
            self._connection = await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, connect_timeout=CONNECT_S, **SILENT_FOR_LONG
            )
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _base(tenant: str) -> int:
    """The lock of a tenant's first slot."""
    digest = hashlib.sha256(b"agent-host tool-service slots\0" + tenant.encode()).digest()
    return int.from_bytes(digest[: 8 - _SLOT_BITS // 8], signed=True) << _SLOT_BITS

"""Overhead of the Backend Tool Service per tool call, with one worker and with two.

A query on SQLite is run by the tool itself, and by the service over HTTP on loopback: what a call takes beyond the tool
is the service's own. It is split by leaving parts out: a request that only answers, one that looks at token and grant,
a call without a key, and with one. Two workers keep answers in PostgreSQL, which is started for it where it is
installed; there the same calls are also sent by four clients at once, for what the service does in a second.

That PostgreSQL does not sync to disk: on a server that does, a claim of a key takes one sync of its disk more.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from agent_host.tool_service.tool import Caps
from agent_host.tool_service.tools import SqliteDatabase
from benchmarks.report import Row, milliseconds
from tests.support.tool_service import ACME, grant, invocation, postgres, postgres_is_there, process, tenants

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

QUERY = "SELECT ? AS n"
TOOL = "CloudDbQuery"
OWN_GOAL_MS = 1.5
CLIENTS = 4


class Effort(NamedTuple):
    """Number of measured calls, and of calls before them that are not measured."""

    calls: int
    before: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """It has none of its own."""
    del parser


def rows(chosen: argparse.Namespace) -> Iterator[Row | str]:
    """Yield the printed rows."""
    effort = Effort(150, 20) if chosen.quick else Effort(2000, 200)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        database = folder / "empty.db"
        database.touch()
        tool = tool_ms(str(database), effort)
        yield Row("the tool itself, a query on SQLite", tool, "ms")
        file = tenants({TOOL: {"connections": {"empty": {"url": f"sqlite://{database}"}}}})
        yield from one_worker(folder, file, tool, effort)
        if not postgres_is_there():
            yield "two workers need PostgreSQL, which is not installed"
            return
        url = stack.enter_context(postgres()).url
        yield from two_workers(folder, {**file, "service": {"answers": {"url": url}}}, tool, effort)


def tool_ms(path: str, effort: Effort) -> float:
    """The median of the tool without the service."""

    async def measure() -> list[float]:
        database, taken = SqliteDatabase(path), []
        for n in range(effort.before + effort.calls):
            began = time.perf_counter_ns()
            await database.query(QUERY, [n], Caps())
            taken.append((time.perf_counter_ns() - began) / 1e6)
        return taken[effort.before :]

    return statistics.median(asyncio.run(measure()))


def one_worker(folder: Path, file: Mapping[str, Any], tool: float, effort: Effort) -> Iterator[Row | str]:
    """Split the time of a call into its parts."""
    with process(folder, file) as service:
        client = Client(service.url)
        answer = client.median(lambda _: client.get("/healthz"), effort)
        granted = client.median(lambda n: client.get(f"/tools/{TOOL}/invocations/none{n}"), effort)
        plain = client.median(lambda n: client.call(n, None), effort)
        keyed = client.median(lambda n: client.call(n, f"k{n}"), effort)
        again = client.median(lambda n: client.call(n % 10, f"k{n % 10}"), effort)
        client.close()
        yield "one worker, answers in memory"
        yield Row("a request that only answers", answer, "ms")
        yield Row("with token and grant looked at", granted - answer, "ms")
        yield Row("a call without a key, beyond the tool", plain - tool, "ms", OWN_GOAL_MS)
        yield Row("a call with a key, beyond the tool", keyed - tool, "ms", OWN_GOAL_MS)
        yield Row("a key that comes again", again, "ms")
        yield Row("calls a second, four clients at once", per_second(service.url, "m", effort), "/s")


def two_workers(folder: Path, file: Mapping[str, Any], tool: float, effort: Effort) -> Iterator[Row | str]:
    """The same where answers are kept in a database."""
    with process(folder, file, "--workers", "2") as service:
        client = Client(service.url)
        plain = client.median(lambda n: client.call(n, None), effort)
        keyed = client.median(lambda n: client.call(n, f"k{n}"), effort)
        again = client.median(lambda n: client.call(n % 10, f"k{n % 10}"), effort)
        client.close()
        yield "two workers, answers in PostgreSQL"
        yield Row("a call without a key, two workers, beyond the tool", plain - tool, "ms", OWN_GOAL_MS)
        yield Row("a call with a key in the database, beyond the tool", keyed - tool, "ms", OWN_GOAL_MS)
        yield Row("of that, the database", keyed - plain, "ms")
        yield Row("a key that comes again, from the database", again, "ms")
        yield Row("calls a second, two workers", per_second(service.url, "p", effort), "/s")


def per_second(url: str, prefix: str, effort: Effort) -> float:
    """Calls with keys in a second, from several clients at once."""
    numbers = itertools.count()

    def work() -> None:
        client = Client(url)
        while (n := next(numbers)) < effort.calls:
            client.call(n, f"{prefix}{n}")
        client.close()

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]

    def all_of_them() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return effort.calls / (milliseconds(all_of_them) / 1000)


class Client:
    """One connection to the service, by the standard library: what a client itself costs stays small."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port)
        self._headers = {"authorization": f"Bearer {ACME}", "x-capability-grant": grant(TOOL)}

    def median(self, request: Callable[[int], None], effort: Effort) -> float:
        """Milliseconds of a request, the median."""
        taken = []
        for n in range(effort.before + effort.calls):
            began = time.perf_counter_ns()
            request(n)
            taken.append((time.perf_counter_ns() - began) / 1e6)
        return statistics.median(taken[effort.before :])

    def get(self, path: str) -> None:
        """A GET, whatever it answers."""
        self._connection.request("GET", path, headers=self._headers)
        self._connection.getresponse().read()

    def call(self, n: int, key: str | None) -> None:
        """A call that has to succeed."""
        arguments = {"connectionName": "empty", "query": QUERY, "parameters": [n]}
        headers = self._headers if key is None else {**self._headers, "idempotency-key": key}
        body = orjson.dumps(invocation(TOOL, arguments))
        self._connection.request("POST", f"/tools/{TOOL}/invoke", body=body, headers=headers)
        result = orjson.loads(self._connection.getresponse().read())
        if result["status"] != "succeeded":
            raise RuntimeError(f"a call failed: {result}")

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

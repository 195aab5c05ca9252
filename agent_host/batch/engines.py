"""The engines of a batch: processes of this machine, started as other clients' sessions are, or of a Ray cluster.

On a cluster each process is the child of a Ray task, which holds its standard input: a worker or a node that is lost
takes the process along, and its session stays resumable in the state directory. That directory, the batch's and the
workspaces are shared by all nodes; an id is taken up only when its lock can be had, so the engine first proves that a
lock of one node is one on another. Keys are those of each node: nothing but options is sent, and a task's name is the
id of the batch's task.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from agent_host.batch.attempts import MOST_OUTPUT, EngineFailed, ProcessEnd
from agent_host.display_text import one_line
from agent_host.errors import UsageError
from state.errors import SessionLocked, WriteFailed
from state.lock import SessionLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_host.clients.connection import SessionProcess, Starter

_LAST_WORDS: Final = 4096
_PROBED_S: Final = 60.0
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class LocalEngine:
    """An `Engine` of this machine; `starter` starts its processes, which end with their standard input."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    async def run(self, name: str, arguments: Sequence[str], *, directory: str) -> ProcessEnd:
        """See Engine."""
        try:
            process = await self._starter.start(arguments, environment=dict(os.environ), directory=directory)
        except OSError as error:
            raise EngineFailed(f"{name}: no process can be started: {error.strerror or error}") from error
        reading = asyncio.ensure_future(_output_of(process))
        try:
            output = await asyncio.shield(reading)
            return ProcessEnd(await process.wait(), output, process.last_words())
        except asyncio.CancelledError:
            process.writer.close()
            await asyncio.wait([reading])
            await process.wait()
            raise
        finally:
            process.writer.close()
            reading.cancel()

    async def aclose(self) -> None:
        """See Engine."""
        await self._starter.aclose()


async def _output_of(process: SessionProcess) -> bytes:
    """Read all that the process writes; more than a result can have ends the process."""
    output = bytearray()
    while piece := await process.reader.read(1 << 20):
        output += piece
        if len(output) > MOST_OUTPUT:
            process.kill()
            break
    return bytes(output)


class RayEngine:
    """An `Engine` on the cluster that RAY_ADDRESS names, else on one that is started here, whose dashboard is on
    127.0.0.1 only. Raises UsageError without Ray, and where the nodes do not share `shared` with its locks."""

    def __init__(self, *, jobs: int, shared: str) -> None:
        os.environ.update({name: os.environ.get(name, value) for name, value in _QUIET.items()})
        try:
            import ray
            from ray.exceptions import RayError
        except ImportError as error:
            raise UsageError("--engine ray needs Ray: install agent-host[ray]") from error
        self._ray: Any = ray
        self._failed: type[Exception] = RayError
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            own = {} if os.environ.get("RAY_ADDRESS") else {"_node_ip_address": "127.0.0.1"}
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
            try:
                ray.init(dashboard_host="127.0.0.1", **quiet, **own)
            except (OSError, ValueError, RuntimeError, RayError) as error:  # no cluster there, or none can be started
                raise UsageError(f"--engine ray: {one_line(str(error), 500)}") from error
        cores = float(ray.cluster_resources().get("CPU", 1.0))
        # Sessions wait for a model most of the time: the jobs that were asked for are to fit.
        self._run = ray.remote(num_cpus=min(1.0, cores / jobs), max_retries=0)(_run)
        with contextlib.ExitStack() as unready:
            unready.callback(self._close)
            self._prove(shared)
            unready.pop_all()

    async def run(self, name: str, arguments: Sequence[str], *, directory: str) -> ProcessEnd:
        """See Engine."""
        running = self._run.options(name=name).remote(list(arguments), directory)
        try:
            return ProcessEnd(*await asyncio.shield(asyncio.ensure_future(_result_of(running))))
        except asyncio.CancelledError:
            self._ray.cancel(running)
            with contextlib.suppress(self._failed, KeyboardInterrupt):  # which is how it ends
                await _result_of(running)
            raise
        except self._failed as error:
            raise EngineFailed(f"{name}: {type(error).__name__}: its worker or node was lost") from error

    async def aclose(self) -> None:
        """See Engine."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._is_ours:
            self._ray.shutdown()

    def _prove(self, shared: str) -> None:
        """Hold a lock here, and see that two nodes find it held."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        os.makedirs(shared, exist_ok=True)
        path = os.path.join(shared, ".ray-probe.lock")
        lock = SessionLock.acquire(path, "probe")
        try:
            alive = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
            probe = self._ray.remote(num_cpus=0, max_retries=0)(_probe)
            for node in alive[:2] if len(alive) < 3 else [alive[0], alive[-1]]:
                at = NodeAffinitySchedulingStrategy(node, soft=False)
                found = self._ray.get(probe.options(scheduling_strategy=at).remote(path), timeout=_PROBED_S)
                if found != "held":
                    why = "is not there on" if found == "missing" else "has locks that do not count on"
                    raise UsageError(f"--engine ray: {shared} {why} another node: all nodes have to share it")
        except self._failed as error:
            raise UsageError(f"--engine ray: a node does not answer: {type(error).__name__}") from error
        finally:
            lock.release(remove=True)


async def _result_of(reference: Any) -> tuple[int, bytes, str]:
    found: tuple[int, bytes, str] = await reference
    return found


def _probe(path: str) -> str:
    """Try the lock at `path` on this node; return held, free or missing."""
    if not os.path.exists(path):
        return "missing"
    try:
        SessionLock.acquire(path, "probe").release(remove=False)
    except (SessionLocked, WriteFailed):
        return "held"
    return "free"


def _run(arguments: list[str], directory: str) -> tuple[int, bytes, str]:
    """Run `agent-host` on the node of a task, to its end."""
    argv = [sys.executable, "-P", "-m", "agent_host", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=directory, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            # `communicate` would close the standard input at once, and the session ends with that.
            output, words = _read_both(process)
        except BaseException:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()  # until the session has finished its step
            raise
    return process.returncode, output, words


def _read_both(process: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    """Standard output, and the end of standard error; more than a result can have ends the process."""
    import selectors

    kept = {"output": bytearray(), "words": bytearray()}
    with selectors.DefaultSelector() as selector:
        for name, stream in (("output", process.stdout), ("words", process.stderr)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                kept[key.data] += data
                if key.data == "words":
                    del kept["words"][:-_LAST_WORDS]
                elif len(kept["output"]) > MOST_OUTPUT:
                    process.kill()
    process.wait()
    return bytes(kept["output"]), kept["words"].decode("utf-8", "replace")

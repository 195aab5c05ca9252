"""The engines of a batch: local processes, started as other clients' sessions are, or processes on a Ray cluster.

On a cluster each process is the child of a Ray task, which keeps its standard input open: if the worker or node is
lost, the process ends. API keys are each node's own: only options are sent, and a Ray task's name is the id of the
batch's task. A setting selects how a node gets the session and its workspace:

- `shared`: all nodes share the state directory and the batch's directory. The session of a lost process is resumed
  where it was. A session is resumed only if its lock is free, so the engine first verifies that a lock taken on one
  node is effective on another.
- `objects`: a node gets the session and its workspace through Ray's object store, and returns them when the process has
  ended (`workspaces.Parcel`). The session of a lost process continues from the state that the last completed process
  returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from agent_host.batch.scheduler import HELD, MOST_OUTPUT, EngineFailed, ProcessEnd
from agent_host.batch.workspaces import UNUSABLE, Depot, open_private
from agent_host.display_text import one_line
from agent_host.errors import UsageError
from agent_host.ids import MACHINE
from config.lean_typing import NamedTuple
from state import SessionLocked, StateError, WriteFailed, make_private_dir
from state.disk import SessionLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent_host.batch.workspaces import Parcel
    from agent_host.clients.supervisor import SessionProcess, Starter

_LAST_WORDS: Final = 4096
_CHUNK: Final = 16 * 1024**2
"""Bytes of a parcel per Ray object."""
_STOP_LOOKS_S: Final = 0.5
_UNPACKED_BADLY: Final = (*UNUSABLE, StateError)
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class LocalEngine(NamedTuple):
    """An `Engine` that runs local processes; `starter` starts them, and they end when their standard input is
    closed."""

    starter: Starter

    async def run(
        self, name: str, arguments: Sequence[str], *, directory: str, parcel: Parcel | None = None
    ) -> ProcessEnd:
        """See Engine; the parcel is not needed."""
        del parcel
        try:
            process = await self.starter.start(arguments, environment=dict(os.environ), directory=directory)
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
        await self.starter.aclose()


async def _output_of(process: SessionProcess) -> bytes:
    """Read the process's output; more than a result can have kills the process."""
    output = bytearray()
    while piece := await process.reader.read(1 << 20):
        output += piece
        if len(output) > MOST_OUTPUT:
            process.kill()
            break
    return bytes(output)


class RayEngine:
    """An `Engine` on the cluster that RAY_ADDRESS names, else on a cluster started here, whose dashboard listens only
    on 127.0.0.1. Nodes share the state directory of `depot` unless they get `parcels`. Raises UsageError if Ray is
    missing, if there is no cluster, or if the nodes must share the directory and its locks but do not. `batch_id` is
    the batch's id.
    """

    def __init__(self, *, jobs: int, depot: Depot, parcels: bool, batch_id: str) -> None:
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
            except (OSError, ValueError, RuntimeError, RayError) as error:  # no cluster, or none can be started
                raise UsageError(f"--engine ray: {one_line(str(error), 500)}") from error
        cores = float(ray.cluster_resources().get("CPU", 1.0))
        # Sessions mostly wait for a model, so each reserves only as much CPU as lets all jobs run at once.
        share = min(1.0, cores / jobs)
        self._run = ray.remote(num_cpus=share, max_retries=0)(_run)
        self._run_remotely = ray.remote(num_cpus=share, max_retries=0, num_returns="streaming")(_run_remotely)
        self._stop_remotely = ray.remote(num_cpus=0, max_retries=0)(_stop_remotely)
        self._depot = depot
        self._parcels = parcels
        self._marks = tuple(os.path.join(at, f".here-{batch_id}") for at in (depot.directory, depot.state_dir))
        self._mark = MACHINE.new_id("here")
        with contextlib.ExitStack() as unready:
            unready.callback(self._close)
            if parcels:
                for mark in self._marks:
                    make_private_dir(os.path.dirname(mark))
                    _write(mark, self._mark)
            else:
                self._prove(depot.state_dir)
            unready.pop_all()

    async def run(self, name: str, arguments: Sequence[str], *, directory: str, parcel: Parcel) -> ProcessEnd:
        """See Engine."""
        if self._parcels:
            return await self._send(name, list(arguments), directory, parcel)
        running = self._run.options(name=name).remote(list(arguments), directory)
        try:
            return ProcessEnd(*await asyncio.shield(asyncio.ensure_future(_result_of(running))))
        except asyncio.CancelledError:
            self._ray.cancel(running)
            with contextlib.suppress(self._failed, KeyboardInterrupt):  # raised when a task is cancelled
                await _result_of(running)
            raise
        except self._failed as error:
            raise EngineFailed(f"{name}: {type(error).__name__}: its worker or node was lost") from error

    async def _send(self, name: str, arguments: list[str], directory: str, parcel: Parcel) -> ProcessEnd:
        """Run a process on a node, which gets the parcel and returns it."""
        sent = _Sent()
        depot = self._depot
        job = _RemoteJob(arguments, directory, parcel, depot.directory, depot.state_dir, self._marks, self._mark)
        try:
            chunks = await asyncio.to_thread(self._put, parcel)
            self._depot.costs.set_risk(parcel.key, parcel.risk)
            answers = self._run_remotely.options(name=name).remote(job, chunks)
            del chunks
            receiving = asyncio.ensure_future(self._receive(answers, sent, parcel))
            try:
                await asyncio.shield(receiving)
            except asyncio.CancelledError:
                with contextlib.suppress(self._failed, KeyboardInterrupt, *_UNPACKED_BADLY):
                    if sent.node:
                        await self._stop_remotely.options(scheduling_strategy=self._at(sent.node)).remote(job.stop_file)
                    else:  # it is still queued
                        self._ray.cancel(answers)
                with contextlib.suppress(self._failed, KeyboardInterrupt, *_UNPACKED_BADLY):
                    await receiving
                if not sent.node:
                    self._depot.costs.set_risk(parcel.key, 0.0)
                raise
            if sent.end is None:
                raise EngineFailed(f"{name}: its worker or node was lost")
        except self._failed as error:
            cause = getattr(error, "cause", None)
            why = "its worker or node was lost" if cause is None else one_line(str(cause), 500)
            raise EngineFailed(f"{name}: {type(cause or error).__name__}: {why}") from error
        except _UNPACKED_BADLY as error:
            raise EngineFailed(one_line(f"{name}: {error}", 500)) from error
        return sent.end

    def _put(self, parcel: Parcel) -> list[Any]:
        packed = self._depot.pack(parcel, with_files=True)
        try:
            return [self._ray.put(chunk) for chunk in _chunks(packed)]
        finally:
            os.unlink(packed)

    async def _receive(self, answers: Any, sent: _Sent, parcel: Parcel) -> None:
        """Record the node's reports, and put the returned session and workspace in place."""
        received = self._depot.work(parcel.key, "received")
        has_parcel = False
        try:
            with open_private(received) as file:
                async for reference in answers:
                    answer = await reference
                    if isinstance(answer, str):
                        sent.node = answer
                    elif isinstance(answer, bytes):
                        await asyncio.to_thread(file.write, answer)
                        has_parcel = True
                    else:
                        sent.end = ProcessEnd(*answer)
            if has_parcel:
                await asyncio.to_thread(self._depot.take_back, parcel, received)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(received)
        if sent.end is not None:
            self._depot.costs.set_risk(parcel.key, 0.0)

    def _at(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    async def aclose(self) -> None:
        """See Engine."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for mark in self._marks:
            with contextlib.suppress(OSError):
                os.unlink(mark)
        if self._is_ours:
            self._ray.shutdown()

    def _prove(self, shared: str) -> None:
        """Take a lock here, and verify that up to two nodes find it locked."""
        os.makedirs(shared, exist_ok=True)
        path = os.path.join(shared, ".ray-probe.lock")
        lock = SessionLock.acquire(path, "probe")
        try:
            alive = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
            probe = self._ray.remote(num_cpus=0, max_retries=0)(_probe)
            for node in alive[:2] if len(alive) < 3 else [alive[0], alive[-1]]:
                found = self._ray.get(probe.options(scheduling_strategy=self._at(node)).remote(path), timeout=60.0)
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
    """Try to take the lock at `path` on this node; return "held", "free" or "missing"."""
    if not os.path.exists(path):
        return "missing"
    try:
        SessionLock.acquire(path, "probe").release(remove=False)
    except (SessionLocked, WriteFailed):
        return "held"
    return "free"


class _Sent:
    """A process on a node: the node's id once the Ray task has started, and the process's end."""

    node: str = ""
    end: ProcessEnd | None = None


class _RemoteJob(NamedTuple):
    """A process to run on a node, in the same `directory` there. If a node finds `mark` in the files `marks`, one in
    that directory and one in the state directory, it is this machine or shares its disk, and the process runs in
    place."""

    arguments: list[str]
    cwd: str
    parcel: Parcel
    directory: str
    state_dir: str
    marks: tuple[str, ...]
    mark: str

    @property
    def stop_file(self) -> str:
        """The file whose existence asks the process to stop."""
        return os.path.join(self.directory, "work", f"{self.parcel.key}.stop")


def _run_remotely(job: _RemoteJob, chunks: list[Any]) -> Iterator[Any]:
    """Run the process on a node: yield the node's id, the end of the process, and the returned parcel in chunks."""
    import ray

    depot, parcel = Depot(job.directory), job.parcel
    marked = [_has(path, job.mark) for path in job.marks]
    make_private_dir(os.path.dirname(job.stop_file))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(job.stop_file)
    yield ray.get_runtime_context().get_node_id()
    if all(marked):
        chunks.clear()
        yield _run(job.arguments, job.cwd, job.stop_file)
        return
    if any(marked):
        raise RuntimeError("the node shares only one of the batch's directory and the state directory")
    packed = depot.work(parcel.key, "received")
    lock = SessionLock.acquire(depot.work(parcel.key, "lock"), parcel.key)
    try:
        with open_private(packed) as file:
            file.writelines(ray.get(chunks.pop(0)) for _ in range(len(chunks)))
        try:
            depot.unpack(parcel, packed)
        except SessionLocked as error:  # the process of a lost worker's attempt is finishing its step
            yield HELD, b"", str(error)
            return
        try:
            arguments = [depot.state_dir if word == job.state_dir else word for word in job.arguments]
            yield _run(arguments, job.directory, job.stop_file)
            packed = depot.pack(parcel, with_files=False)
            yield from _chunks(packed)
        finally:
            with contextlib.suppress(OSError):
                depot.clear(parcel)
    finally:
        for left in {depot.work(parcel.key, "received"), packed, job.stop_file}:
            with contextlib.suppress(OSError):
                os.unlink(left)
        lock.release(remove=True)


def _has(path: str, text: str) -> bool:
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read() == text
    return False


def _stop_remotely(stop_file: str) -> None:
    _write(stop_file, "")


def _chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _run(arguments: list[str], directory: str, stop_file: str = "") -> tuple[int, bytes, str]:
    """Run `agent-host` on a task's node until it ends; once `stop_file` exists, its input is closed so that it ends."""
    argv = [sys.executable, "-P", "-m", "agent_host", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=directory, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            # `communicate` would close the standard input immediately, which ends the session.
            output, words = _read_both(process, stop_file)
        except BaseException:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()  # the session finishes its step
            raise
    return process.returncode, output, words


def _read_both(process: subprocess.Popen[bytes], stop_file: str) -> tuple[bytes, str]:
    """Return standard output and the end of standard error; more output than a result can have kills the process."""
    import selectors

    kept = {"output": bytearray(), "words": bytearray()}
    with selectors.DefaultSelector() as selector:
        for name, stream in (("output", process.stdout), ("words", process.stderr)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            ready = selector.select(_STOP_LOOKS_S if stop_file else None)
            if stop_file and os.path.exists(stop_file) and process.stdin is not None:
                process.stdin.close()
            for key, _ in ready:
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

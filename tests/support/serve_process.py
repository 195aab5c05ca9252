"""`agent-host serve` as a process, for its clients in `tests/support/rpc_client.py`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

from tests.support.header_framing import Headers
from tests.support.process import PATIENCE_S, Outcome, eventually
from tests.support.rpc_client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tests.support.process import Host


class Serve:
    """A `serve` process in a group of its own."""

    def __init__(
        self,
        host: Host,
        options: Iterable[str | os.PathLike[str]],
        *,
        piped: bool,
        env: Mapping[str, str] | None = None,
    ) -> None:
        arguments = ["serve", *(os.fspath(option) for option in options)]
        self._popen = host.launch("agent_host", arguments, piped=piped, env=env)
        self._stderr = bytearray()
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        self._clients: list[Client] = []

    def on_streams(self, *, headers: bool = False) -> Client:
        """The client on the standard streams; with `headers` it frames its messages as language servers do."""
        popen = self._popen
        assert popen.stdin is not None
        assert popen.stdout is not None
        inward, outward = popen.stdin, popen.stdout.fileno()

        def end() -> None:
            with contextlib.suppress(BrokenPipeError):
                inward.close()

        return self._with(lambda: os.read(outward, 65536), self.write, end, headers=headers)

    def write(self, data: bytes) -> None:
        """Write to standard input as it is."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(data)
        self._popen.stdin.flush()

    def on_socket(self, path: Path, *, headers: bool = False) -> Client:
        """One more client on the socket."""
        eventually(lambda: path.exists() or not self.alive, "the socket")
        assert self.alive, self._stderr.decode()
        wire = socket.socket(socket.AF_UNIX)
        eventually(lambda: wire.connect_ex(os.fspath(path)) == 0, "somebody who listens")

        def read() -> bytes:
            try:
                return wire.recv(65536)
            except OSError:
                return b""

        def end() -> None:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
            wire.close()

        client = self._with(read, wire.sendall, end, headers=headers)
        client.half_close = lambda: wire.shutdown(socket.SHUT_WR)
        return client

    @property
    def pid(self) -> int:
        """Its id."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to this process alone, as a supervisor does."""
        os.kill(self.pid, number)

    def finish(self, *, within_s: float = PATIENCE_S) -> Outcome:
        """Wait for the end; stdout carried protocol only, and stderr no traceback."""
        try:
            code = self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {within_s} s: {self._stderr.decode()}") from None
        self._reader.join(PATIENCE_S)
        for client in self._clients:
            client.until_over()
        outcome = Outcome(code, b"", self._stderr.decode(errors="replace"))
        assert "Traceback" not in outcome.stderr, outcome.stderr
        assert "never retrieved" not in outcome.stderr, outcome.stderr
        return outcome

    def ended_well(self, *, within_s: float = PATIENCE_S) -> None:
        """Wait for exit 0 with nothing on stderr, and no line cut off."""
        outcome = self.finish(within_s=within_s)
        assert not any(client.cut_off for client in self._clients)
        assert (outcome.code, outcome.stderr) == (0, ""), outcome

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.alive:
            self._popen.kill()
            self._popen.wait(PATIENCE_S)

    def close(self) -> None:
        """End it, and let go of its pipes."""
        self.kill()
        self._reader.join(PATIENCE_S)
        for client in self._clients:
            client.done()
            client.join()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _with(
        self, read: Callable[[], bytes], write: Callable[[bytes], None], end: Callable[[], None], *, headers: bool
    ) -> Client:
        if headers:
            wire = Headers(read, write)
            read, write = wire.read, wire.write
        client = Client(read, write, end)
        self._clients.append(client)
        return client

    def _read_stderr(self) -> None:
        assert self._popen.stderr is not None
        with self._popen.stderr as pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._stderr += chunk


class Servers:
    """Starts `serve` processes on one machine, and ends those that a failed test has left."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._started: list[Serve] = []

    def start(
        self, *options: str | os.PathLike[str], piped: bool = True, env: Mapping[str, str] | None = None
    ) -> Serve:
        """`agent-host serve options`."""
        serve = Serve(self.host, options, piped=piped, env=env)
        self._started.append(serve)
        return serve

    def client(
        self, gateway: str, *options: str | os.PathLike[str], policy: str | os.PathLike[str] = "full"
    ) -> tuple[Serve, Client]:
        """A process on standard streams, and its client."""
        serve = self.start("--gateway", gateway, "--policy", policy, *options)
        return serve, serve.on_streams()

    def session(
        self, gateway: str, *options: str | os.PathLike[str], policy: str | os.PathLike[str] = "full"
    ) -> tuple[Serve, Client]:
        """The same with a session."""
        serve, client = self.client(gateway, *options, policy=policy)
        client.create()
        return serve, client

    def close(self) -> None:
        """See the class."""
        for serve in self._started:
            serve.close()

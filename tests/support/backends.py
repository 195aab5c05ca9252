"""A host whose backend services are real ones on loopback: what its processes get, and a client of `serve`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from tests.support.process import Host, Outcome, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SERVICES_TOKEN = "services-token-0123456789"
GATEWAY_TOKEN = "gateway-token-9876543210"
KINDS = ("SESSION", "WORKSPACE", "APPROVAL", "AUDIT", "TELEMETRY")
NOWHERE = "http://127.0.0.1:9"


def services_at(url: str, *kinds: str, **more: str) -> dict[str, str]:
    """Variables that name `url` for the services of `kinds`, all five without; and both tokens."""
    urls = {f"{kind}_SERVICE_URL": url for kind in kinds or KINDS}
    return {**urls, "AGENT_HOST_SERVICES_TOKEN": SERVICES_TOKEN, "LLM_GATEWAY_AUTH_TOKEN": GATEWAY_TOKEN, **more}


def impatient(host: Host, **services: float) -> None:
    """Configure short waits for services, and what is given over them."""
    values = {"timeout_s": 5.0, "max_retries": 2, "retry_base_s": 0.01, "retry_max_s": 0.05, **services}
    host.configure()
    with (host.root / "user.toml").open("a") as file:
        file.write("[services]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))


def run(host: Host, gateway: str, env: Mapping[str, str], *options: str, prompt: str = "Do it.") -> Outcome:
    """`agent-host run` with a result object at the end."""
    return host.run("run", prompt, "--gateway", gateway, "--output", "json", *options, env=env)


def resume(host: Host, env: Mapping[str, str], *options: str) -> Outcome:
    """`agent-host resume` with a result object at the end."""
    return host.run("resume", "--output", "json", *options, env=env)


def only_session(folder: Path) -> str:
    """The id of the one session under a state directory."""
    (found,) = (folder / "sessions").iterdir()
    return found.name


def nothing_kept(host: Host) -> bool:
    """Whether no session left a trace on disk."""
    return not [path for path in host.state.rglob("*") if path.is_file()]


class Serving:
    """`agent-host serve` on standard streams, and its client."""

    def __init__(self, host: Host, env: Mapping[str, str], *options: str) -> None:
        self._popen = host.launch("agent_host", ["serve", *options], piped=True, env=env)
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._stderr = bytearray()
        self.events: list[dict[str, Any]] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_stderr)]
        for reader in self._readers:
            reader.start()

    @property
    def stderr(self) -> str:
        """What was said there."""
        return self._stderr.decode()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The response as it came."""
        number = next(self._numbers)
        line = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()
        eventually(lambda: number in self._answers or not self._readers[0].is_alive(), f"the answer to {method}")
        return self._answers[number]

    def result(self, method: str, **params: Any) -> dict[str, Any]:
        """The result, which there must be."""
        answer = self.ask(method, **params)
        assert "result" in answer, answer
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    def error(self, method: str, **params: Any) -> dict[str, Any]:
        """The error, which there must be."""
        answer = self.ask(method, **params)
        assert "error" in answer, answer
        error = answer["error"]
        assert isinstance(error, dict)
        return error

    def create(self) -> dict[str, Any]:
        """CreateSession, as a desktop app asks for it."""
        return self.result("CreateSession", **new_session())

    def event(self, kind: str, number: int = 1) -> dict[str, Any]:
        """Wait for the event of that type, or for a later one of several; its envelope."""
        eventually(lambda: len(self._of(kind)) >= number, f"{kind} number {number}: {self.events} {self.stderr}")
        return self._of(kind)[number - 1]

    def end(self, *, within_s: float = 20.0) -> int:
        """Wait for the end of the process; its exit code."""
        try:
            code = self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"serve goes on after {within_s} s: {self.stderr}") from None
        for reader in self._readers:
            reader.join(within_s)
        assert "Traceback" not in self.stderr, self.stderr
        return code

    def kill(self) -> None:
        """As a crash."""
        self._popen.kill()
        self._popen.wait(20)

    def hang_up(self) -> int:
        """Close standard input, and wait for the end; the exit code."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        return self.end()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self.kill()
        for reader in self._readers:
            reader.join(20)
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["eventType"] == kind]

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            message = json.loads(line)
            if message.get("method") == "SessionEvent":
                self.events.append(message["params"])
            else:
                self._answers[message["id"]] = message

    def _read_stderr(self) -> None:
        assert self._popen.stderr is not None
        while chunk := os.read(self._popen.stderr.fileno(), 65536):
            self._stderr += chunk


def new_session(**more: Any) -> dict[str, Any]:
    """The parameters of CreateSession."""
    return {
        "userId": "jo",
        "tenantId": "acme",
        "executionEnvironment": "desktop",
        "clientInfo": {"name": "test", "version": "1"},
        "supportedCapabilities": ["File.Read", "Shell.Exec"],
        **more,
    }

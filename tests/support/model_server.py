"""A provider of models over real HTTP on loopback: it lists models, keeps what it was asked with, and passes what is
posted on to a scripted gateway; or it sends everybody elsewhere."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.support.process import call, gateway, say, use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.process import Gateway

PROOF = use(call("look_up", word="ok"))
"""The turn that proves that a model calls tools."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, with the names of its headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None

    @property
    def key(self) -> dict[str, str]:
        """The headers that carry a key."""
        return {name: self.headers[name] for name in ("authorization", "x-api-key") if name in self.headers}


class ModelServer:
    """`models` is the list that it gives, None for none. `elsewhere` is the URL to which it sends everybody, with this
    `status`. `model` is the gateway behind it."""

    def __init__(
        self, models: Sequence[str] | None, model: Gateway | None, elsewhere: str, status: int, port: int
    ) -> None:
        self.asked: list[Asked] = []
        self.model = model
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                self.keep(None)
                if elsewhere:
                    self.send_elsewhere()
                elif models is None or not self.path.partition("?")[0].endswith("/models"):
                    self.answer(404, "application/json", b"{}")
                else:
                    rows = json.dumps({"object": "list", "data": [{"id": name} for name in models]})
                    self.answer(200, "application/json", rows.encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.keep(json.loads(body))
                if elsewhere:
                    self.send_elsewhere()
                    return
                if outer.model is None:
                    self.answer(404, "application/json", b"{}")
                    return
                headers = {"content-type": "application/json", "x-session-id": self.headers.get("x-session-id", "")}
                request = urllib.request.Request(outer.model.url + self.path, body, headers)
                try:
                    with urllib.request.urlopen(request) as reply:
                        self.answer(reply.status, reply.headers["content-type"], reply.read())
                except urllib.error.HTTPError as error:
                    self.answer(error.code, "application/json", error.read())

            def keep(self, body: Any) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append(Asked(self.command, self.path, headers, body))

            def send_elsewhere(self) -> None:
                self.send_response(status)
                self.send_header("location", elsewhere + self.path)
                self.send_header("content-length", "0")
                self.end_headers()

            def answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def posted(self) -> list[Asked]:
        """The requests to a model."""
        return [one for one in self.asked if one.method == "POST" and not one.path.startswith("/api/")]

    @property
    def listed(self) -> list[Asked]:
        """The requests for its models."""
        return [one for one in self.asked if one.path.partition("?")[0].endswith("/models") and one.method == "GET"]

    @property
    def keys(self) -> set[tuple[str, str]]:
        """Every header with a key that has arrived."""
        return {pair for one in self.asked for pair in one.key.items()}

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def model_server(
    *turns: dict[str, Any],
    models: Sequence[str] | None = None,
    elsewhere: str = "",
    status: int = 307,
    port: int = 0,
) -> Iterator[ModelServer]:
    """Serve `turns`, by default one of text. Raises OSError for a port that somebody has."""
    with gateway(*(turns or [say("Done.")])) as model:
        server = ModelServer(models, model, elsewhere, status, port)
        try:
            yield server
        finally:
            server.close()


@contextmanager
def redirecting(elsewhere: str, status: int) -> Iterator[ModelServer]:
    """A server that sends everybody to `elsewhere`."""
    server = ModelServer(None, None, elsewhere, status, 0)
    try:
        yield server
    finally:
        server.close()


def keyring(folder: Path, **secrets: str) -> dict[str, str]:
    """A keyring of these secrets in a folder, and what has a process use it."""
    package = folder / "site" / "keyring"
    package.mkdir(parents=True)
    (package / "errors.py").write_text("class KeyringError(Exception): ...\n")
    (package / "__init__.py").write_text(
        "import json, os\n"
        "from keyring.errors import KeyringError\n"
        "PATH = os.path.join(os.path.dirname(__file__), 'secrets.json')\n"
        "def _all():\n"
        "    with open(PATH) as file:\n"
        "        return json.load(file)\n"
        "def get_password(service, name):\n"
        "    found = _all()\n"
        "    if found is None:\n"
        "        raise KeyringError('it is locked')\n"
        "    return found.get(service + '/' + name)\n"
        "def set_password(service, name, secret):\n"
        "    found = _all()\n"
        "    if found is None:\n"
        "        raise KeyringError('it is locked')\n"
        "    with open(PATH, 'w') as file:\n"
        "        json.dump({**found, service + '/' + name: secret}, file)\n"
    )
    (package / "secrets.json").write_text(json.dumps({f"agent-host/{name}": value for name, value in secrets.items()}))
    return {"PYTHONPATH": str(package.parent)}

"""HashiCorp Vault's KV version 2 on loopback, in the shapes that its API documentation records."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOKEN = "hvs.CAESIJvaultvaultvault"


class Vault:
    """Secrets by path, each a list of versions; None is one that was deleted."""

    def __init__(self, secrets: Mapping[str, Sequence[dict[str, Any] | None]]) -> None:
        self.secrets = {path: list(versions) for path, versions in secrets.items()}
        self.asked: list[str] = []
        self.namespace = ""

    def answer(self, path: str, headers: Any) -> tuple[int, dict[str, Any]]:
        """Status and body of a GET."""
        parts = urlsplit(path)
        self.asked.append(path)
        if headers.get("X-Vault-Token") != TOKEN or headers.get("X-Vault-Namespace", "") != self.namespace:
            return 403, {"errors": ["permission denied"]}
        name = unquote(parts.path).removeprefix("/v1/secret/data/")
        versions = self.secrets.get(name, [])
        number = int(parse_qs(parts.query).get("version", ["0"])[0]) or len(versions)
        if not 1 <= number <= len(versions):
            return 404, {"errors": []}
        data = versions[number - 1]
        deleted = "" if data is not None else "2026-01-02T03:04:05.678Z"
        metadata = {
            "created_time": "2026-01-01T00:00:00.000000000Z", "custom_metadata": None, "deletion_time": deleted,
            "destroyed": False, "version": number,
        }  # fmt: skip
        body = {
            "request_id": "5c0c3f5c-1b5c-4e52-9f6c-0b6e7a2d3a55", "lease_id": "",
            "renewable": False, "lease_duration": 0,
            "data": {"data": data, "metadata": metadata}, "wrap_info": None, "warnings": None, "auth": None,
            "mount_type": "kv",
        }  # fmt: skip
        return (200 if data is not None else 404), body

    @contextmanager
    def in_thread(self) -> Iterator[str]:
        """Serve; the URL."""
        vault = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = vault.answer(self.path, self.headers)
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

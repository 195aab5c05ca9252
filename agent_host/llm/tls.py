"""The TLS context of the gateway's connection, made beside the start of a session."""

from __future__ import annotations

import ssl
import threading

from agent_host.errors import UsageError


class TlsContext:
    """The TLS context that the gateway's URL needs.

    Loading the trusted roots takes as long as the rest of the start, so it happens in a thread beside it. A plain http
    gateway gets a context that trusts nobody: it serves no TLS, and could not be led to by a redirect either.
    """

    def __init__(self, base_url: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None
        if base_url.lower().startswith("https:"):
            self._thread = threading.Thread(target=self._load_roots, name="tls-roots", daemon=True)
            self._thread.start()

    def get(self) -> ssl.SSLContext:
        """The context, once it is whole. Raises UsageError when the roots cannot be loaded."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise UsageError(f"the trusted certificates cannot be loaded: {self._error}") from self._error
        return self._context

    def _load_roots(self) -> None:
        try:
            self._context = ssl.create_default_context() if _has_system_roots() else _bundled_roots()
        except OSError as error:
            self._error = error


def _has_system_roots() -> bool:
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile or paths.capath)


def _bundled_roots() -> ssl.SSLContext:
    """The roots that come with httpx, for a machine without any of its own."""
    from agent_host.llm.lean_httpx import httpx

    return httpx.create_ssl_context()

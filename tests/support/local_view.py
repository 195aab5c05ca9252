"""`agent-host view` as a process, and a reader of its streams."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx

from tests.support.process import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Host

HEADER = "x-agent-host-token"


class LocalView:
    """A view that runs: `url` without the fragment, and its `token`."""

    def __init__(self, printed: str) -> None:
        self.printed = printed
        base, _, self.token = printed.partition("/#token=")
        self.url = base
        self.port = int(base.rpartition(":")[2])

    def get(self, path: str, **headers: str) -> httpx.Response:
        """One request, with the token unless another is given."""
        with httpx.Client(trust_env=False) as client:
            return client.get(self.url + path, headers={HEADER: self.token, **headers}, timeout=20)

    def post(self, value: Any, **headers: str) -> httpx.Response:
        """An answer."""
        sent = {HEADER: self.token, "content-type": "application/json", **headers}
        with httpx.Client(trust_env=False) as client:
            return client.post(self.url + "/api/answers", content=json.dumps(value), headers=sent, timeout=20)

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[Parts]:
        """What the page of this address would show, as it comes."""
        with (
            httpx.Client(trust_env=False, timeout=30) as client,
            client.stream("GET", self.url + path, headers={HEADER: self.token}) as reply,
        ):
            assert reply.status_code == 200, reply.read()
            parts = Parts()
            reader = threading.Thread(target=parts.read, args=(reply,), daemon=True)
            reader.start()
            eventually(lambda: parts.title, "the first parts")
            yield parts
        reader.join(5)


class Parts:
    """The page, put together from a stream; `at` is when the last change came."""

    def __init__(self) -> None:
        self.title = ""
        self.html: dict[str, str] = {}
        self.at = 0.0
        self.changes = 0

    def read(self, reply: httpx.Response) -> None:
        """Take lines until the stream ends."""
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
            for line in reply.iter_lines():
                change = json.loads(line)
                if change:
                    self.at = time.monotonic()
                    self.html |= change["parts"] | dict(change["steps"])
                    for name in change["gone"]:
                        self.html.pop(name, None)
                    self.title = change["title"]
                    self.changes += 1

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.html.values())


@contextlib.contextmanager
def viewing(host: Host, *options: str) -> Iterator[LocalView]:
    """A view of the state directory of `host`, ended by Ctrl-C."""
    process = host.start("view", *options)
    eventually(lambda: "\n" in process.printed() or not process.alive, "the URL")
    assert process.printed(), process.finish().stderr
    yield LocalView(process.printed().strip())
    process.interrupt(signal.SIGINT)
    outcome = process.finish(within_s=20)
    assert outcome.stderr == "", outcome.stderr

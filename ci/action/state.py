"""The state of a session as an artifact: packed by the job that ran it, restored by a later one that approves.

`state.py pack FOLDER` makes FOLDER/agent-host-state.tar of `state`, `commit` and `session.patch`, and prints its
SHA-256. `state.py restore FOLDER` gets that file from the artifact of the run AH_RUN, if the run is one of this
repository and this workflow, compares it with AH_SHA256 and unpacks it. Only the standard library; run with `-I`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import urlsplit

ARTIFACT = "agent-host-state"
FILE = "agent-host-state.tar"
PARTS = ("state", "commit", "session.patch")
MAX_BYTES = 2 * 1024**3
MAX_ANSWER_BYTES = 16 * 1024**2
TIMEOUT_S = 120


class Refused(Exception):
    """The state cannot be taken."""


def pack(folder: Path) -> str:
    """Pack the state and return its SHA-256 in hex."""
    path = folder / FILE
    with tarfile.open(path, "w") as tar:
        for part in PARTS:
            tar.add(folder / part, part, filter=_is_plain)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isfile() or member.isdir() else None


def restore(folder: Path) -> None:
    """Get the state, compare it and unpack it. Raises Refused."""
    run, wanted = os.environ.get("AH_RUN", ""), os.environ.get("AH_SHA256", "").lower()
    if not re.fullmatch(r"[1-9][0-9]{0,18}", run):
        raise Refused("resume-run: give the id of the run that has the state")
    if not re.fullmatch(r"[0-9a-f]{64}", wanted):
        raise Refused("resume-sha256: give the output state-sha256 of the job that has the state")
    api = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/actions"
    _check_run(_ask(f"{api}/runs/{run}"))
    listed = _ask(f"{api}/runs/{run}/artifacts?per_page=100&name={ARTIFACT}")
    found = [one for one in listed.get("artifacts", []) if one.get("name") == ARTIFACT and not one.get("expired")]
    if not found:
        raise Refused(f"run {run} has no artifact {ARTIFACT}, or it has expired")
    data = b""
    for one in sorted(found, key=lambda artifact: int(artifact["id"]), reverse=True):  # one for each attempt
        data = _file_in(_download(f"{api}/artifacts/{int(one['id'])}/zip"))
        if hashlib.sha256(data).hexdigest() == wanted:
            _unpack(data, folder)
            return
    raise Refused(f"the state of run {run} has the SHA-256 {hashlib.sha256(data).hexdigest()}, not the given one")


def _check_run(run: dict[str, Any]) -> None:
    """A fork's run is one of its own version of the workflow, which may call anything a state."""
    here = os.environ["GITHUB_REPOSITORY"]
    for field in ("repository", "head_repository"):
        name = (run.get(field) or {}).get("full_name")
        if name != here:
            raise Refused(f"the run belongs to {name}, not to this repository")
    workflow = os.environ["GITHUB_WORKFLOW_REF"].partition("@")[0].removeprefix(f"{here}/")
    if str(run.get("path", "")).partition("@")[0] != workflow:
        raise Refused(f"the run is one of {run.get('path')}, not of this workflow")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The token is for the API alone, so redirects are followed without it."""


def _open(url: str, *, token: str | None) -> Any:
    if urlsplit(url).scheme != "https" and urlsplit(url).hostname != "127.0.0.1":
        raise Refused(f"the API gave an address without TLS: {urlsplit(url).hostname}")
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.github+json"})  # noqa: S310  see above
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    return urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S)


def _ask(url: str) -> dict[str, Any]:
    with _open(url, token=os.environ.get("AH_TOKEN", "")) as answer:
        value = json.loads(answer.read(MAX_ANSWER_BYTES))
    if not isinstance(value, dict):
        raise Refused(f"{urlsplit(url).path} did not answer with an object")
    return value


def _download(url: str) -> bytes:
    try:
        answer = _open(url, token=os.environ.get("AH_TOKEN", ""))
    except urllib.error.HTTPError as error:
        place = error.headers.get("Location")
        if error.code not in (301, 302, 303, 307, 308) or place is None:
            raise
        answer = _open(place, token=None)
    with answer:
        data: bytes = answer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Refused("the artifact is larger than 2 GiB")
    return data


def _file_in(archive: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        if opened.namelist() != [FILE] or opened.getinfo(FILE).file_size > MAX_BYTES:
            raise Refused(f"the artifact has other files than {FILE}")
        return opened.read(FILE)


def _unpack(data: bytes, folder: Path) -> None:
    """Only files and directories below the parts, as `pack` makes them."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or path.parts[0] not in PARTS or _is_plain(member) is None:
                raise Refused(f"the state has an entry that it cannot have: {member.name}")
            target = folder / path
            if member.isdir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            content = tar.extractfile(member)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(b"" if content is None else content.read())


def _end(text: str) -> NoReturn:
    line = "".join(char if char.isprintable() else "?" for char in text).replace("%", "%25")
    print(f"::error title=agent-host::{line}")
    sys.exit(2)


def main() -> None:
    """Do what the command line says."""
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "pack":
        print(pack(folder))
        return
    try:
        restore(folder)
    except Refused as error:
        _end(str(error))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, tarfile.TarError) as error:
        _end(f"the state could not be taken: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

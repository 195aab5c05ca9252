"""Variables of commands that are held: caches that they may write, and the host's proxy."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tool_runtime.files.writer import PRIVATE_DIRECTORY, open_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_SETTINGS_BYTES: Final = 1024 * 1024
_CACHES: Final[Mapping[str, str]] = {
    "XDG_CACHE_HOME": "",
    "PIP_CACHE_DIR": "pip",
    "UV_CACHE_DIR": "uv",
    "npm_config_cache": "npm",
    "YARN_CACHE_FOLDER": "yarn",
    "CARGO_HOME": "cargo",
    "GOCACHE": "go-build",
    "GOMODCACHE": "go-mod",
}

_CARGO_OFFLINE: Final = "cargo-offline"


def caches_in(directory: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that put the caches of package managers below `directory`, which every command of a session shares.
    What go has downloaded for the user is still used from where it is."""
    found = {name: os.path.join(directory, place) if place else directory for name, place in _CACHES.items()}
    home = environ.get("HOME", "")
    modules = environ.get("GOMODCACHE") or os.path.join(environ.get("GOPATH") or os.path.join(home, "go"), "pkg", "mod")
    downloads = os.path.join(modules, "cache", "download")
    if os.path.isdir(downloads):
        usual = environ.get("GOPROXY") or "https://proxy.golang.org,direct"
        found["GOPROXY"] = f"file://{downloads},{usual}"
    return found


def cargo_settings(directory: str, environ: Mapping[str, str]) -> None:
    """Have cargo find the user's own settings in its new places: mirrors and build options. A file that names a token
    stays where it is. In the place for commands without a network it also finds what it has downloaded for the user,
    to be read. No link is followed that an earlier command has left in `directory`. Raises OSError."""
    home = environ.get("CARGO_HOME") or os.path.join(environ.get("HOME", ""), ".cargo")
    settings = dict(_settings_in(home))
    downloads = [name for name in ("registry", "git") if os.path.isdir(os.path.join(home, name))]
    for place, links in ((_CACHES["CARGO_HOME"], []), (_CARGO_OFFLINE, downloads)):
        if settings or links:
            found = {one: os.path.realpath(os.path.join(home, one)) for one in links}
            _fill(os.path.join(directory, place), settings, found)


def _settings_in(home: str) -> Iterator[tuple[str, bytes]]:
    for name in ("config.toml", "config"):
        source = os.path.join(home, name)
        if os.path.isfile(source):
            with open(source, "rb") as file:
                settings = file.read(_MAX_SETTINGS_BYTES + 1)
            if len(settings) <= _MAX_SETTINGS_BYTES and b"token" not in settings:
                yield name, settings


def _fill(place: str, files: Mapping[str, bytes], links: Mapping[str, str]) -> None:
    """Make the directory `place` with these files and links, as far as they are not there."""
    with open_directory(place, create=PRIVATE_DIRECTORY) as directory:
        for name, data in files.items():
            if directory.status(name) is None:
                directory.put(name, data, 0o600, durable=False)
        for name, target in links.items():
            if directory.status(name) is None:
                directory.put_link(name, target)


def session_variables(directory: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Of every held command of a session whose caches are below `directory`; None for no caches. As root tar would give
    the files that it makes to others, which no command can."""
    found: dict[str, str] = {}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        found["TAR_OPTIONS"] = " ".join(filter(None, (environ.get("TAR_OPTIONS"), "--no-same-owner")))
    if directory is not None:
        with suppress(OSError):  # cargo works without them
            cargo_settings(directory, environ)
        found |= caches_in(directory, environ)
    return found


def offline_variables(directory: str | None) -> dict[str, str]:
    """Of a command that reaches no host, over those of the session. Package managers do not try again: npm would for a
    minute and more. cargo reads what it has downloaded for the user, unless a command of the session has downloaded
    something itself."""
    found = dict.fromkeys(("npm_config_fetch_retries", "PIP_RETRIES", "CARGO_NET_RETRY", "UV_HTTP_RETRIES"), "0")
    if directory is not None and not os.path.isdir(os.path.join(directory, _CACHES["CARGO_HOME"], "registry")):
        found["CARGO_HOME"] = os.path.join(directory, _CARGO_OFFLINE)
    return found


def proxy_variables(port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables by which programs ask the host's proxy, which listens at `port` of the loopback."""
    url = f"http://127.0.0.1:{port}"
    local = "localhost,127.0.0.1,::1"
    java = (
        f"-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port} "
        "-Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    )
    found = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), url)
    return {
        **found,
        "NO_PROXY": local,
        "no_proxy": local,
        "NODE_USE_ENV_PROXY": "1",
        "npm_config_proxy": url,
        "npm_config_https_proxy": url,
        "JAVA_TOOL_OPTIONS": " ".join(filter(None, (environ.get("JAVA_TOOL_OPTIONS"), java))),
    }


# Where agents of the user listen, which keep keys: a command may use them where that is granted by name.

_OF_GPG = ("S.gpg-agent", "S.gpg-agent.extra", "S.gpg-agent.browser", "S.keyboxd")
_DIGITS: Final = "ybndrfg8ejkmcpqxot1uwisza345h769"
_DIGIT_BITS, _NAME_BYTES, _NAME_DIGITS = 5, 15, 24


def agent_sockets(environ: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The real paths of the sockets of each agent, `ssh` and `gpg`, as far as they are there."""
    usual = os.path.join(environ.get("HOME", "/"), ".gnupg")
    home = environ.get("GNUPGHOME") or usual
    folders = [home]
    if hasattr(os, "getuid"):
        run = f"/run/user/{os.getuid()}/gnupg"
        folders.append(run if home == usual else os.path.join(run, _folder_of(home)))
    gpg = [os.path.join(folder, name) for folder in folders for name in _OF_GPG]
    ssh = [environ.get("SSH_AUTH_SOCK", ""), *(os.path.join(folder, "S.gpg-agent.ssh") for folder in folders)]
    return {
        name: frozenset(map(os.path.realpath, filter(os.path.exists, all_)))
        for name, all_ in (("ssh", ssh), ("gpg", gpg))
    }


def _folder_of(home: str) -> str:
    """The directory in which GnuPG has the sockets of a home that is not the usual one: `d.` and a part of its hash."""
    digest = hashlib.sha1(os.fsencode(home), usedforsecurity=False).digest()[:_NAME_BYTES]
    number = int.from_bytes(digest, "big")
    digits = (number >> _DIGIT_BITS * place & len(_DIGITS) - 1 for place in reversed(range(_NAME_DIGITS)))
    return "d." + "".join(_DIGITS[digit] for digit in digits)

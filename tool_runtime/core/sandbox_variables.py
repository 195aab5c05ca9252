"""Variables of commands that are held: caches that they may write, and the host's proxy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Have cargo find the user's own settings in the new place: mirrors and build options. A file that names a token
    stays where it is. Raises OSError."""
    home = environ.get("CARGO_HOME") or os.path.join(environ.get("HOME", ""), ".cargo")
    target = os.path.join(directory, _CACHES["CARGO_HOME"])
    for name in ("config.toml", "config"):
        source = os.path.join(home, name)
        if not os.path.isfile(source) or os.path.exists(os.path.join(target, name)):
            continue
        with open(source, "rb") as file:
            settings = file.read(_MAX_SETTINGS_BYTES + 1)
        if len(settings) > _MAX_SETTINGS_BYTES or b"token" in settings:
            continue
        os.makedirs(target, mode=0o700, exist_ok=True)
        with open(os.path.join(target, name), "wb") as written:
            written.write(settings)


def own_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for programs that, as root, would give the files that they make to others. A command cannot: it has
    none of root's rights over owners."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return {}
    return {"TAR_OPTIONS": " ".join(filter(None, (environ.get("TAR_OPTIONS"), "--no-same-owner")))}


def without_network() -> dict[str, str]:
    """Variables for package managers where no host can be reached: npm would try again for a minute and more."""
    return dict.fromkeys(("npm_config_fetch_retries", "PIP_RETRIES", "CARGO_NET_RETRY", "UV_HTTP_RETRIES"), "0")


def through_proxy(port: int, environ: Mapping[str, str]) -> dict[str, str]:
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

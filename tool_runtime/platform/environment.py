"""Which variables a child process may see: all but secrets (interface, "Secrets never reach …") and those by which a
shell would read a line in another way than policy has."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRET_NAME: Final = re.compile(
    r"""
      (^|_)(TOKEN|SECRET|PASSPHRASE|CREDENTIALS?|COOKIE|JWT)S?($|_(KEY|ID|VALUE|BASE|BASE64|B64|JSON)$)
    | PASSWORD | PASSWD | APIKEY | ACCESSKEY
    | (^|_)(API|ACCESS|PRIVATE|SECRET|SIGNING|ENCRYPTION|MASTER|AUTH)_?KEY
    | (^|_)PASS$ | (^|_)PAT$ | (^|_)AUTH$ | (TOKEN|SECRET)$ | (^|_)OTLP_([A-Z]+_)?HEADERS$
    """,
    re.VERBOSE,
)

_STEERS_SHELLS: Final = re.compile(
    r"(BASH_)?ENV|BASHOPTS|SHELLOPTS|BASH_COMPAT|BASH_LOADABLES_PATH|CDPATH|GLOBIGNORE|EXECIGNORE|ZDOTDIR|BASH_FUNC_.*|SSH2?_CLIENT",
    re.DOTALL,
)
"""Files that a shell reads first, functions that it takes over, options, where `cd` and patterns look; and what makes
bash take itself for the child of a remote login, and read ~/.bashrc."""


@lru_cache(maxsize=1024)
def looks_secret(name: str) -> bool:
    """Whether a variable of this name is taken for a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def child_environment(
    environ: Mapping[str, str], *, secret: frozenset[str], passthrough: frozenset[str]
) -> dict[str, str]:
    """`environ` without what is `secret` or looks it, and without what steers a shell. `secret` wins over
    `passthrough`; names compare in upper case."""
    secret = frozenset(name.upper() for name in secret)
    passthrough = frozenset(name.upper() for name in passthrough)
    return {
        name: value
        for name, value in environ.items()
        if name.upper() not in secret
        and (name.upper() in passthrough or not looks_secret(name))
        and _STEERS_SHELLS.fullmatch(name) is None
    }

"""Modes and options of a session, as an editor shows them: policy, model and sandbox of `SetMode`.

The lists are suggestions. `serve` decides whether a change holds: the policy that is chosen counts beside that of the
launch, and the stricter decision wins; the sandbox goes no lower than the launch; the model has to be one that the
launch allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent_host.acp.peer import AcpError
from agent_host.rpc.messages import INVALID_PARAMS
from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POLICY: Final = "policy"
_ABOUT: Final = {
    "read-only": "Read files; change nothing and run nothing",
    "workspace": "Change files of the workspace; ask before commands",
    "ci": "Change the workspace and run commands without questions",
    "full": "Everything is allowed",
}
_TITLES: Final = {POLICY: ("Policy", "mode"), "model": ("Model", "model"), "sandbox": ("Sandbox", "_sandbox")}


class Choices(NamedTuple):
    """The values that each option can have, and those of the launch: by `policy`, `model` and `sandbox`."""

    known: Mapping[str, Sequence[str]]
    launch: Mapping[str, str]


class ChosenOptions:
    """The options of one session as they are now."""

    def __init__(self, choices: Choices, started: Mapping[str, Any]) -> None:
        """`started` is what the session says of its launch (`session_started`)."""
        self._known = choices.known
        self._launch = self._fields(choices.launch, started)
        self._now = dict(self._launch)

    def take(self, said: Mapping[str, Any]) -> None:
        """Take the result of SetMode."""
        self._now = self._fields(self._now, said)

    def take_mode(self, mode: Mapping[str, Any]) -> bool:
        """Take the options that are not as at the launch; True if that changes anything."""
        before, self._now = self._now, self._fields(self._launch, mode)
        return self._now != before

    @staticmethod
    def _fields(now: Mapping[str, str], said: Mapping[str, Any]) -> dict[str, str]:
        return {**now, **{name: value for name in now if isinstance(value := said.get(name), str)}}

    def check(self, name: str, value: str) -> None:
        """Raise AcpError for an option or a value that is not offered."""
        if name not in self._now:
            raise AcpError(INVALID_PARAMS, f"configId: there is no option {name[:100]!r}: {', '.join(self._now)}")
        if value not in self._values(name):
            raise AcpError(INVALID_PARAMS, f"{name}: {value[:100]!r} is not offered: {', '.join(self._values(name))}")

    @property
    def mode(self) -> str:
        """The mode, which is the policy."""
        return self._now[POLICY]

    @property
    def modes(self) -> dict[str, Any]:
        """The `modes` of a session."""
        return {"currentModeId": self.mode, "availableModes": [_named("id", one) for one in self._values(POLICY)]}

    @property
    def config_options(self) -> list[dict[str, Any]]:
        """The `configOptions` of a session."""
        return [
            {
                "id": name,
                "name": title,
                "category": category,
                "type": "select",
                "currentValue": self._now[name],
                "options": [_named("value", one) for one in self._values(name)],
            }
            for name, (title, category) in _TITLES.items()
            if name in self._now
        ]

    def _values(self, name: str) -> list[str]:
        """The values of an option, with the present one."""
        return list(dict.fromkeys((*self._known.get(name, ()), self._now[name])))


def _named(key: str, value: str) -> dict[str, str]:
    about = {"description": _ABOUT[value]} if value in _ABOUT else {}
    return {key: value, "name": value, **about}

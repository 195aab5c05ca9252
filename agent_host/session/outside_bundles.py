"""Bundles from outside: of the Session Service or in a file, and what the configuration adds to one (AH 3.2).

With this module comes all that reads and validates them; a session under a built-in does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_host.errors import PolicyBundleInvalid, PolicyExpired, UsageError
from config.policies import BUILT_IN, place_groups, template_as_written
from policy.bundle import configured
from policy.bundle.file_bundle import BuiltIns, parse_file_bundle
from policy.bundle.file_forms import program_problem
from policy.bundle.problems import BundleProblems
from policy.bundle.validate import check_usable, parse_bundle
from policy.names import ANY_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from policy.bundle.model import CommandPolicy, PolicyBundle
    from policy.bundle.placeholders import Places

_GRANTED = "of the session service"


class FileSource:
    """A bundle file: its `name` and content. `models` and `more_models` are those that the configuration names (see
    `BuiltIns`), `steering` the files that steer this program for its user, which no tool may change."""

    def __init__(
        self,
        name: str,
        raw: bytes,
        *,
        models: tuple[str, ...],
        more_models: tuple[str, ...] = (),
        steering: tuple[str, ...],
    ) -> None:
        self._name = name
        self._raw = raw
        self._models = models
        self._more_models = more_models
        self._steering = steering

    def read(self, places: Places, now: datetime, *, held: bool = False) -> PolicyBundle:
        """The bundle; `held`: a sandbox holds commands. Raises BundleProblems."""
        groups = place_groups()
        groups["steering"] = [*groups["steering"], *self._steering]
        built_ins = BuiltIns(BUILT_IN, template_as_written, self._models, self._more_models)
        places = places._replace(groups=groups)
        return parse_file_bundle(self._raw, places=places, built_ins=built_ins, now=now, held=held)

    def parsed(self, places: Places, now: datetime, *, held: bool = False) -> PolicyBundle:
        """The bundle, whosever session it is for and until when. Raises PolicyBundleInvalid."""
        return _parsed(lambda: self.read(places, now, held=held), self._name)

    def usable(self, places: Places, now: datetime, *, session_id: str, held: bool = False) -> PolicyBundle:
        """The bundle, where it is for this session or for any. Raises PolicyBundleInvalid, PolicyExpired."""
        return _usable(self.parsed(places, now, held=held), self._name, session_id, now)


def granted_bundle(raw: bytes, now: datetime, *, session_id: str, held: bool = False) -> PolicyBundle:
    """The bundle that the Session Service granted, as JSON; `held`: a sandbox holds commands. Raises
    PolicyBundleInvalid, PolicyExpired."""
    bundle = _usable(_parsed(lambda: parse_bundle(raw), _GRANTED), _GRANTED, session_id, now)
    if bundle.session_id == ANY_SESSION:  # only a user can say that
        raise PolicyBundleInvalid(
            f"policy {_GRANTED}: sessionId: only a bundle in a file is for any session, this one is for {session_id}"
        )
    return bundle.known(bundle, held=held)


def refuse_odd_programs(names: Sequence[str]) -> None:
    """Raises UsageError for a program of the configuration that is none."""
    for place, name in enumerate(names):
        problem = program_problem(name)
        if problem is not None:
            raise UsageError(f"configuration: policy.allowed_commands[{place}]: {problem[0]} ({problem[1]})")


def command_policies(tables: Sequence[Mapping[str, object]]) -> tuple[CommandPolicy, ...]:
    """The rules for commands that the configuration adds. Raises UsageError with every problem of the entries."""
    try:
        return configured.command_policies([dict(table) for table in tables], "policy.command_policies")
    except BundleProblems as error:
        raise UsageError(f"configuration: {error}") from error


def _parsed(read: Callable[[], PolicyBundle], source: str) -> PolicyBundle:
    try:
        return read()
    except BundleProblems as error:
        raise PolicyBundleInvalid(f"policy {source}: {error}") from error


def _usable(bundle: PolicyBundle, source: str, session_id: str, now: datetime) -> PolicyBundle:
    if bundle.expires_at <= now:
        raise PolicyExpired(f"policy {source} expired at {bundle.expires_at.isoformat()}; get a new one")
    problems = [str(problem) for problem in check_usable(bundle, session_id=session_id, now=now)]
    if problems:
        raise PolicyBundleInvalid(f"policy {source}: " + "; ".join(problems))
    return bundle

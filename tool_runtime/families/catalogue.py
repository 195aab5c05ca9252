"""The families of tools, by the names that `--toolset` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tool_runtime.families.desktop.family import SLIM_SPECS, SPECS
from tool_runtime.families.desktop.files import READ_OUTPUT
from tool_runtime.families.uploads import UPLOAD_ARTIFACT

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent_host.contracts import ToolSpec

DESKTOP: Final = "desktop"
NATIVE: Final = "native"
SKILLS: Final = "skills"
SLIM: Final = "slim"
"""Six of the desktop tools in short definitions; nothing beside the desktop family itself."""
RESERVED: Final = "cp__"
"""The beginning of the names of the native family. A tool of an embedding program may have such a name where the user's
configuration says so (`native.allow_shadow`), and then takes the place of that of the family."""
FAMILIES: Final = (DESKTOP, NATIVE, SKILLS, SLIM)
"""All of them. A further family adds its name here, its records to `specs_of`, and its rows to `LocalToolRouter`."""


def specs_of(families: Collection[str]) -> tuple[ToolSpec, ...]:
    """The tools of these families. What reads stored outputs belongs to every one, and what uploads to all but the slim
    one. Raises KeyError for a name that is no family's."""
    unknown = set(families).difference(FAMILIES)
    if unknown:
        raise KeyError(min(unknown))
    others: tuple[ToolSpec, ...] = ()
    if NATIVE in families:
        from tool_runtime.families.native import SPECS as OF_NATIVE  # costs nothing where it is not chosen

        others = OF_NATIVE
    if SKILLS in families:
        from tool_runtime.families.skills import SPECS as OF_SKILLS

        others = (*others, *OF_SKILLS)
    return (*others, *desktop_specs(families), *((UPLOAD_ARTIFACT,) if has_uploads(families) else ()))


def desktop_specs(families: Collection[str]) -> tuple[ToolSpec, ...]:
    """The tools of these families that the desktop one has as well."""
    if DESKTOP in families:
        return SPECS
    return SLIM_SPECS if SLIM in families else (READ_OUTPUT,)


def has_uploads(families: Collection[str]) -> bool:
    """True if UploadArtifact is offered beside the tools of these families."""
    return SLIM not in families or DESKTOP in families

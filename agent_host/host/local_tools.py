"""The tools that this program brings along, without a session: nothing is started for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent_host.contracts import Subject, ToolSpec
from agent_host.judging.environment import Registry
from policy.names import CapabilityName
from tool_runtime.families.catalogue import FAMILIES, SPECS, specs_of
from tool_runtime.families.desktop.files import UPLOAD_ARTIFACT, upload_problem
from tool_runtime.families.usable_arguments import usable_arguments
from tool_runtime.tool import judge_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any


_ANYTHING: Final = {"type": "object"}
BUILT_IN = Registry((*SPECS, UPLOAD_ARTIFACT))
"""Those of a session that chooses no family."""
CAPABILITIES = tuple(sorted(BUILT_IN.capabilities | {CapabilityName.LLM_CALL.value, CapabilityName.TOOL_INVOKE.value}))
"""All that this host can make use of in a bundle."""


def built_in(families: Collection[str] = FAMILIES) -> Registry:
    """The tools of these families. Raises KeyError for a family that there is not."""
    return Registry(specs_of(families))


class AlsoElsewhere(Registry):
    """Tools, and beside them every `server/tool` that nothing is known of: judged by its name."""

    def get(self, name: str) -> ToolSpec | None:
        """See Registry."""
        known = super().get(name)
        if known is not None or not re.fullmatch(r"[^/\s]+/\S+", name):
            return known
        return ToolSpec(
            name, "", _ANYTHING, capability="Mcp.Invoke", subject=Subject("name"), effect="other", category="requests"
        )


def argument_problem(spec: ToolSpec | None, arguments: Mapping[str, Any]) -> str | None:
    """Why the tool refuses the arguments that are there, in the host's words; None when it does not, or is not known.
    What is left out is no problem: a case need only say what it is judged by."""
    if spec is None:
        return None
    wrong = judge_of({**spec.schema_to_check, "required": []}, foreign=spec.foreign_schema)(arguments)
    return upload_problem(arguments) if wrong is None and spec is UPLOAD_ARTIFACT else wrong


def usable(spec: ToolSpec | None, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the loop gives them to policy; see `ToolRouter.usable_arguments`."""
    if spec is None:
        return arguments
    return usable_arguments(spec, arguments, judge_of(spec.schema_to_check, foreign=spec.foreign_schema))

"""zsh, as far as it reads a line like bash: the tree is bash's, so what zsh takes for something else is not decided.

Single quotes mean the same in both and hide everything in them. What is left may have expansions of plain variables,
command substitutions, plain patterns and tests; subscripts, modifiers, flags, glob qualifiers, `=name`, brace forms and
here-documents may be code to zsh and are not looked into.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.shell.findings import Findings

_SINGLE = re.compile(r"""(\\.|"(?:\\.|[^"\\$`]|\$(?!\())*"|"[\s\S]*)|'[^']*'""", re.DOTALL)
"""What is kept, or a single-quoted text. Behind double quotes with a substitution in them everything is kept."""
_SAME = re.compile(
    r"\$[A-Za-z_][A-Za-z0-9_]*(?![A-Za-z0-9_\[:])"  # a variable, without subscript or modifier
    r"|\$[?](?![\[:])"
    r"|\$\((?!\()"  # a command substitution
    r"|(?<![^\s;&|(])\[(?=\s)|(?<=\s)\](?![^\s;&|)])"  # test
    r"|(?<![^\s;&|(])~(?=/)"
    r"|(?<=[A-Za-z0-9_-])=(?!=)"  # an assignment, an option's value
    r"|(?<![^\s;&|(])!=?(?=\s)"
    r"|[*?](?![*?(])"
    r"|\)"
)
_OWN = re.compile(r"[({}*?\[\]^#~!$`=]")


def note_zsh_differences(text: str, found: Findings) -> None:
    """Notes what zsh may read in another way than bash does."""
    # Read from the left, quotes are what they seem up to a comment, a here-document or the like, which stays in sight.
    bare = _SINGLE.sub(lambda match: match[1] or ".", text)
    if _OWN.search(_SAME.sub(" ", bare)) or "<<" in bare:
        found.doubt("a character that zsh reads differently")

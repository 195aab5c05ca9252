"""The shipped detectors (AH 8.7): what secrets look like, and where they stand.

Patterns are RE2's, over bytes. Each has the literals that any of its matches holds, so that most text
is known to be clean before an expression is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.detectors.known_tokens import KNOWN_TOKENS
from policy.detectors.telling_places import TELLING_PLACES

if TYPE_CHECKING:
    from policy.detectors.detector import Detector

DETECTORS: tuple[Detector, ...] = (*KNOWN_TOKENS, *TELLING_PLACES)
"""In the order in which they are asked; what one takes out, the next does not see."""

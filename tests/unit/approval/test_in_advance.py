"""What is approved before anybody is asked (SK 3.2, 4.2)."""

from __future__ import annotations

from agent_host.approval import ApprovalRequest
from agent_host.approval.gate import InAdvance, UnattendedGate
from tests.support.rows import each_row

ASKED = ApprovalRequest("a", "s", "t", "p", "write_file", "File.Write", {}, "", "", "file-write", "high", ())


@each_row(
    ("names", "everything", "wide", "by_name"),
    [
        ((), False, False, False),
        (("other",), False, False, False),
        (("file-write",), False, True, False),
        (("File.Write",), False, True, False),
        ((), True, True, False),
        (("file-write", "File.Write"), True, True, False),
        (("write_file",), False, True, True),
        (("write_file",), True, True, True),
    ],
)
async def test_what_covers_a_call(names: tuple[str, ...], everything: bool, wide: bool, by_name: bool) -> None:
    """That of a guarded tool only its own name."""
    in_advance = InAdvance(frozenset(names), everything)
    gate = UnattendedGate(frozenset(names), approve_all=everything)
    for request, covered in ((ASKED, wide), (ASKED._replace(by_name=True), by_name)):
        said = in_advance.answer(request)
        assert (said is not None) == covered
        answer = await gate.ask(request)
        assert (answer.approved, answer.unattended) == (covered, not covered)


async def test_the_denial_says_what_would_have_approved_it() -> None:
    answer = await UnattendedGate(frozenset(), approve_all=True).ask(ASKED._replace(by_name=True))
    assert "only --approve write_file gives it in advance" in answer.reason

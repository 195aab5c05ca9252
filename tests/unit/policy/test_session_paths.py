"""Which paths are in the temporary directory of a session, by spelling alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.rules.protected_paths import session_place
from tests.support.rows import each_row

if TYPE_CHECKING:
    from policy.facts import OsFamily

OWN = "/tmp/agent-host-s1-0a1b2c3d"


@each_row(
    ("os", "path", "allowed", "expected"),
    [
        ("posix", "/tmp/agent-host-s2-00000000/a/b", ["/tmp"], "/tmp/agent-host-s2-00000000"),
        ("posix", "/tmp/agent-host-s2-00000000", ["/tmp"], "/tmp/agent-host-s2-00000000"),
        ("posix", "/tmp/agent-host-demo.x/a", ["/tmp"], "/tmp/agent-host-demo.x"),
        ("posix", "/tmp/agent-host-demo.x/a", ["/tmp/agent-host-demo.x"], None),
        ("posix", "/tmp/agent-host-demo.x/a/b", ["/tmp/agent-host-demo.x/a", "/tmp"], None),
        ("posix", "/tmp/agent-host-demo.x/b", ["/tmp/agent-host-demo.x/a", "/tmp"], "/tmp/agent-host-demo.x"),
        ("posix", "/tmp/AGENT-HOST-s2/a", ["/tmp"], "/tmp/AGENT-HOST-s2"),
        ("posix", "/tmp/agent\u200b-host-s2/a", ["/tmp"], "/tmp/agent\u200b-host-s2"),
        ("posix", "/private/tmp/agent-host-s2/a", ["/private/tmp"], "/private/tmp/agent-host-s2"),
        ("posix", "/var/tmp/agent-host-s2/a", ["/var"], "/var/tmp/agent-host-s2"),
        ("posix", "/tmp/a/agent-host-s2/a", ["/tmp"], None),
        ("posix", "/tmp/agent-hosts/a", ["/tmp"], None),
        ("posix", "/w/agent-host-s2-00000000/a", ["/w"], None),
        ("posix", "/w/agent-host-s2-00000000/a", ["/w", "/w/agent-host-s1-0a1b2c3d"], "/w/agent-host-s2-00000000"),
        ("posix", "/w/agent-host-s2/a", ["/w", "/w/agent-host-main"], None),
        ("posix", f"{OWN}/a", ["/tmp", OWN], None),
        ("posix", f"{OWN}/agent-host-in-00000000/a", ["/tmp", f"{OWN}/agent-host-in-00000000"], None),
        ("posix", f"{OWN}/a", ["/tmp", f"{OWN}/agent-host-in-00000000"], OWN),
        ("posix", "/tmp", ["/tmp"], None),
        ("windows", "C:\\t\\agent-host-s2-00000000\\a", ["C:\\t", "c:/t/agent-host-s1-00000000"],
         "C:\\t\\agent-host-s2-00000000"),
        ("windows", "C:\\t\\agent-host-s1-00000000\\a", ["C:\\t", "c:/t/agent-host-s1-00000000"], None),
        ("windows", "C:\\Windows\\Temp\\Agent-Host-x", ["C:\\", "src"], "C:\\Windows\\Temp\\Agent-Host-x"),
    ],
)  # fmt: skip
def test_temporary_directories_of_sessions(os: OsFamily, path: str, allowed: list[str], expected: str | None) -> None:
    assert session_place(path, allowed, os) == expected

"""What is remembered of gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from agent_host.ids import MACHINE
from state import WriteFailed
from state.keys import FILE, GatewayDialects

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 86_400


def test_what_was_found_is_known_for_a_week(tmp_path: Path) -> None:
    moment = 1_000_000.0
    kept = GatewayDialects(str(tmp_path), now=lambda: moment)
    assert kept.find("http://a") is None
    kept.keep("http://a", "openai")
    kept.keep("http://b", "anthropic")
    assert (kept.find("http://a"), kept.find("http://b"), kept.find("http://c")) == ("openai", "anthropic", None)
    moment += 7 * DAY_S - 1
    assert GatewayDialects(str(tmp_path), now=lambda: moment).find("http://a") == "openai"
    moment += 2
    assert kept.find("http://a") is None
    moment -= 8 * DAY_S  # a clock that was set back
    assert kept.find("http://a") is None
    kept.keep("http://a", "responses")
    assert kept.find("http://a") == "responses"


def test_no_url_is_in_the_file_and_it_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    GatewayDialects(str(folder), MACHINE.time).keep("http://secret.example/token", "openai")
    file = folder / FILE
    assert b"example" not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    kept = GatewayDialects(str(tmp_path), MACHINE.time)
    kept.keep("http://first", "openai")
    kept.keep("http://second", "openai")
    known = orjson.loads((tmp_path / FILE).read_bytes())["gateways"]
    (entry, *_) = known.values()
    known |= {str(number): entry for number in range(254)}
    (tmp_path / FILE).write_bytes(orjson.dumps({"gateways": known}))
    kept.keep("http://first", "openai")  # found again
    assert kept.find("http://second") == "openai"
    kept.keep("http://new", "openai")
    assert [kept.find(f"http://{name}") for name in ("first", "second", "new")] == ["openai", None, "openai"]
    assert len(orjson.loads((tmp_path / FILE).read_bytes())["gateways"]) == 256


@pytest.mark.parametrize(
    "content",
    [
        b"", b"nonsense", b"[]", b'{"gateways": []}', b'{"gateways": {"KEY": 5}}',
        b'{"gateways": {"KEY": {"dialect": 5}}}', b'{"gateways": {"KEY": {"dialect": "openai", "at": "now"}}}',
        b'{"gateways": {"KEY": {"dialect": 5, "at": 1}}}',
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_not_known_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    kept = GatewayDialects(str(tmp_path), now=lambda: 2.0)
    kept.keep("http://a", "openai")
    (key,) = orjson.loads((tmp_path / FILE).read_bytes())["gateways"]
    (tmp_path / FILE).write_bytes(content.replace(b"KEY", key.encode()))
    assert kept.find("http://a") is None
    kept.keep("http://a", "openai")
    assert kept.find("http://a") == "openai"


def test_a_folder_that_is_none_is_an_error_with_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteFailed):
        GatewayDialects(str(tmp_path / "file"), MACHINE.time).keep("http://a", "openai")

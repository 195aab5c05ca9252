"""The tenants file: where values come from, and problems that tell a path and no value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.errors import UsageError
from agent_host.tool_service.server import all_tools
from agent_host.tool_service.tenants import Handles, read_configuration
from agent_host.tool_service.tool import TenantLimits, ToolFault

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.tool_service.tenants import Configuration

SECRET = "hunter2-hunter2-hunter2"


def read(tmp_path: Path, file: Any, **environ: str) -> Configuration:
    path = tmp_path / "tenants.json"
    path.write_bytes(file if isinstance(file, bytes) else orjson.dumps(file))
    return read_configuration(str(path), environ, all_tools())


def test_values_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    url = {"env": "SHOP_URL"}
    file = {
        "tenants": {
            "acme": {
                "token": {"file": "token"},
                "tools": {"CloudDbQuery": {"connections": {"shop": {"url": url}}}},
                "limits": {"maxConcurrent": 3},
            }
        }
    }
    acme = read(tmp_path, file, SHOP_URL="sqlite:///x.db").tenants["acme"]
    assert acme.token == SECRET
    assert acme.tools["CloudDbQuery"]["connections"]["shop"]["url"] == "sqlite:///x.db"
    assert acme.limits == TenantLimits(max_concurrent=3)


def test_toml_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(
        f'\ufeff[tenants.acme]\ntoken = {{ env = "T" }}\n[tenants.acme.tools.VaultRead]\naddress = "https://v"\n'
        f'token = "{SECRET}"\nnames = ["a#b"]\n[service.answers]\nurl = "postgresql://db"\n'
    )
    found = read_configuration(str(path), {"T": SECRET + "-t"}, all_tools())
    assert found.tenants["acme"].tools["VaultRead"]["names"] == ["a#b"]
    assert found.answers_url == "postgresql://db"


def tenant(**more: Any) -> dict[str, Any]:
    return {"tenants": {"acme": {"token": SECRET, "tools": {}, **more}}}


WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": (f'{{"token": "{SECRET}", }}'.encode(), "is not JSON (line 1)"),
    "no object": ([SECRET], "it: must be an object"),
    "no tenants": ({"tokens": SECRET}, "tenants: is missing"),
    "an unset variable": (tenant(token={"env": "NOT_SET"}), "tenants.acme.token: the environment has no NOT_SET"),
    "a missing file": (tenant(token={"file": "none"}), "tenants.acme.token: the file none cannot be read"),
    "a number": (tenant(token=1234567890123456789), 'tenants["acme"].token: must be a string'),
    "a short token": (tenant(token="hunter2"), 'tenants["acme"].token: must have at least 16 characters'),
    "an odd token": (tenant(token=f"{SECRET}\n"), "tenants.acme.token: must be printable ASCII"),
    "an unknown tool": (tenant(tools={"Nope": {}}), "tenants.acme.tools.Nope: there is no such tool"),
    "a field too many": (
        tenant(tools={"CloudDbQuery": {"connections": {"a": {"url": "x", "pasword": SECRET}}}}),
        'tools.CloudDbQuery.connections["a"].pasword: is not known; did you mean password?',
    ),
    "a wrong limit": (tenant(limits={"maxConcurrent": 0}), "limits.maxConcurrent: must be a whole number from 1"),
    "one token twice": (
        {"tenants": {name: {"token": SECRET, "tools": {}} for name in ("a", "b")}},
        "tenants.b.token: is the same as that of a",
    ),
    "too deep": (orjson.loads('{"tenants":' + "[" * 40 + "]" * 40 + "}"), "has too many levels"),
}


@pytest.mark.parametrize(("file", "said"), WRONG.values(), ids=WRONG)
def test_problems_are_told_by_their_path_and_no_value_is(tmp_path: Path, file: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, file)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "1234567890" not in str(caught.value)


def test_a_handle_opens_for_its_tenant_alone() -> None:
    acme, other = Handles(b"k" * 32, "acme"), Handles(b"k" * 32, "ecma")
    handle = acme.seal("db#password", 3)
    assert acme.unseal(handle) == ("db#password", 3)
    again = Handles(b"k" * 32, "acme")
    assert again.unseal(handle) == ("db#password", 3)  # of another process
    payload, _, mac = handle.removeprefix("secret:").partition(".")
    moved = Handles(b"k" * 32, "acme").seal("other#password", 3).removeprefix("secret:").partition(".")[0]
    for wrong in ("", "secret:", handle[:-1], f"secret:{moved}.{mac}", f"secret:{payload}.", payload, "secret:é.é"):
        with pytest.raises(ToolFault):
            acme.unseal(wrong)
    for stranger in (other, Handles(b"j" * 32, "acme")):
        with pytest.raises(ToolFault):
            stranger.unseal(handle)

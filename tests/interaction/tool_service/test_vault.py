"""`VaultRead`: what the model gets of a secret, and where the value itself goes."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.support.tool_service import OTHER, Caller, grant, served, tenants
from tests.support.vault import TOKEN, Vault

if TYPE_CHECKING:
    from pathlib import Path

PASSWORD = "correct-horse-battery"


def tools(
    url: str, tmp_path: Path, *, names: list[str], secrets: list[str] | None = None, **more: Any
) -> dict[str, Any]:
    connection = {"url": f"sqlite://{tmp_path}/people.db", "secrets": secrets or []}
    return {
        "VaultRead": {"address": url, "token": TOKEN, "names": names, **more},
        "CloudDbQuery": {"connections": {"people": connection}},
    }


async def read(service: Caller, name: str) -> dict[str, Any]:
    answer = await service.invoke("VaultRead", {"name": name})
    assert PASSWORD not in answer.text
    result: dict[str, Any] = answer.json()
    return result


def people(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "people.db") as connection:
        connection.execute("CREATE TABLE people (name text, password text)")
        connection.execute("INSERT INTO people VALUES ('ada', ?), ('bob', 'other')", (PASSWORD,))
    connection.close()


@pytest.mark.slow
async def test_a_secret_is_given_as_a_handle_and_used_by_it(tmp_path: Path) -> None:
    people(tmp_path)
    vault = Vault({"db/people": [{"password": "old"}, {"password": PASSWORD, "user": "u"}]})
    with vault.in_thread() as url:
        file = tenants(tools(url, tmp_path, names=["db/people#password"], secrets=["db/people#password"]))
        async with served(tmp_path, file) as service:
            handle = orjson.loads((await read(service, "db/people#password"))["outputText"])
            assert handle.keys() == {"name", "version", "handle"}
            assert (handle["name"], handle["version"]) == ("db/people#password", 2)
            vault.secrets["db/people"].append({"password": "newer"})  # a handle stays with its version
            query = "SELECT name, password, ? AS given FROM people WHERE password = ?"
            value = {"secret": handle["handle"]}
            arguments = {"connectionName": "people", "query": query, "parameters": [value, value]}
            found = await service.invoke("CloudDbQuery", arguments)
            assert PASSWORD not in found.text
            said = "[secret db/people#password]"
            assert orjson.loads(found.json()["outputText"])["rows"] == [["ada", said, said]]
    assert "/v1/secret/data/db/people?version=2" in vault.asked


@pytest.mark.slow
async def test_only_listed_names_are_ever_asked_for(tmp_path: Path) -> None:
    vault = Vault({"db/people": [{"password": PASSWORD}], "a": [{"x": PASSWORD, "y": "z"}], "gone": [None]})
    with vault.in_thread() as url:
        file = tenants(tools(url, tmp_path, names=["a", "a#none", "gone#x", "missing#x", "a#x"]))
        async with served(tmp_path, file) as service:
            for name in ("db/people#password", "db/people", "a#y", "a/../db/people#password", "A#x"):
                assert (await read(service, name))["error"]["code"] == "PERMISSION_DENIED", name
            assert vault.asked == []
            codes = {
                name: (await read(service, name))["error"]["code"] for name in ("a", "a#none", "gone#x", "missing#x")
            }
            assert codes == {
                "a": "INVALID_REQUEST",
                "a#none": "FILE_NOT_FOUND",
                "gone#x": "FILE_NOT_FOUND",
                "missing#x": "FILE_NOT_FOUND",
            }
            assert (await read(service, "a#x"))["status"] == "succeeded"


@pytest.mark.slow
async def test_a_handle_of_another_tenant_or_connection_opens_nothing(tmp_path: Path) -> None:
    people(tmp_path)
    vault = Vault({"db": [{"password": PASSWORD}]})
    with vault.in_thread() as url:
        mine = tools(url, tmp_path, names=["db#password"])
        theirs = tools(url, tmp_path, names=["db#password"], secrets=["db#password"])
        async with served(tmp_path, tenants(mine, other=theirs)) as service:
            handle = orjson.loads((await read(service, "db#password"))["outputText"])["handle"]
            asked = len(vault.asked)
            for token, tenant in ((OTHER, "other"), (None, "acme")):
                arguments = {"connectionName": "people", "query": "SELECT ?", "parameters": [{"secret": handle}]}
                more = {"with_grant": grant("CloudDbQuery", tenant=tenant)} | ({"token": token} if token else {})
                answer = await service.invoke("CloudDbQuery", arguments, **more)
                assert answer.json()["error"]["code"] == "PERMISSION_DENIED"
                assert PASSWORD not in answer.text
            forged = {"connectionName": "people", "query": "SELECT ?", "parameters": [{"secret": "secret:x.y"}]}
            assert (await service.invoke("CloudDbQuery", forged)).json()["error"]["code"] == "PERMISSION_DENIED"
            # The handle of another tenant was not even asked for.
            assert len(vault.asked) == asked + 1


@pytest.mark.slow
@pytest.mark.many_rows(2)
@pytest.mark.parametrize(
    ("change", "code"),
    [({"token": "hvs.wrongwrongwrong"}, "PERMISSION_DENIED"), ({"namespace": "n"}, "PERMISSION_DENIED"),
     ({"address": "http://127.0.0.1:9"}, "TOOL_EXECUTION_FAILED"), ({"mount": "kv"}, "FILE_NOT_FOUND")],
)  # fmt: skip
async def test_what_goes_wrong_tells_nothing_of_the_configuration(tmp_path: Path, change: Any, code: str) -> None:
    with Vault({"db": [{"p": PASSWORD}]}).in_thread() as url:
        file = tenants(tools(url, tmp_path, names=["db#p"]))
        file["tenants"]["acme"]["tools"]["VaultRead"] |= change
        async with served(tmp_path, file) as service:
            result = await read(service, "db#p")
            assert result["error"]["code"] == code
            said = result["error"]["message"]
            assert not any(part in said for part in ("127.0.0.1", TOKEN, "hvs", "http"))

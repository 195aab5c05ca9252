"""`ObjectRead`, and outputs that are too large for the Workspace Service, with S3 as moto's server speaks it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from agent_host.contracts import MAX_ARTIFACT_BYTES, Artifact
from agent_host.testing.services import MockServices
from agent_host.tool_service.tool import Output
from tests.support.object_store import ObjectStore, object_store
from tests.support.tool_service import Caller, FunctionTool, served, tenants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent_host.tool_service.tool import Call

pytestmark = pytest.mark.slow


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store("reports", "hidden", "artifacts") as running:
        yield running


def reading(store: ObjectStore, **more: Any) -> dict[str, Any]:
    return {"ObjectRead": {"stores": {"reports": store.settings("reports", prefix="acme/")}, **more}}


async def ask(service: Caller, **arguments: Any) -> dict[str, Any]:
    answer = await service.invoke("ObjectRead", {"store": "reports", **arguments})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def test_text_comes_with_the_answer_and_other_content_is_stored(tmp_path: Path, store: ObjectStore) -> None:
    store.put("reports", "acme/a.txt", "Grüße\n".encode())
    store.put("reports", "acme/deep/b.bin", b"\xff\0" * 100, "application/octet-stream")
    store.put("reports", "acme/large.txt", b"x" * 70_000)
    async with served(tmp_path, tenants(reading(store))) as service:
        assert (await ask(service, key="a.txt"))["outputText"] == "Grüße\n"
        assert (await ask(service, key="a.txt", offset=6, length=2))["outputText"] == "e\n"
        for key, content in (("deep/b.bin", b"\xff\0" * 100), ("large.txt", b"x" * 70_000)):
            result = await ask(service, key=key)
            (uri,) = result["artifactUris"]
            stored = tmp_path / "artifacts" / "acme" / "ws_1" / uri.rpartition("/")[2]
            assert stored.read_bytes() == content
            assert f"{len(content):,} bytes" in result["outputText"]


async def test_keys_are_listed_below_the_prefix_alone(tmp_path: Path, store: ObjectStore) -> None:
    for key in ("acme/2026/a", "acme/2026/b", "acme/x", "other/secret"):
        store.put("reports", key, b"1")
    async with served(tmp_path, tenants(reading(store))) as service:
        listed = orjson.loads((await ask(service, list="2026/"))["outputText"])
        assert [(one["key"], one["size"]) for one in listed["objects"]] == [("2026/a", 1), ("2026/b", 1)]
        assert not listed["truncated"]
        everything = orjson.loads((await ask(service, list=""))["outputText"])
        assert [one["key"] for one in everything["objects"]] == ["2026/a", "2026/b", "x"]
        for key in ("../other/secret", "/other/secret", "other/secret"):
            assert (await ask(service, key=key))["error"]["code"] == "FILE_NOT_FOUND", key


async def test_what_goes_wrong_is_told_without_the_configuration(tmp_path: Path, store: ObjectStore) -> None:
    store.put("reports", "acme/large", b"x" * 1000)
    file = tenants(reading(store, maxObjectBytes=100))
    stores = file["tenants"]["acme"]["tools"]["ObjectRead"]["stores"]
    stores["away"] = {**stores["reports"], "endpoint": "http://127.0.0.1:9"}
    stores["none"] = {**stores["reports"], "bucket": "no-such-bucket"}
    async with served(tmp_path, file) as service:
        large = await ask(service, key="large")
        assert large["error"]["code"] == "FILE_TOO_LARGE"
        assert (await ask(service, key="large", length=10))["outputText"] == "x" * 10
        assert (await ask(service, key="none"))["error"]["code"] == "FILE_NOT_FOUND"
        assert (await ask(service, store="none", key="x"))["error"]["code"] == "FILE_NOT_FOUND"
        away = await ask(service, store="away", key="x")
        assert away["error"]["code"] == "TOOL_EXECUTION_FAILED"
        assert "127.0.0.1" not in away["error"]["message"]
        unknown = await ask(service, store="hidden", key="x")
        assert unknown["error"]["message"] == "there is no such store; there are: away, none, reports"


async def test_the_credentials_of_whoever_runs_the_service_are_not_used(
    tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOPERATOR")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "operator")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "operator-session")
    signed: list[str] = []

    settings = {name: value for name, value in store.settings("reports").items() if "ccessKey" not in name}
    file = tenants({"ObjectRead": {"stores": {"reports": settings, "own": store.settings("reports")}}})
    store.put("reports", "a", b"1")
    import botocore.httpsession

    send = botocore.httpsession.URLLib3Session.send

    def noted(self: Any, request: Any) -> Any:
        signed.append(f"{request.headers.get('Authorization')} {request.headers.get('X-Amz-Security-Token')}")
        return send(self, request)

    monkeypatch.setattr(botocore.httpsession.URLLib3Session, "send", noted)
    async with served(tmp_path, file) as service:
        await ask(service, store="reports", key="a")
        await ask(service, store="own", key="a")
    anonymous, own = signed
    assert anonymous == "None None"
    assert "Credential=id/" in own.replace("b'", "")
    assert "operator" not in "".join(signed).lower()


async def test_an_output_that_is_too_large_for_the_workspace_service_goes_to_the_bucket(
    tmp_path: Path, store: ObjectStore
) -> None:
    content = os.urandom(1024) * (MAX_ARTIFACT_BYTES // 1024 + 1)

    async def export(_: Call) -> Output:
        return Output("exported", (Artifact("tool_output", "export.bin", "application/octet-stream", content),))

    services = MockServices(token=None)
    with services.in_thread() as url:
        environ = {"WORKSPACE_SERVICE_URL": url}
        file = tenants({"Export": {}}, bucket=store.settings("artifacts", prefix="outputs/"))
        async with served(tmp_path, file, FunctionTool("Export", export), environ=environ) as service:
            result = (await service.invoke("Export")).json()
        without_bucket = tenants({"Export": {}})
        async with served(tmp_path, without_bucket, FunctionTool("Export", export), environ=environ) as service:
            refused = (await service.invoke("Export")).json()
    (artifact,) = services.artifacts
    assert result["artifactUris"] == [artifact.artifact_uri]
    assert artifact.fields["contentType"] == "text/uri-list"
    uri = artifact.data.decode().strip()
    assert uri.startswith("s3://artifacts/outputs/ws_1/sess_1/")
    assert store.get(uri) == content
    assert refused["error"]["code"] == "WORKSPACE_UPLOAD_FAILED"

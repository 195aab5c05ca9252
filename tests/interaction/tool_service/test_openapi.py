"""The OpenAPI document is true: requests made from it by schemathesis, every answer judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from agent_host.tool_service.http_app import document
from tests.support.tool_service import ACME, grant, process, tenants

if TYPE_CHECKING:
    from pathlib import Path

    from schemathesis import Case

EXAMPLES = 25
FIELDS = ("sessionId", "taskId", "stepId", "workspaceId", "toolName", "arguments")
WRONG: tuple[Any, ...] = (None, 5, [], "", "../x", "another")


def test_its_schemas_are_schemas() -> None:
    for schema in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.slow
def test_answers_are_what_the_document_says(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    file = tenants({"CloudDbQuery": {"connections": {"empty": {"url": f"sqlite://{tmp_path}/empty.db"}}}})
    with process(tmp_path, file) as service:
        schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
        tried: dict[str, set[int]] = {}
        for result in schema.get_all_operations():
            operation = result.ok()  # type: ignore[union-attr]  # an error of it raises here

            @given(case=operation.as_strategy(), name=st.sampled_from(FIELDS), wrong=st.sampled_from(WRONG))
            @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
            def holds(case: Case[Any], name: str, wrong: Any) -> None:
                # As they come; with a token, a grant and a tool that there are, so that more than refusals is seen; and
                # with a field of the body that is wrong.
                for kind in ("as it comes", "known", "wrong"):
                    headers = {}
                    if kind != "as it comes":
                        headers = {"Authorization": f"Bearer {ACME}", "X-Capability-Grant": grant("CloudDbQuery")}
                        if "toolName" in (case.path_parameters or {}):
                            case.path_parameters = {**case.path_parameters, "toolName": "CloudDbQuery"}
                        if isinstance(case.body, dict):
                            case.body = {**case.body, "toolName": "CloudDbQuery", "sessionId": "sess_1"}
                    if kind == "wrong" and isinstance(case.body, dict):
                        case.body = {**case.body, name: wrong}
                    answer = case.call(headers=headers)
                    tried.setdefault(case.operation.label, set()).add(answer.status_code)
                    case.validate_response(answer, checks=CHECKS)

            holds()
    assert {200, 400, 401} <= tried["POST /tools/{toolName}/invoke"]
    assert {401, 404} <= tried["GET /tools/{toolName}/invocations/{key}"]
    assert tried["GET /tools"] == {200, 401}


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]

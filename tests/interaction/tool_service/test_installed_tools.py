"""Tools that an installed package brings by an entry point."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from agent_host.errors import UsageError
from agent_host.tool_service.server import all_tools
from tests.support.tool_service import served, tenants

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = """
from agent_host.tool_service.tool import Output
from config.shapes import TEXT, Record


class Deploy:
    name = "Deploy"
    description = "Deploy the service."
    input_schema = {"type": "object", "properties": {"version": {"type": "string"}}}
    shape = Record({"target": TEXT}, closed=True)
    high_risk = True
    repeatable = False

    def build(self, configuration, services):
        return Running(configuration["target"], services.tenant)


class Running:
    def __init__(self, target, tenant):
        self.target, self.tenant = target, tenant

    async def run(self, call):
        return Output(f"{call.arguments['version']} is on {self.target} of {self.tenant}")

    async def aclose(self):
        pass


DEPLOY = Deploy()
NOTHING = 5
AGAIN = Deploy()
AGAIN.name = "VaultRead"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of a package on the path of modules."""
    info = tmp_path / "site" / "acme_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "acme_tools.py").write_text(PACKAGE)
    (info.parent / "acme_broken.py").write_text("raise RuntimeError('no licence')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.delitem(sys.modules, "acme_tools", raising=False)
    names(info, "acme_tools:DEPLOY")
    return info


def names(info: Path, entry: str) -> None:
    (info / "entry_points.txt").write_text(f"[agent_host.backend_tools]\nDeploy = {entry}\n")


@pytest.mark.usefixtures("package")
async def test_a_tool_of_a_package_serves_the_tenant_that_configures_it(tmp_path: Path) -> None:
    async with served(tmp_path, tenants({"Deploy": {"target": "staging"}}, other={})) as service:
        assert (await service.invoke("Deploy", {"version": "1.2"})).json()["outputText"] == "1.2 is on staging of acme"
    with pytest.raises(UsageError, match=r"tenants\.acme\.tools\.Deploy"):
        async with served(tmp_path, tenants({"Deploy": {}})):
            pass


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("acme_tools:MISSING", "cannot be loaded: AttributeError"),
        ("acme_nowhere:DEPLOY", "cannot be loaded: ModuleNotFoundError"),
        ("acme_broken:DEPLOY", "cannot be loaded: RuntimeError: no licence"),
        ("acme_tools:Deploy", "is a class: name an instance of it"),
        ("acme_tools:NOTHING", "is not a BackendTool: it has no name, description"),
        ("acme_tools:AGAIN", "has the name of another: VaultRead"),
    ],
)
def test_a_tool_that_cannot_be_used_is_told(package: Path, entry: str, said: str) -> None:
    names(package, entry)
    with pytest.raises(UsageError) as error:
        all_tools()
    assert f"the backend tool Deploy ({entry}) {said}" in str(error.value)

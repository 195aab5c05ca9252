"""examples/compose: its files parse, agree with each other, and say what this program takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_host.cli.options import parse
from agent_host.tool_service.server import all_tools
from agent_host.tool_service.tenants import read_configuration
from tests.support.node_packages import COMPOSE_LINT, NODE
from tests.support.node_packages import FOLDER as NODE_MODULES

FOLDER = Path(__file__).parents[3] / "examples" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
KNOWN = {
    "image", "build", "command", "environment", "volumes", "healthcheck", "networks", "depends_on", "stop_grace_period",
    "read_only", "tmpfs", "cap_drop", "security_opt",
}  # fmt: skip
CONDITIONS = {"service_healthy", "service_started", "service_completed_successfully"}


def test_every_service_is_whole_and_names_what_is_there() -> None:
    services = FILE["services"]
    assert set(services) == {"database", "tool-service", "collector", "host"}
    for name, service in services.items():
        assert set(service) <= KNOWN, name
        assert ("image" in service) != ("build" in service), name
        assert set(service["networks"]) <= set(FILE["networks"]), name
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other], other
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (FOLDER / source).is_file() if source.startswith("./") else source in FILE["volumes"], volume
        if "build" in service:
            context = (FOLDER / service["build"]["context"]).resolve()
            assert (context / service["build"]["dockerfile"]).is_file()
    assert "ports" not in TEXT  # nothing is reached from outside
    assert services["database"]["networks"] == ["backend"]
    assert FILE["networks"]["backend"] == {"internal": True}


def test_every_variable_is_in_the_example_of_secrets() -> None:
    named = set(re.findall(r"\$\{([A-Z_]+)", TEXT)) - {"PROMPT"}
    listed = {line.partition("=")[0] for line in (FOLDER / "secrets.example").read_text().splitlines() if "=" in line}
    assert named == listed
    assert not re.search(r"^[A-Z_]+=.", (FOLDER / "secrets.example").read_text(), re.MULTILINE)


def test_the_commands_are_what_the_program_takes() -> None:
    service = parse(FILE["services"]["tool-service"]["command"])
    assert (service.command, service.workers, service.port) == ("servers:tool_service", 2, 8070)
    assert parse(FILE["services"]["host"]["command"]).command == "headless:run"
    host, tools = FILE["services"]["host"]["environment"], FILE["services"]["tool-service"]["environment"]
    assert host["BACKEND_TOOL_SERVICE_TOKEN"] == "${TENANT_TOKEN}"
    assert host["AGENT_HOST_GRANT_KEY"] in tools["AGENT_HOST_GRANT_KEY"].replace(":?set it in secrets.env", "")


def test_the_tenants_file_is_read() -> None:
    environment = FILE["services"]["tool-service"]["environment"]
    values = {name: re.sub(r"\$\{\w+[^}]*\}", "0123456789abcdef", value) for name, value in environment.items()}
    found = read_configuration(str(FOLDER / "tenants.json"), values, all_tools())
    assert set(found.tenants) == {"local"}
    assert found.answers_url is not None


def test_the_collector_has_what_its_pipelines_name() -> None:
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        assert set(pipeline["receivers"]) <= set(collector["receivers"])
        assert set(pipeline["exporters"]) <= set(collector["exporters"])


@pytest.mark.slow
def test_the_policy_is_valid(tmp_path: Path) -> None:
    agent_host = ["-m", "agent_host", "policy", "validate", str(FOLDER / "policy.json"), "--state-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, "-P", *agent_host], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def linted(file: Path) -> subprocess.CompletedProcess[str]:
    """dclint on a Compose file: the schema of Compose, and its rules but for those of order."""
    program = NODE_MODULES / "dclint" / "bin" / "dclint.cjs"
    if not program.is_file():
        pytest.skip("dclint is not installed: python -m tests.support.node_packages")
    command = [NODE, str(program), "--config", str(COMPOSE_LINT / "rules.json"), "--max-warnings", "0", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.peer
@pytest.mark.slow
def test_the_file_is_linted(tmp_path: Path) -> None:
    done = linted(FOLDER / "compose.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    for wrong, said in {
        TEXT.replace("    healthcheck:", "    healthcheks:", 1): "invalid-schema",
        TEXT.replace("otel/opentelemetry-collector:0.140.0", "otel/opentelemetry-collector"): "image",
    }.items():
        (tmp_path / "compose.yaml").write_text(wrong)
        refused = linted(tmp_path / "compose.yaml")
        assert refused.returncode != 0
        assert said in refused.stdout


def test_the_image_is_built_of_the_packages_and_of_nothing_else() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    root = FOLDER.parents[1]
    assert all((root / name).exists() for name in copied)
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied)
    admitted = [line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    assert admitted == copied
    extras = set(re.findall(r"--extra (\S+)", "\n".join(lines)))
    assert extras == {"backend", "otel"} <= set(project["project"]["optional-dependencies"])


@pytest.mark.slow
@pytest.mark.peer
def test_compose_itself_takes_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("docker compose is not installed")
    listed = (FOLDER / "secrets.example").read_text().replace("=\n", "=x\n")
    environment = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line and not line.startswith("#"))
    command = [docker, "compose", "-f", str(FOLDER / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin:/usr/local/bin", **environment}
    )
    assert done.returncode == 0, done.stderr

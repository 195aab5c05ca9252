"""The entry for the protocol's registry: it is this program in this version, and its icon is one that themes colour."""

from __future__ import annotations

import json
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

from agent_host.cli.options import COMMANDS
from agent_host.version import __version__

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "acp"


def test_the_entry_is_this_program_in_this_version() -> None:
    entry = json.loads((FOLDER / "agent.json").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (entry["id"], entry["version"], entry["license"]) == (project["name"], __version__, project["license"])
    start = entry["distribution"]["uvx"]
    assert (start["package"], start["args"]) == (f"{project['name']}@{__version__}", ["acp"])
    assert start["args"][0] in COMMANDS
    assert entry.keys() == {"id", "name", "version", "description", "license", "distribution"}


def test_the_icon_has_the_size_and_the_colour_of_the_registry() -> None:
    icon = ET.fromstring((FOLDER / "icon.svg").read_text("utf-8"))
    assert (icon.get("width"), icon.get("height"), icon.get("viewBox")) == ("16", "16", "0 0 16 16")
    colours = {one.get(name) for one in icon.iter() for name in ("fill", "stroke")} - {None}
    assert colours == {"none", "currentColor"}

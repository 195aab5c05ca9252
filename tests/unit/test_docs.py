"""What the documentation shows must work."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agent_host.errors import ErrorCode
from config.settings import SETTINGS
from policy.bundle.validate import parse_bundle
from tests.support.api_page import PAGE as API_PAGE
from tests.support.api_page import page as api_page
from tests.support.event_page import PAGE
from tests.support.event_page import page as event_page
from tests.support.house import modules, translated_names, translated_share, word_shares
from tests.support.rows import each_row
from tests.support.serve_page import PAGE as SERVE_PAGE
from tests.support.serve_page import page as serve_page

ROOT = Path(__file__).resolve().parents[2]
MOST_TRANSLATED_NAMES = 24
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def test_the_bundle_in_the_policy_page_is_valid() -> None:
    page = (ROOT / "docs" / "policy-details.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert parse_bundle(example.encode()).capability("Shell.Exec") is not None


@each_row("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@each_row("page", PAGES, ids=lambda page: page.name)
def test_named_source_files_exist(page: Path) -> None:
    for named in re.findall(
        r"`((?:agent_host|tool_runtime|policy|state|config|benchmarks)/[\w/]+\.\w+)`", page.read_text()
    ):
        assert (ROOT / named).exists(), named


def test_settings_named_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "config/defaults.toml" in text
    assert SETTINGS.keys() >= {"host.policy", "llm.gateway"}


def test_the_limits_in_the_page_are_the_defaults() -> None:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    defaults = tomllib.loads((ROOT / "config" / "defaults.toml").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| ([\d.]+) \| .* \| (.+) \|$", page, re.MULTILINE)
    assert {f"{section}.{name}" for section, name, *_ in rows} >= {
        key
        for key in SETTINGS
        if re.fullmatch(r"llm\.(max_\w+_bytes|\w+_timeout_s)|tools\.(max_\w+|output_buffer_bytes)", key)
    }
    for section, name, default, beyond in rows:
        assert defaults[section][name] == float(default), name
        codes = re.findall(r"`([A-Z_]+)`", beyond)
        assert codes or beyond.startswith("no error: "), name
        assert {*codes} <= ErrorCode.__members__.keys(), name


def test_the_error_codes_are_the_interface_s() -> None:
    assert all(code == code.name for code in ErrorCode)


def test_the_page_of_events_is_made_from_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == event_page(), "python -m tests.support.event_page"


def test_the_page_of_the_public_api_is_made_from_its_docstrings() -> None:
    assert API_PAGE.read_text(encoding="utf-8") == api_page(), "python -m tests.support.api_page"


def test_the_tables_of_methods_are_made_from_their_functions() -> None:
    assert SERVE_PAGE.read_text(encoding="utf-8") == serve_page(), "python -m tests.support.serve_page"


def test_docstrings_say_what_a_thing_is_and_functions_are_named_by_what_they_do() -> None:
    asked, odd = word_shares(modules())
    assert asked <= 0.02, "docstrings begin with What, Which, Whether, Where, How, Who, Whose or When"
    assert odd <= 0.05, "functions are named by a participle or a preposition"
    assert translated_share(modules()) <= 0.02, "docstrings with words such as behind, nobody, goes on"
    names = translated_names(modules())
    assert len(names) <= MOST_TRANSLATED_NAMES, f"names with words such as said, told, held: {sorted(set(names))}"

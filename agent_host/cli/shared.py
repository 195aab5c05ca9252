"""What several commands share: the options that are settings, and where the state lies."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from agent_host.api.options import state_dir_from

if TYPE_CHECKING:
    from collections.abc import Mapping


def _cost(text: str) -> float:
    """A limit of costs; 0 would mean that there is none. Raises ArgumentTypeError."""
    try:
        cost = float(text)
    except ValueError:
        cost = 0
    if not cost > 0:
        raise argparse.ArgumentTypeError(f"give an amount above 0, not {text}")
    return cost


# Options of `run` and `resume` that are settings: option, setting, arguments for argparse.
SETTING_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "--policy",
        "host.policy",
        {"metavar": "NAME_OR_FILE", "help": "read-only, workspace, ci, full, or a bundle file"},
    ),
    ("--gateway", "llm.gateway", {"metavar": "URL", "help": "LLM gateway, or mock:FILE for a scripted one"}),
    (
        "--dialect",
        "llm.dialect",
        {"metavar": "NAME", "help": "wire format of the gateway: anthropic, openai, responses or auto"},
    ),
    ("--model", "llm.model", {"metavar": "NAME", "help": "a model that the policy allows (default: its first)"}),
    ("--max-steps", "host.max_steps", {"metavar": "N", "type": int, "help": "1 to 10,000 (40)"}),
    ("--max-cost", "llm.max_cost", {"metavar": "N", "type": _cost, "help": "end before it costs more: docs/costs.md"}),
    (
        "--toolset",
        "host.toolset",
        {
            "metavar": "FAMILY",
            "action": "append",
            "help": "family of tools the model sees: desktop, native or skills; repeatable",
        },
    ),
    (
        "--sandbox",
        "sandbox.level",
        {"metavar": "LEVEL", "help": "how commands are held: none, landlock, namespace or auto"},
    ),
    (
        "--allow-domain",
        "sandbox.allowed_domains",
        {"metavar": "HOST", "action": "append", "help": "a host that commands may reach; repeatable"},
    ),
    ("--output", "host.output", {"metavar": "FORM", "help": "text, json or jsonl"}),
    (
        "--verbose",
        "host.verbose",
        {
            "action": "store_true",
            "default": None,
            "help": "show commands' output and the model's thinking, on standard error",
        },
    ),
)

# Options of `sessions` that need `--prune`, by attribute.
PRUNE_OPTIONS = ("max_age", "max_count", "max_size", "resumable", "dry_run")


def prunes(namespace: argparse.Namespace) -> bool:
    """True if the command line speaks of pruning, rightly or not."""
    return namespace.prune or any(getattr(namespace, name) is not None for name in PRUNE_OPTIONS)


def given_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line sets, by key."""
    return {
        key: value
        for option, key, _ in SETTING_OPTIONS
        if (value := getattr(namespace, _destination(option), None)) is not None
    }


def options_again(namespace: argparse.Namespace) -> list[str]:
    """The options of a session as they were given, for a process that is to have the same."""
    words: list[str] = []
    for option, key, _ in SETTING_OPTIONS:
        value = given_settings(namespace).get(key)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            words += [option, str(one)]
    for option, value in (("--workspace", namespace.workspace), ("--state-dir", namespace.state_dir)):
        words += [] if value is None else [option, value]
    for name in namespace.approve:
        words += ["--approve", name]
    return [*words, *(["--approve-all"] if namespace.approve_all else [])]


def _destination(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def state_dir_of(namespace: argparse.Namespace) -> str:
    """The state directory of `--state-dir`, the environment or the platform, absolute."""
    return state_dir_from(namespace.state_dir)


def tokens_in_words(used: Mapping[str, Any], *, cache_last: bool = False) -> str:
    """Tokens and, where it is known, their cost in one line: `1200 tokens in (800 cached, 100 written), 60 out, 0.0123
    USD`; with `cache_last` what is in brackets stands behind the tokens out. `used` has the fields of a usage, and
    `cost` and `costCurrency`."""
    of_cache = ((used.get("cachedInputTokens"), "cached"), (used.get("cacheWriteTokens"), "written"))
    cache = ", ".join(f"{count} {what}" for count, what in of_cache if count)
    cache = f" ({cache})" if cache else ""
    came, said = f"{used['inputTokens']} tokens in", f"{used['outputTokens']} out"
    words = f"{came}, {said}{cache}" if cache_last else f"{came}{cache}, {said}"
    cost = used.get("cost")
    return words if cost is None else f"{words}, {_amount(cost)} {used.get('costCurrency', '')}"


def _amount(cost: float) -> str:
    """More digits the smaller it is."""
    return f"{cost:.{2 if cost >= 1 else 4 if cost >= 0.01 else 6}f}"

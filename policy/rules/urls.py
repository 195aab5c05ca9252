"""Scope of Network.Http: which hosts may be asked (AH 8.2). No name is looked up here, no redirect followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy import urls
from policy.addresses import address_is_public
from policy.facts import UrlFacts
from policy.rules import deny, where

if TYPE_CHECKING:
    from policy.decision import Decision
    from policy.rules import Case


def url_rules(case: Case) -> Decision | str | None:
    """Scope of Network.Http: spelling, blocked domains, allowed domains, then addresses that are not public."""
    entry, facts = case.entry, case.facts
    assert isinstance(facts, UrlFacts)  # noqa: S101  the table of rules is keyed by this type
    try:
        host, port = urls.target_of(facts.url)
    except urls.UrlProblem as problem:
        return deny(entry.name, where(entry), str(problem))
    shown = urls.host_and_port(facts.url)
    blocked = urls.blocking_rule(host, _domain_table(case, "blocked"), port)
    if blocked is not None:
        return deny(entry.name, where(entry, "blockedDomains", blocked), f"domain is blocked: {shown}")
    admitted = None
    if entry.allowed_domains is not None:
        admitted = urls.matching_rule(host, _domain_table(case, "allowed"), port)
        if admitted is None:
            return deny(entry.name, where(entry, "allowedDomains"), f"domain not allowed: {shown}")
    # A local name or address that is listed as such was meant; one that is merely not excluded was not.
    named = admitted is not None and not admitted.startswith("*")
    if (urls.is_local_name(host) or (urls.is_address(host) and not address_is_public(host))) and not named:
        return deny(entry.name, where(entry), f"not a public address: {host}")
    refused = _address_problem(case, host, port, trusted=named)
    return refused or (None if admitted is None else where(entry, "allowedDomains", admitted))


def _address_problem(case: Case, host: str, port: int, *, trusted: bool) -> Decision | None:
    """A denial for one of the addresses that a name has, as the tool denies it when it connects: one that is not public
    has to be named itself, unless the name that is listed is a local one."""
    entry, facts = case.entry, case.facts
    assert isinstance(facts, UrlFacts)  # noqa: S101  the table of rules is keyed by this type
    for address in facts.resolved_addresses:
        try:
            canonical = urls.canonical_domain(address)
        except urls.UrlProblem:
            return deny(entry.name, where(entry), f"{host} has an address that cannot be read: {address}")
        blocked = urls.blocking_rule(canonical, _domain_table(case, "blocked"), port)
        if blocked is not None:
            return deny(entry.name, where(entry, "blockedDomains", blocked), f"address of {host} is blocked: {address}")
        if address_is_public(address) or (trusted and (urls.is_local_name(host) or urls.is_address(host))):
            continue
        own = urls.matching_rule(canonical, _domain_table(case, "allowed"), port) if trusted else None
        if own is None or own.startswith("*"):
            return deny(entry.name, where(entry), f"not a public address: {host}")
    return None


def granted_reason(facts: UrlFacts) -> str:
    """The reason for a request that is granted: without its host's addresses only the name was judged."""
    named = facts.resolved_addresses or urls.is_address(urls.host_of(facts.url))
    return "granted" if named else "granted by the host's name; its addresses are judged when it connects"


def _domain_table(case: Case, which: str) -> dict[str, str]:
    memo_key = (case.entry.name, which, "domains")
    table: dict[str, str] | None = case.bundle.memo.get(memo_key)
    if table is None:
        entries = case.entry.allowed_domains if which == "allowed" else case.entry.blocked_domains
        table = case.bundle.memo[memo_key] = urls.domain_rules(entries or ())
    return table

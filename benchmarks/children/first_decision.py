"""Prints the milliseconds of a process's first decision on a shell line."""

from __future__ import annotations

from benchmarks.policy import NOW, bundle, shell
from benchmarks.report import milliseconds
from policy.decide import check_tool


def main() -> None:
    held, facts = bundle(10), shell("ls -la src | wc -l")
    print(milliseconds(lambda: check_tool(held, "Shell.Exec", facts, now=NOW)))


if __name__ == "__main__":
    main()

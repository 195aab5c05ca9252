"""The tables of docs/serve.md from the methods of `serve`: `python -m tests.support.serve_page` writes them.

The rest of the page is written by hand; the tables stand between two marks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent_host.rpc.messages import Params
from agent_host.rpc.methods import METHODS
from config.shapes import Leaf, ListOf, Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_host.rpc.server import Method
    from config.shapes import Shape

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "serve.md"
BEGIN: Final = "<!-- Made from agent_host/rpc/methods.py by `python -m tests.support.serve_page`. -->\n"
OF_EVERY_METHOD: Final = {(-32602, "INVALID_REQUEST"), (-32603, "INTERNAL_ERROR")}
END: Final = "<!-- The end of what is made. -->\n"


def page() -> str:
    """The page as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "".join(_tables()) + END + after


def _tables() -> Iterator[str]:
    yield "\n| method | purpose |\n| --- | --- |\n"
    for name, method in METHODS.items():
        purpose = " ".join(method.purpose.split())
        yield f"| [`{name}`](#{name.lower()}) | {purpose} |\n"
    for name, method in METHODS.items():
        yield f"\n### {name}\n\n"
        yield from _table_of(method)
        yield f"\nErrors: {', '.join(_errors_of(method)) or 'those that every method has'}.\n"
    yield "\n"


def _table_of(method: Method) -> Iterator[str]:
    parameters = list(_members(method.shape))
    if parameters:
        yield "| parameter | value |\n| --- | --- |\n"
        yield from (f"| `{path}`{mark} | {_value(shape)} |\n" for path, mark, shape in parameters)
        yield "\n"
    yield "| result | value |\n| --- | --- |\n"
    for name, words in method.result.items():
        yield f"| `{name.removesuffix('?')}`{'?' if name.endswith('?') else ''} | {words} |\n"


def _members(shape: Params, path: str = "") -> Iterator[tuple[str, str, Shape]]:
    for name, member in shape._members.items():
        yield path + name, "" if name in shape._required else "?", member
        if isinstance(member, Params):
            yield from _members(member, f"{path}{name}.")


def _value(shape: Shape) -> str:
    match shape:
        case Text():
            low, high = shape._least, shape._most
            return f"a string of {low} to {high:,} characters" if low else f"a string of at most {high:,} characters"
        case ListOf():
            return f"a list of at most {shape._most:,}, each {_value(shape._item)}"
        case Params():
            return "an object"
        case Leaf():
            return shape.expected
    raise AssertionError(shape)


def _errors_of(method: Method) -> list[str]:
    codes = sorted({(error.rpc_code, str(error.code)) for error in method.errors} - OF_EVERY_METHOD, reverse=True)
    return [f"{number} `{code}`" for number, code in codes]


def check_answer(name: str, answer: dict[str, Any]) -> None:
    """Fail if an answer to the method has a member, or an error, that the page does not have."""
    method = METHODS.get(name)
    if method is None:
        return
    if "error" in answer:
        error = answer["error"]
        own = {(kind.rpc_code, str(kind.code)) for kind in method.errors}
        assert (error["code"], error["data"]["code"]) in own | OF_EVERY_METHOD, (name, error)
        return
    names = set(answer["result"]) - {"ignored"}
    assert names <= {member.removesuffix("?") for member in method.result}, (name, names)
    assert names >= {member for member in method.result if not member.endswith("?")}, (name, names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

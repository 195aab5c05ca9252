"""Arithmetic wherever a shell evaluates it: plain texts, and the variables that it evaluates; and the variables and
functions that a line sets."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from policy import words
from policy.shell.tables import NAMING_BUILTINS, STEERING_VARIABLE
from policy.shell.words import mask_parts, plain, read_word, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from policy.shell.words import Word

    IsNumber = Callable[[str], bool]


_NUMBERS = re.compile(
    r"(?:[0-9A-Za-z_\s+*/%()<>=!&|^~?:,.;-]|\$[A-Za-z0-9_#?]++|\$\{[#]?[A-Za-z0-9_]++(?:\[[@*]\])?\}"
    r"|\[\$?[A-Za-z0-9_]++\])*+"
)
"""Arithmetic on numbers, variables, elements of arrays and what substitutions give, which `x` stands for."""
_NAME_IN_NUMBERS = re.compile(r"(?<![0-9])[A-Za-z_@][A-Za-z0-9_]*|(?<=\$)[0-9]")
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_EVALUATED = "arithmetic on more than numbers, whose text is evaluated"
_SUBSTITUTED_NUMBERS = frozenset({"command_substitution"})
_OPERATION = r"(?:<<|>>|\*\*|&&|\|\||\^\^|[-+*/%&|^])?=(?!=)"
_ASSIGNED = re.compile(
    rf"((?:\$\{{?[A-Za-z0-9_]++\}}?|[A-Za-z0-9_@])++)[\s)]*+(?:\[[^\]]*+\]\s*+)?(?:\+\+|--|{_OPERATION})"
    r"|(?:\+\+|--)[\s(]*+((?:\$\{?[A-Za-z0-9_]++\}?|[A-Za-z0-9_@])++)"
)
"""Targets of assignments in arithmetic: names, and expansions that become one (`@` stands for a substitution)."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EVALUATED_BY_EXPANSION = re.compile(
    r"\$\{[#!]?[A-Za-z0-9_@*]+(?:\[(?:[@*]|(?P<index>[^\]]*))\])?(?::(?![-+=?])(?P<offset>[^}]*))?"
)
_LENGTH = re.compile(r"\$\{#[^}]*\}")


def arithmetic(source: bytes, node: Node) -> str | None:
    """bash takes `((` for arithmetic only if the brackets inside are in pairs."""
    text = mask_parts(source, node, _SUBSTITUTED_NUMBERS).removeprefix("$")
    if (
        not (text.startswith("((") and text.endswith("))"))
        or not _NUMBERS.fullmatch(text)
        or not _is_paired(text[2:-2])
    ):
        return _EVALUATED
    return None


def _is_paired(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def text_to_evaluate(source: bytes, node: Node, is_number: Callable[[Node], bool]) -> str:
    """Return the text that a shell evaluates for a node: of an expansion its subscript and its offsets. `0` stands for
    a substitution of which `is_number`, `@` for any other."""
    text = bytearray(source[node.start_byte : node.end_byte])
    pending = list(node.children)
    while pending:
        one = pending.pop()
        if one.type in _SUBSTITUTED_NUMBERS:
            mark = b"0" if is_number(one) else b"@"
        elif one.type == "test_operator":
            mark = b" "
        else:
            pending.extend(one.children)
            continue
        begin, end = one.start_byte - node.start_byte, one.end_byte - node.start_byte
        text[begin:end] = mark * (end - begin)
    if node.type != "expansion":
        return _LENGTH.sub("0", text.decode())
    found = _EVALUATED_BY_EXPANSION.match(text.decode())
    return "" if found is None else _LENGTH.sub("0", f"{found['index'] or ''} {found['offset'] or ''}")


def names_evaluated(text: str) -> list[str]:
    """The variables whose text an evaluated text evaluates, each once and in order: a subscript in one runs
    substitutions. `*` is any value without a name: the output of a substitution, a parameter of a function."""
    names = _NAME_IN_NUMBERS.findall(text)
    return list(dict.fromkeys("*" if not name[0].isalpha() and name[0] != "_" else name for name in names))


def find_assignments(text: str) -> list[str | None]:
    """The names of variables that an arithmetic expression sets; None for a name known only at run time."""
    if "=" not in text and "++" not in text and "--" not in text:
        return []
    found = [one or two for one, two in _ASSIGNED.findall(text)]
    return [name if _PLAIN_NAME.fullmatch(name) else None for name in found if not name.isdecimal()]


def comparison(source: bytes, node: Node) -> str | None:
    """The reason why a part of `[[ ]]` is undecidable: it evaluates a name, or compares something other than plain
    numbers."""
    if node.type == "test_operator" and text_of(source, node) in {"-v", "-R"}:
        return "[[ -v ]] evaluates a name"
    if compares_numbers(source, node):
        operands = [child for child in node.children if text_of(source, child) not in _COMPARES_NUMBERS]
        operands = [one for one in operands if one.type not in _SUBSTITUTED_NUMBERS]
        texts = [mask_parts(source, one, _SUBSTITUTED_NUMBERS).strip('"') for one in operands]
        if not all(map(_NUMBERS.fullmatch, texts)):
            return _EVALUATED
    return None


def compares_numbers(source: bytes, node: Node) -> bool:
    """True for a part of `[[ ]]` that takes its two operands for numbers, and evaluates them."""
    if not any(text_of(source, child) in _COMPARES_NUMBERS for child in node.children):
        return False
    around = node.parent
    while around is not None and around.type != "test_command":
        around = around.parent
    return around is not None and around.children[0].type == "[["


ARITHMETIC = words("arithmetic_expansion compound_statement c_style_for_statement binary_expression expansion")
"""Nodes that a shell may evaluate as arithmetic, or parts of them."""


def evaluated_parts(source: bytes, node: Node) -> list[Node]:
    """The parts of a node that a shell evaluates as arithmetic."""
    match node.type:
        case "compound_statement":
            is_evaluated = bool(node.children) and node.children[0].type == "(("
        case "c_style_for_statement":
            return [child for child in node.children if child.type not in {"do_group", "compound_statement"}]
        case "expansion":  # subscripts and offsets
            text = source[node.start_byte : node.end_byte]
            is_evaluated = b"[" in text or b":" in text
        case "binary_expression":
            is_evaluated = compares_numbers(source, node)
        case kind:
            is_evaluated = kind == "arithmetic_expansion"
    return [node] if is_evaluated else []


def counting_loop(source: bytes, node: Node) -> str | None:
    """`for ((a; b; c))`: up to the brackets that close it is arithmetic."""
    closing = next((child for child in node.children if child.type == "))"), None)
    opening = next((child for child in node.children if child.type == "(("), None)
    if opening is None or closing is None:
        return _EVALUATED
    text = source[opening.end_byte : closing.start_byte].decode()
    return None if _NUMBERS.fullmatch(text) and _is_paired(text) and "$(" not in text else _EVALUATED


# Text that a line evaluates: as arithmetic, in which a subscript runs substitutions, or as the list of an array.
#
# It is harmless if it can only be a number, or if nothing in the line can be or become a substitution that has not run
# yet. A line and the texts that it passes to shells are examined together.

_DATA = words("string_content raw_string ansi_c_string heredoc_body")
_CODE = re.compile(rb"`|\\[x0-9uU]")
"""Backquotes, and escapes that a program may make any character of."""
_PLAIN_DOLLAR = re.compile(rb"\\\$|\$(?![\w({@*#?$!-])")
"""A dollar that a shell takes for itself."""
_ESCAPED_BACKQUOTE = b"\\`"


EVERYWHERE = 1 << 62
_AT_ONCE = re.compile(rb"(?<![&>|<])&(?![&>0-9-])|[<>]\(|\bcoproc\b")
"""Syntax for parts that run concurrently with what follows."""


@cache
def _sets_steering() -> re.Pattern[bytes]:
    """A steering variable in front of what assigns, in whatever quotes: text that arithmetic may be given."""
    names = STEERING_VARIABLE.pattern
    between = r"(?:['\"\s)]|\$\{?\w++\}?)*+"
    assigns = r"(?:[-+*/%&|^<>]{0,2}=(?!=)|\+\+|--|\[)"
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{names}){between}{assigns}|(?:\+\+|--)(?:{names})\b".encode())


class Evaluated:
    """True if anything that is evaluated may be code, and the text that quotes keep from being expanded."""

    def __init__(self) -> None:
        self.has_arrays = self.has_lists = False
        """`has_lists`: a builtin assigns an unknown value, which it evaluates if the variable is an array."""
        self._until = -1
        self.sources: list[bytes] = []
        """The texts of lines, of the outermost one first."""
        self._data: list[tuple[int, bytes]] = []

    def note_data(self, source: bytes, begin: int, end: int, kind: str) -> None:
        """Notes the text of a node that is not expanded."""
        if kind in _DATA:
            self._data.append((begin if len(self.sources) == 1 else -1, source[begin:end]))

    def note_text(self, until: int) -> None:
        """Notes arithmetic on a possible non-number; nothing after `until` in the outermost line can have made it."""
        self._until = max(self._until, until if len(self.sources) == 1 else EVERYWHERE)

    def may_run_code(self) -> bool:
        """True if the evaluated text may contain a substitution."""
        until = EVERYWHERE if self.has_lists and self.has_arrays else self._until
        if until < 0:
            return False
        if _AT_ONCE.search(self.sources[0]):
            until = EVERYWHERE
        data = b"\n".join(text for begin, text in self._data if begin < until)
        sources = [self.sources[0][:until], *self.sources[1:]]
        if any(map(_sets_steering().search, sources)):
            return True
        if _CODE.search(data) or any(_ESCAPED_BACKQUOTE in source for source in sources):
            return True
        # However a dollar and a bracket come together: there are too many ways to follow.
        has_dollar = b"$" in data or any(map(_PLAIN_DOLLAR.search, sources))
        return has_dollar and (b"(" in data or any(b"\\(" in source for source in sources))


# Words of a line that can only become numbers: by their spelling, or by the program whose output they are.

_LITERAL = re.compile(r"[-+ ]?(?:[0-9]*|0[xX][0-9A-Fa-f]+|[0-9]+#[0-9A-Za-z]+|\{[0-9]+\.\.[0-9]+\})")
_DIGITS_LEFT = re.compile(
    r"\$\{(?:#[A-Za-z0-9_@*]+(?:\[[@*]\])?"
    r"|[A-Za-z0-9_]+//\[[!^](?:0-9|\[:digit:\])\](?:/[0-9]*)?)\}"
)
"""A length, or a value from which all is taken that is no digit. An array's subscripts may be any text."""
_SHORTENED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?[-=+?]-?[0-9]*|[#%]+[^}]*|:(?![-=+?])[^}]*)?\}")
_OF_SHELLS = frozenset({"$#", "$?", "$$", "$!"})
_DATES = re.compile(r"(?:-u )?\+(?:%[-_0]?[sYmdHMSNjuwyCVUWGgkIl]|[-0-9 ])+")
_GREP_FLAGS = re.compile(r"-[cioEFGPxwhsqa]+")
_DIGIT_PATTERN = re.compile(r"\^?(?:\[0-9\]|\[\[:digit:\]\]|\\d)(?:\+|\*|\\\+)?\$?")
_COUNTERS: dict[str, str] = {
    "wc": r"(?: ?(?:-[clmwL]+|--(?:bytes|chars|lines|words)))*",
    "nproc": r"(?:--all)?",
    "id": r"-r?[ug]r?",
    "tr": r"(?:-cd|-dc|-d -c|-c -d) (?:0-9|\[:digit:\])",
    "sed": r"s/\[\^(?:0-9|\[:digit:\])\]\*?//g",
    "stat": r"(?:-c ?|--format=)%[sYXZWaugihbBd](?: [^-].*)?",
    "git": r"rev-list --count(?: [^-=\s][^=\s]*)*",
    "awk": r"\s*END\s*\{\s*print NR;?\s*\}\s*(?: [^-=\s][^=\s]*)*",  # a sum may be `inf`, which is a variable's name
    "cd": r"(?!-)[\w./-]+",
    "tput": r"cols|lines|colors",
    "getconf": r"_NPROCESSORS_ONLN|PAGE_?SIZE",
}
"""Programs that print only numbers, by what their arguments look like in one line; files that they read are named by
nothing that expands."""
_MAX_BYTES, _MAX_NESTED = 400, 16
"""Of a substitution that is looked into."""
_OPERATORS = words("+ - * / %")
_MARKS = frozenset('"()')
_SILENT = words("true false :")


def is_number_word(source: bytes, node: Node, is_number: IsNumber, functions: frozenset[str]) -> bool:
    """True if a word can only become a number. `functions` of the line may replace a program."""
    kind, text = node.type, text_of(source, node)
    if kind in {"number", "word", "raw_string", "string_content", "brace_expression"}:
        return _LITERAL.fullmatch(text.strip("'")) is not None
    if kind == "arithmetic_expansion" or text in _OF_SHELLS:
        return True
    if kind == "simple_expansion":
        return is_number(text[1:])
    if kind == "expansion":
        shortened = _SHORTENED.fullmatch(text)
        return _DIGITS_LEFT.fullmatch(text) is not None or (shortened is not None and is_number(shortened[1]))
    if kind == "command_substitution":
        return gives_numbers(source, node, is_number, functions)
    if kind in {"string", "concatenation", "array"}:
        parts = [one for one in node.children if one.type not in _MARKS]
        return all(is_number_word(source, one, is_number, functions) for one in parts)
    return False


def gives_numbers(source: bytes, node: Node, is_number: IsNumber, functions: frozenset[str]) -> bool:
    """True if the output of a substitution, or of a statement in one, is only numbers."""
    kind = node.type
    named = [child for child in node.children if child.is_named and child.type != "comment"]
    if node.end_byte - node.start_byte > _MAX_BYTES or source.count(b"(", node.start_byte, node.end_byte) > _MAX_NESTED:
        return False
    if kind in {"command_substitution", "list", "compound_statement", "subshell"}:
        return bool(named) and all(gives_numbers(source, one, is_number, functions) for one in named)
    if kind == "pipeline":
        return gives_numbers(source, named[-1], is_number, functions)
    if kind == "redirected_statement":
        body = node.child_by_field_name("body")
        return body is not None and gives_numbers(source, body, is_number, functions)
    if kind != "command":
        return False
    parts = [one for one in named if "redirect" not in one.type]
    name = text_of(source, parts[0])
    if name in functions or any(one.type == "variable_assignment" for one in parts):
        return False
    operands = parts[1:]
    if name == "expr":
        operands = [one for one in operands if text_of(source, one).strip("'\"\\") not in _OPERATORS]
    if name in {"echo", "seq"} or (name == "expr" and len(operands) < len(parts) - 1):
        return all(is_number_word(source, one, is_number, functions) for one in operands)
    return name in _SILENT or _counts(name, [read_word(text_of(source, one)).text for one in operands])


def _counts(name: str, texts: list[str | None]) -> bool:
    """True if a program with these arguments (None for an expansion) prints nothing but numbers."""
    known = [text for text in texts if text is not None]
    if known != texts:  # it may be an option, or several files, whose names are printed too
        return False
    spelled = " ".join(known)
    if name in {"grep", "date"}:
        return _greps(known) if name == "grep" else _DATES.fullmatch(spelled) is not None
    return name in _COUNTERS and re.fullmatch(_COUNTERS[name], spelled) is not None


def _greps(known: list[str]) -> bool:
    """True for `grep -c`, and `grep -o` with a pattern of digits, in one file."""
    options = [text for text in known if text.startswith("-")]
    flags = "".join(options)
    is_plain = all(map(_GREP_FLAGS.fullmatch, options)) and len(known) - len(options) <= 2
    is_digits = "o" in flags and any(map(_DIGIT_PATTERN.fullmatch, known))
    return is_plain and ("c" in flags or is_digits)


# Variables and functions that a construct of a line sets: one function over the grammar, one over the builtins. Whoever
# asks which names a line changes asks here: `Variables`, the walk over the tree, and the judge of arguments.


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BY_DEFAULT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?:?=")
_DESCRIPTOR = re.compile(rb"\{([A-Za-z_][A-Za-z0-9_]*)\}\Z")
_ASSIGNS = re.compile(rb"=|\+\+|--")
_MAX_DESCRIPTOR = 256
_FORMAT_SETS = re.compile(r"%(?:%|[^%A-Za-z]*(?:hh|h|ll|l|L|q|j|z|t)?([A-Za-z]))")


OF_ZSH = words(
    "zparseopts zformat zregexparse strftime sysread zstat zselect zpty ztcp zsystem pcre_match compadd zcurses"
)
"""Builtins of zsh's modules that set a variable which an option or an operand names."""


class Assigned(NamedTuple):
    """A variable that is set. `name` is None if known only at run time; `value` is the assigned word, None if it is not
    one word of the line; `is_number` if the construct assigns only numbers."""

    name: str | None
    value: Node | None = None
    is_number: bool = False
    is_function: bool = False


def assignments_of(source: bytes, node: Node) -> list[Assigned]:
    """Return the variables that a node of one of the `CONSTRUCTS` sets itself, without those of nested constructs."""
    found: list[Assigned] = []
    parts = evaluated_parts(source, node)
    match node.type:
        case "variable_assignment":
            target = node.children[0]
            name = _NAME.match(text_of(source, target))
            found.append(Assigned(name[0] if name else None, node.child_by_field_name("value")))
            parts = [target] if target.type == "subscript" else []
        case "for_statement":
            found += [Assigned(text_of(source, one)) for one in node.children if one.type == "variable_name"]
        case "function_definition":
            named = node.child_by_field_name("name")
            found += [] if named is None else [Assigned(text_of(source, named), is_function=True)]
        case "file_redirect" | "heredoc_redirect" | "herestring_redirect":
            # `{name}>file` puts the number of the descriptor into a variable.
            front = _DESCRIPTOR.search(source[max(node.start_byte - _MAX_DESCRIPTOR, 0) : node.start_byte])
            found += [Assigned(front[1].decode(), is_number=True)] if front else []
        case "expansion":
            by_default = _BY_DEFAULT.match(text_of(source, node))
            found += [Assigned(by_default[1])] if by_default else []
    return [*found, *(one for part in parts for one in _assignments_in_numbers(source, part))]


def _assignments_in_numbers(source: bytes, node: Node) -> list[Assigned]:
    if not _ASSIGNS.search(source, node.start_byte, node.end_byte):
        return []
    text = text_to_evaluate(source, node, lambda _: False)
    return [Assigned(name, is_number=True) for name in find_assignments(text)]


CONSTRUCTS = ARITHMETIC | words(
    "variable_assignment for_statement function_definition file_redirect heredoc_redirect herestring_redirect"
)
"""By type of node, for bash, POSIX's shells and zsh alike. `select` is a `for_statement` to the grammar, and `coproc` a
reserved word that is not read."""


ASSIGNING_BUILTINS = NAMING_BUILTINS | OF_ZSH | {"printf", "wait"}


def assignments_of_builtin(name: str, args: list[Word]) -> list[Assigned]:
    """Return the variables that a builtin sets by its arguments."""
    if name == "printf":
        return _assignments_of_printf(args)
    if name == "wait":
        first = args[0].prefix if args else ""
        return _name_words(args, first.removeprefix("-p")) if first.startswith("-p") else []
    if name in OF_ZSH:
        return _name_words([one for word in args for one in _both_sides(word)])
    return _name_words(args) if name in NAMING_BUILTINS else []


def _both_sides(word: Word) -> list[Word]:
    return [word] if word.text is None else [plain(part) for part in word.text.split("=")]


def _name_words(args: list[Word], joined: str = "") -> list[Assigned]:
    found: list[Assigned] = []
    for text in [*([joined] if joined else []), *(word.text for word in args)]:
        name = _NAME.match(text) if text is not None else None
        if text is None or name is not None:
            found.append(Assigned(name[0] if name else None))
    return found


def _assignments_of_printf(args: list[Word]) -> list[Assigned]:
    """`-v NAME`, and `%n`, which puts the number of characters so far into the variable that its argument names."""
    first = args[0].prefix if args else ""
    if first.startswith("-v"):
        return _name_words(args[1:2] if first == "-v" else [], first.removeprefix("-v"))
    if first == "--":
        args = args[1:]
    if not args:
        return []
    template = args[0].text
    if template is not None:
        sets = any(letter == "n" for letter in _FORMAT_SETS.findall(template))
        return [one._replace(is_number=True) for one in _name_words(args[1:])] if sets else []
    return _name_words([word for word in args[1:] if word.text is not None])

"""Places in a line that shells, or a shell and the grammar, read differently, or where text is evaluated as code.

The first functions look at one node each and return why the line cannot be decided, or None; they keep no state.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from policy import words
from policy.shell.arithmetic import OF_ZSH, arithmetic, assignments_of_builtin, comparison, counting_loop
from policy.shell.effects import judge_arguments, starts_another
from policy.shell.findings import note_assigned
from policy.shell.tables import BUILTINS_THAT_MATTER
from policy.shell.words import UNKNOWN, descendants, mask_parts, plain, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from policy.shell.findings import Findings

    Doubt = Callable[[bytes, Node], str | None]

DELIMITER = re.compile(r"(['\"]?)([A-Za-z_][A-Za-z0-9_]{0,63})\1")
_SUBSTITUTES = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$[({\[])")
_PARAMETER = r"(?:[A-Za-z0-9_]+|[@*#?$!-])"
_SUBSCRIPT = r"\[(?:[@*]|\$?[A-Za-z0-9_]+|\$\{[A-Za-z0-9_]+\})\]"
_OFFSET = r"(?:[ ]?-?(?:[0-9]+|\$?[A-Za-z_][A-Za-z0-9_]*|\$\{#?[A-Za-z0-9_]+\}))"
_PLAIN_EXPANSION = re.compile(
    r"\$\{(?:"
    rf"#?{_PARAMETER}(?:{_SUBSCRIPT})?\}}|![A-Za-z_][A-Za-z0-9_]*(?:\[[@*]\]|[@*])\}}"
    rf"|{_PARAMETER}(?:{_SUBSCRIPT})?(?::{_OFFSET}(?::{_OFFSET})?\}}|@[QULuKk]\}}"
    r"|:?[-+?]|(?<=[A-Za-z0-9_]):?=|%%?|##?|//?|/[#%]|\^\^?|,,?))"
)
"""An expansion, up to where its operand begins if it has one."""
# bash ends an expansion at the first brace that closes, whatever opened before it, and the grammar may end it later.
_PLAIN_OPERAND = re.compile(r"(?:[^{}\\'\"`$;&|<>()\n]|\\[\w/.:,*?#%+=~!^@\[\] -])*+\}", re.ASCII)
_QUOTED_OPERAND = re.compile(r'"[A-Za-z0-9_/.:,=+-]*"\}')
_INNER_EXPANSIONS = frozenset({"expansion", "simple_expansion", "command_substitution", "arithmetic_expansion"})
_PARTS_OF_WORDS = _INNER_EXPANSIONS | words("string raw_string ansi_c_string translated_string process_substitution")
_ANSI_C_STRING = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_ENDS_A_WORD = re.compile(r"(?<!\\)(?:\\\\)*[ \t\n;|&<>()]")
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTINUATION = re.compile(r"\\\n")
_ESCAPED_BLANK = re.compile(r"(?:^|[\s;|&(){}<>!`])\\[ \t\v\f]")
_DOLLARS = re.compile(rb"\$\$[{(\[`'$]|\$\\\n")
_UNUSUAL_SPACE = re.compile(r"[^\S \t\n]|[\ufeff\u200b\u2060]")
# Expansions


def _expansion(source: bytes, node: Node) -> str | None:
    if node.children[0].type != "${" or node.children[-1].type != "}":
        return "an expansion whose braces are not plain"
    begin = _PLAIN_EXPANSION.match(text_of(source, node))
    if begin is None:
        return "an expansion that assigns, evaluates or is indirect"
    if begin[0].endswith("}"):
        return None if begin.end() == node.end_byte - node.start_byte else "an expansion whose end is not plain"
    if _QUOTED_OPERAND.fullmatch(text_of(source, node), begin.end()):
        return None
    operand = mask_parts(source, node, _INNER_EXPANSIONS)[begin.end() :]
    return None if _PLAIN_OPERAND.fullmatch(operand) else "an expansion whose end is not plain"


def ends_early(source: bytes, node: Node) -> bool:
    """True if a word of the grammar contains a character that ends a word, outside of its quotes, expansions and
    substitutions."""
    if node.type in _PARTS_OF_WORDS:
        return False
    return _ENDS_A_WORD.search(mask_parts(source, node, _PARTS_OF_WORDS)) is not None


def _substitution(source: bytes, node: Node) -> str | None:
    # In a string the opening quote's token begins with the blanks in front of it.
    # A dollar in front of a backquote is one token with it, and means nothing.
    text = source[node.start_byte : node.end_byte].lstrip().removeprefix(b"$")
    if not text.startswith(b"`"):
        return None
    if b"\\" in text:
        return "backquotes with a backslash in them, which is read twice"
    # The shell looks for the end without regard to quotes.
    return "backquotes in backquotes" if b"`" in text[1:-1] else None


def _leaf(source: bytes, node: Node) -> str | None:
    """The grammar leaves patterns, words inside expansions and some here-documents unlooked into."""
    if node.named_children:
        return None
    text = text_of(source, node)
    if "<(" in text or ">(" in text:
        return "a process substitution where the grammar does not look"
    return _find_unread(text)


def _find_unread(text: str) -> str | None:
    if "`" not in text and "$" not in text:
        return None
    return "a substitution where the grammar does not look" if _SUBSTITUTES.search(text) else None


def _heredoc_body(source: bytes, node: Node) -> str | None:
    """The text that the grammar has skipped, because no child accounts for it."""
    parts = [child for child in node.named_children if child.type != "heredoc_content"]
    begins = [node.start_byte, *(child.end_byte for child in parts)]
    ends = [*(child.start_byte for child in parts), node.end_byte]
    skipped = (source[begin:end].decode() for begin, end in zip(begins, ends, strict=True))
    return next(filter(None, map(_find_unread, skipped)), None)


def heredoc_end(source: bytes, node: Node) -> str | None:
    """A here-document is data, as long as its end is where bash would see it."""
    parts = {child.type: child for child in node.children}
    start, body, end = (parts.get(f"heredoc_{name}") for name in ("start", "body", "end"))
    delimiter = DELIMITER.fullmatch(text_of(source, start)) if start else None
    if start is None or body is None or end is None or delimiter is None:
        return "a here-document whose delimiter is not plain"
    line_end = source.find(b"\n", start.end_byte)
    indent = "\t" if "<<-" in parts else ""
    text = source[line_end + 1 : end.end_byte].decode()
    lines = [line.lstrip(indent) for line in text.split("\n")]
    closed = source[end.end_byte : end.end_byte + 1] in {b"", b"\n"}
    if lines[-1] != delimiter[2] or delimiter[2] in lines[:-1] or not closed or line_end >= end.start_byte:
        return "a here-document whose end is not plain"
    if not delimiter[1] and _CONTINUATION.search(text):
        return "a here-document with continued lines"
    return None


# Tests, functions, comments


def _test(source: bytes, node: Node) -> str | None:
    bracket = node.children[0].type
    if not _is_followed_by_blank(source, node.children[0]):
        return f"{bracket} that is part of a longer word"
    if bracket == "[" and b"\n" in source[node.start_byte : node.end_byte]:
        return "[ over several lines, each of which is a command"
    if bracket == "[[":
        return next(filter(None, (comparison(source, one) for one in descendants(node))), None)
    return None


def _compound(source: bytes, node: Node) -> str | None:
    opening = node.children[0]
    if opening.type == "((":
        return arithmetic(source, node)
    return None if opening.type != "{" or _is_followed_by_blank(source, opening) else "{ that is part of a longer word"


def _check_translation(source: bytes, node: Node) -> str | None:
    """`$"a"` is replaced by its translation in a catalogue, and that is expanded."""
    # In a string the opening quote's token begins with the blanks in front of it.
    quote = source.find(b'"', node.start_byte)
    is_translated = source[quote - 1 : quote] == b"$" and source[quote - 2 : quote - 1] != b"\\"
    # With blanks between the two it is none, and what follows the blanks is a command's name.
    is_translated = is_translated or node.type == "translated_string"
    return "a string that is translated, which evaluates what a catalogue says" if is_translated else None


def _is_followed_by_blank(source: bytes, node: Node) -> bool:
    return source[node.end_byte : node.end_byte + 1] in {b" ", b"\t", b"\n"}


def _function(source: bytes, node: Node) -> str | None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is None or body is None or not _FUNCTION_NAME.fullmatch(text_of(source, name)):
        return "a function whose name is not plain"
    if body.type != "compound_statement" or body.children[0].type != "{":
        return "a function whose body is not in braces"
    if text_of(source, name) in BUILTINS_THAT_MATTER:
        return "a function in the place of a builtin"
    return None


def _gaps(_source: bytes, node: Node) -> str | None:
    """The grammar ignores blanks where the shell begins another word."""
    if node.parent is not None and node.parent.type == "c_style_for_statement":
        return None
    if any(left.end_byte != right.start_byte for left, right in pairwise(node.children)):
        return f"blanks inside of what is one word: {node.type}"
    return None


def _parts(_source: bytes, node: Node) -> bool:
    return any(
        left.type == "variable_assignment" and left.end_byte == right.start_byte and right.type not in _REDIRECTS
        for left, right in pairwise(node.children)
    )


def _comment(source: bytes, node: Node) -> bool:
    before = source[max(node.start_byte - 2, 0) : node.start_byte]
    return bool(before) and (before[-1:] not in b" \t\n;&|()" or before[:-1] == b"\\")


def _if(is_doubtful: Callable[[bytes, Node], bool], reason: str) -> Doubt:
    return lambda source, node: reason if is_doubtful(source, node) else None


DOUBTS: dict[str, Doubt] = {
    "expansion": _expansion,
    **dict.fromkeys(words("string translated_string"), _check_translation),
    # The grammar takes `\\'` for an escaped quote; to bash it is an escaped backslash and the end.
    "ansi_c_string": _if(
        lambda source, node: _ANSI_C_STRING.fullmatch(text_of(source, node)) is None,
        "a string with escapes whose end is not plain",
    ),
    "arithmetic_expansion": arithmetic,
    "command_substitution": _substitution,
    "heredoc_redirect": heredoc_end,
    "heredoc_body": _heredoc_body,
    "test_command": _test,
    "compound_statement": _compound,
    # After `!` and `time` the grammar sees two subshells where bash sees arithmetic.
    "subshell": _if(lambda source, node: source.startswith(b"((", node.start_byte), "(( that may be arithmetic"),
    "function_definition": _function,
    "c_style_for_statement": counting_loop,
    "comment": _if(_comment, "a comment whose start is not plain"),
    "negated_command": _if(
        lambda source, node: not _is_followed_by_blank(source, node.children[0]), "! that is part of a longer word"
    ),
    **dict.fromkeys(words("command variable_assignments"), _if(_parts, "an assignment whose end is not plain")),
    **dict.fromkeys(words("concatenation variable_assignment simple_expansion"), _gaps),
    **dict.fromkeys(words("word regex extglob_pattern"), _leaf),
}


def is_swollen(source: bytes, token: Node) -> bool:
    """True if a token's text differs from its type: a token may swallow the word before it."""
    return not token.children and text_of(source, token).lstrip(" \t") not in {token.type, "$$"}


def spaces(source: bytes, quoted: list[tuple[int, int]], literal: list[tuple[int, int]]) -> list[str]:
    """bash joins continued lines where the grammar sees a blank, and knows fewer blanks than the grammar does. `quoted`
    ranges do not count; `literal` are those in single quotes, in which `$$` means nothing."""
    if source.isascii() and not any(mark in source for mark in (b"\\", b"$$")):
        return []
    text = _mask(source, quoted).decode("utf-8", "replace")
    reasons = ["a blank that the shell does not take for one"] if _UNUSUAL_SPACE.search(text) else []
    if any(text[max(match.start() - 1, 0)] not in " \t;&|" for match in _CONTINUATION.finditer(text)):
        reasons.append("a word continued on the next line")
    if _ESCAPED_BLANK.search(text):
        reasons.append("an escaped blank at the start of a word, which the grammar passes over")
    if _DOLLARS.search(_mask(source, literal)):
        reasons.append("$$ or a continued line in front of what may be an expansion")
    return reasons


def _mask(source: bytes, spans: list[tuple[int, int]]) -> bytearray:
    masked = bytearray(source)
    for start, end in spans:
        masked[start:end] = b"." * (end - start)
    return masked


# Plain sh: dash and ash read these as something else


_BASH_NODES = frozenset({"ansi_c_string", "array"})
_BASH_TOKENS = words("function [[ (( $[ &> &>> |& <<< ;& ;;& += select <( >(")
_BASH_QUOTES = re.compile(r"\$['\"]")
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect"})


def not_posix(source: bytes, node: Node) -> str | None:
    """Why a plain sh would read this node in another way than bash does."""
    kind = node.type
    if kind in _BASH_NODES or any(child.type in _BASH_TOKENS for child in node.children):
        return f"a construct of bash, which sh reads differently: {kind}"
    if kind == "variable_assignment" and node.children[0].type == "subscript":
        return "a construct of bash, which sh reads differently: an element of an array"
    if kind in _REDIRECTS and source[node.start_byte - 1 : node.start_byte] == b"}":
        return "a construct of bash, which sh reads differently: a variable for a file descriptor"
    follows_dollar = kind in {"string", "raw_string"} and source[node.start_byte - 1 : node.start_byte] == b"$"
    is_word = DOUBTS.get(kind) is _leaf
    if follows_dollar or (is_word and _BASH_QUOTES.search(text_of(source, node))):
        return "a construct of bash, which sh reads differently: quotes after $"
    return None


# Shells that read a line differently from bash.
#
# cmd.exe and PowerShell have a conservative splitter: anything that could mean more than one plain command is dynamic.
#
# zsh is read by bash's tree, so text that zsh reads differently is undecidable.
#
# Single quotes mean the same in both and hide everything in them. The rest may have expansions of plain variables,
# command substitutions, plain patterns and tests; subscripts, modifiers, flags, glob qualifiers, `=name`, brace forms
# and here-documents may be code to zsh and are not examined.


_META = {
    "cmd": re.compile(r"[&|<>^%!()@\r\n\x00-\x08\x0b-\x1f\x7f]"),
    "powershell": re.compile(r"[&|<>;$`(){}@#\r\n\x00-\x08\x0b-\x1f\x7f‘’‚‛“”„–—―]|--%"),
}
_UNUSUAL_BLANK = re.compile(r"[^\S \t]")
_TOKEN = re.compile(r'\s*((?:[^\s"\']|"[^"]*"|\'[^\']*\')+)')
_PROGRAM = re.compile(r"(?:[A-Za-z]:)?[A-Za-z0-9_.\\/+-]+")
_EXTENSION = re.compile(r"\.(?:exe|cmd|bat|com|ps1)$", re.IGNORECASE)
_RUNNERS = words(
    "call start for forfiles if runas invoke-expression iex invoke-command icm start-process "
    "saps invoke-item ii wscript cscript mshta rundll32 regsvr32 msiexec wmic schtasks new-alias "
    "set-alias sal nal set-item si set-variable sv import-module ipmo add-type set path doskey assoc ftype reg "
    "invoke-wmimethod iwmi invoke-cimmethod start-job sajb foreach-object foreach where-object where . return exit "
    "throw using trap new-psdrive ndr register-objectevent register-scheduledjob enter-pssession nsn new-pssession "
    "conhost pcalua msbuild installutil cmstp odbcconf psexec explorer wt hh control setlocal "
    "setx subst invoke-history ihy r import-alias ipal new-service start-service sasv"
)
_INTERNAL = words(
    "assoc break call cd chdir cls color copy date del dir dpath echo endlocal erase exit for ftype goto if keys md "
    "mkdir mklink move path pause popd prompt pushd rd rem ren rename rmdir set setlocal shift start time title type "
    "ver verify vol"
)
"""cmd's own commands. Many marks may follow their names without a blank, and are no part of them: `del/q`, `echo.x`."""
_NAME_END = re.compile(r"[^A-Za-z0-9_-]")
_UNLIKE_POSIX = _INTERNAL | words("more find sort timeout")
"""Programs that only share a name with one of POSIX."""
CMD_ALIASES = {"erase": "del", "rd": "rmdir", "md": "mkdir", "chdir": "cd", "ren": "rename"}
ALIASES = {alias: name for name, aliases in {
    "remove-item": "rm ri del erase rd rmdir", "get-childitem": "ls dir gci", "get-content": "cat gc type",
    "copy-item": "cp copy cpi", "move-item": "mv move mi", "rename-item": "ren rni", "write-output": "echo write",
    "set-location": "cd chdir sl", "push-location": "pushd", "pop-location": "popd", "get-location": "pwd gl",
    "invoke-webrequest": "curl wget iwr", "invoke-restmethod": "irm", "stop-process": "kill spps",
    "get-process": "ps gps", "set-content": "sc", "add-content": "ac", "clear-content": "clc", "clear-item": "cli",
    "clear-itemproperty": "clp", "new-item": "ni md mkdir", "get-item": "gi", "get-itemproperty": "gp",
    "set-itemproperty": "sp", "remove-itemproperty": "rp", "rename-itemproperty": "rnp", "copy-itemproperty": "cpp",
    "move-itemproperty": "mp", "remove-psdrive": "rdr", "select-string": "sls", "stop-service": "spsv",
    "get-service": "gsv", "get-wmiobject": "gwmi", "remove-wmiobject": "rwmi", "set-wmiinstance": "swmi",
    "export-csv": "epcsv", "import-csv": "ipcsv", "tee-object": "tee", "start-sleep": "sleep", "sort-object": "sort",
    "compare-object": "diff compare", "clear-host": "cls clear", "get-help": "man help", "get-command": "gcm",
    "get-alias": "gal", "get-history": "h history", "set-clipboard": "scb", "get-clipboard": "gcb",
    "remove-variable": "rv", "get-variable": "gv", "new-psdrive": "mount",
}.items() for alias in aliases.split()}  # fmt: skip
"""PowerShell's own names for its commands, so that a block list meets them under either."""
_SINGLE = re.compile(r"""(\\.|"(?:\\.|[^"\\$`]|\$(?!\())*"|"[\s\S]*)|'[^']*'""", re.DOTALL)
"""Text to keep, or a single-quoted text. Everything after double quotes with a substitution in them is kept."""
_EXPANDS_IN_STRING = re.compile(r"\\.|\$\w*[^\w\s]?", re.DOTALL)
"""Expansions in a double-quoted text without substitutions, each with the character that decides how."""
_SAME = re.compile(
    r"\$[A-Za-z_][A-Za-z0-9_]*(?![A-Za-z0-9_\[:])"  # a variable, without subscript or modifier
    r"|\$[?](?![\[:])"
    r"|\$\((?!\()"  # a command substitution
    r"|(?<![^\s;&|(])\[(?=\s)|(?<=\s)\](?![^\s;&|)])"  # test
    r"|(?<![^\s;&|(])~(?=/)"
    r"|(?<=[A-Za-z0-9_-])=(?!=)"  # an assignment, an option's value
    r"|(?<![^\s;&|(])!=?(?=\s)"
    r"|[*?](?![*?(])"
)
_NUMBERS = re.compile(
    r"(?:^|[\s;&|(])(?:LINES|COLUMNS|KEYTIMEOUT|LISTMAX|FUNCNEST|DIRSTACKSIZE|LOGCHECK|ERRNO|BAUD|PERIOD|TTYIDLE|SHLVL)"
    r"\+?=(?![0-9]*(?:[\s;&|)]|$))"
)
"""Assignments of anything else than digits to what zsh keeps as a number."""
_NUMERIC_TESTS = words("-eq -ne -lt -le -gt -ge -t")
_NUMERIC_FORMAT = re.compile(r"%[^%A-Za-z]*[^%bcqs(]")
_EVALUATES = words("exit return break continue shift logout bye print zformat zregexparse")
_EVALUATED_FURTHER = re.compile(r"\[|=|\+\+|--|\A(?:.*[^A-Za-z0-9_])?[A-Za-z_]", re.DOTALL)
"""In an argument that is evaluated: a subscript, an assignment, or a variable, whose text is evaluated in turn."""
_CLOBBERS = re.compile(r">&[!|]")
_OWN = re.compile(r"[({}*?\[\]^#~!$`=]")


def split(command: str, shell: str, found: Findings) -> None:
    """Notes the one command of a plain line, and why the line can't be judged. Quotes are removed around whole runs."""
    pieces = _pieces(command, found)
    if _META[shell].search(command) or _UNUSUAL_BLANK.search(command):
        found.misread(f"a character that {shell} gives a meaning to")
    if not pieces:
        return
    program = pieces[0]
    arguments = [word.replace('"', "").replace("'", "") for word in pieces[1:]]
    found.commands.append((program, tuple(arguments)))
    base = base_name(program)
    if not _PROGRAM.fullmatch(program) or (shell == "cmd" and _runs_on(program)):
        found.undecidable("the program's name is not spelled plainly")
    words = [plain(word) for word in arguments]
    is_find = base == "find" and "-exec" in arguments
    if base in _RUNNERS or is_find or (base not in _UNLIKE_POSIX and starts_another(base, words)):
        found.undecidable(f"{program} runs other commands or changes what they mean")
    if shell == "cmd" and any("'" in word for word in pieces):
        found.undecidable("single quotes mean nothing to cmd")
    if base not in _UNLIKE_POSIX:
        judge_arguments(program, words, found, base)


def base_name(program: str) -> str:
    """The name without directory and extension, in lower case."""
    name = re.split(r"[\\/]", program)[-1]
    return _EXTENSION.sub("", name).lower()


def _pieces(command: str, found: Findings) -> list[str]:
    pieces: list[str] = []
    place, stripped = 0, command.rstrip()
    while match := _TOKEN.match(stripped, place):
        pieces.append(match[1])
        place = match.end()
    if place < len(stripped):
        found.undecidable("quotes are not balanced")
    return pieces


def _runs_on(program: str) -> bool:
    """True if cmd reads a command of its own, and the rest of the word as its argument."""
    head = _NAME_END.split(program, maxsplit=1)[0].lower()
    return head in _INTERNAL and _EXTENSION.sub("", program).lower() != head


def note_zsh_differences(text: str, found: Findings) -> None:
    """Notes what zsh may read in another way than bash does."""
    # Read from the left, quotes are real up to a comment, a here-document or the like, which stays visible.
    bare = _SINGLE.sub(lambda match: _visible_part(match[1] or ""), text)
    if _OWN.search(_SAME.sub(" ", bare)) or "<<" in bare or _CLOBBERS.search(bare):
        found.undecidable("a character that zsh reads differently")
    if _NUMBERS.search(text):
        found.undecidable("a number that zsh evaluates")


def _numbers_in(name: str | None, arguments: tuple[str | None, ...]) -> list[str | None]:
    if name in {"test", "["}:
        places = [place for place, one in enumerate(arguments) if one in _NUMERIC_TESTS]
        return [one for at in places for one in (*arguments[max(at - 1, 0) : at], *arguments[at + 1 : at + 2])]
    if name == "print" and not any(one is not None and re.match(r"-\w*[uCf]", one) for one in arguments):
        return [one for one in arguments if one is None or "[" in one]
    return list(arguments[1:] if name == "printf" else arguments)


def _visible_part(text: str) -> str:
    """Return the part of a quoted or escaped text that zsh reads: the expansions of double quotes."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"' or "$(" in text or "`" in text:
        return text or "."
    return f'"{"".join(one for one in _EXPANDS_IN_STRING.findall(text[1:-1]) if one[0] == "$")}"'


def note_zsh_arguments(name: str | None, arguments: tuple[str | None, ...], found: Findings) -> None:
    """Notes where zsh takes a command's arguments in another way than bash: its builtins evaluate what bash's take for
    plain numbers, and a subscript in one runs substitutions; its `time` has no options, so the next word is started."""
    if name in OF_ZSH:
        read = [UNKNOWN if one is None else plain(one) for one in arguments]
        note_assigned(assignments_of_builtin(name, read), b"", found)
    first = arguments[0] if arguments else ""
    if name == "time" and (not first or first.startswith("-")):
        found.undecidable("time without a plain command after it")
    if name == "print" and any(one is None or (one.startswith("-") and "v" in one) for one in arguments):
        found.undecidable("print may set a variable in zsh")
    if name in {"test", "["}:
        evaluates = any(one in _NUMERIC_TESTS for one in arguments)
    elif name == "printf":
        evaluates = first is None or _NUMERIC_FORMAT.search(first) is not None
    else:
        evaluates = name in _EVALUATES
    if evaluates and any(one is None or _EVALUATED_FURTHER.search(one) for one in _numbers_in(name, arguments)):
        found.undecidable(f"{name} evaluates numbers in zsh")

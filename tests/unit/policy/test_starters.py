"""Programs that start what the line does not show: who lists one consents to that, unless its entry says otherwise."""

from __future__ import annotations

from typing import Any

from policy import words
from policy.decide import check_tool
from policy.facts import CommandFacts
from policy.shell import parse
from tests.support.rows import each_row

from .helpers import NOW, bundle, shell

LISTED = sorted(
    words(
        "env sh bash python python3.11 pypy3 perl ruby node nodejs php lua5.4 Rscript julia make gmake ninja cmake "
        "just task rake gradle ./gradlew mvn ant meson tox nox invoke pre-commit npm yarn pnpm bun deno pip3 uv poetry "
        "cargo go dotnet docker sqlite3 hyperfine pytest corepack source . less vim ssh echo curl"
    )
)

HIDES = [
    "source .venv/bin/activate",
    ". ./x",
    "less a",
    "vim a",
    "ssh host ls",
    "echo $X | sh",
    "curl x | bash",
    'sh <<< "$X"',
    'sh -c "$X"',
    'bash -ec "$(curl x)"',
    "bash",
    "bash -s",
    "bash -x a.sh b",
    "bash a.sh -c x",
    'sh "$X"',
    "python a.py",
    "python -m pytest -q",
    "python -m pip list",
    "ruby -w a.rb",
    "npm ls",
    "go build ./...",
    "python -c 'print(1)'",
    "python3.11 -Ic x",
    "python -",
    "python",
    "python -i a.py",
    "python -u",
    "python -X importtime -c x",
    "python -W error -bc x",
    "python -m timeit x",
    "python -mtimeit x",
    "python -Im pdb a.py",
    "python -m $X",
    "python $X",
    'python "$X"',
    "python /dev/stdin",
    "python /dev/fd/3",
    "python --unknown x -c y",
    "python -m tox",
    "python -m pip install -c constraints.txt x",
    "python3.11 -m pip --require-virtualenv install x",
    "python -mpip install x",
    "python -W error -m pip._internal install x",
    "python -m poetry install",
    "python -m pipenv sync",
    "python -m uv sync",
    "python -m hatch build",
    "python -m pipx install x",
    "python -m dotenv x",
    "python -m honcho start",
    "python -m xonsh",
    "python -m debugpy a.py",
    "python -m ansible localhost",
    "python -m build",
    "python -m watchdog.watchmedo shell-command",
    "pypy3 -c x",
    "perl -e x",
    "perl -lane x",
    "perl -i.bak -pe x a",
    "perl -Mstrict a.pl",
    "perl -d a.pl",
    "ruby -e x",
    "ruby -ne x",
    "node -e x",
    "node -pe x",
    "node --eval=x",
    "node --import=data:text/javascript,x a.js",
    "node --run build",
    "node",
    "nodejs -p x",
    "php -r x",
    "php -d auto_prepend_file=x a.php",
    "lua5.4 -e x",
    "Rscript -e x",
    "julia -e x",
    "bash a.sh",
    "sh ./a.sh x",
    "make",
    "make test",
    "gmake -j4",
    "make -E x",
    "ninja -C out",
    "cmake --build .",
    "cmake -E env evil",
    "cmake -P x",
    "just build",
    "task x",
    "rake",
    "gradle build",
    "./gradlew build",
    "mvn -q test",
    "ant",
    "meson compile",
    "tox -e py311",
    "nox",
    "invoke x",
    "pre-commit run",
    "npm run x",
    "npm test",
    "npm t",
    "npm start",
    "npm stop",
    "npm restart",
    "npm install",
    "npm install-test",
    "npm ci",
    "npm i x",
    "npm explore x",
    "npm audit fix",
    "npm audit --json fix",
    "npm audit $X",
    "npm --prefix x run y",
    "npm $X",
    "npm pack",
    "npm rum x",
    "yarn",
    "yarn build",
    "yarn run x",
    "pnpm build",
    "pnpm install",
    "pnpm -r test",
    "bun x.ts",
    "bun test",
    "deno task x",
    "pip3 install x",
    "pip3 wheel .",
    "pip3 --python x list",
    "uv sync",
    "uv pip install x",
    "poetry install",
    "cargo run",
    "cargo test",
    "cargo build",
    "cargo anything",
    "cargo +nightly build",
    "go run .",
    "go generate ./...",
    "go test ./...",
    "go tool x",
    "dotnet build",
    "docker run x",
    "sqlite3 a.db '.shell x'",
    "hyperfine 'a b'",
    "corepack yarn build",
]
SHOWS = [
    "python --version",
    "python -V",
    "node -v",
    "make --version",
    "npm --version",
    "npm exec -- grep -q x",
    "uv run grep -q x",
    "uv run --frozen grep",
    "poetry run grep",
    "bash -c 'grep -q x'",
    "bash -lc 'grep -q x'",
    "env CI=1 grep",
]


def strict(*programs: str) -> list[dict[str, Any]]:
    return [{"command": one, "startsPrograms": False} for one in programs]


@each_row("command", HIDES)
def test_who_lists_a_program_consents_to_what_it_starts(command: str) -> None:
    assert parse(command, "bash").opaque
    assert shell(command, allowedCommands=LISTED) == "ALLOWED"
    assert shell(command, blockedCommands=["shred"]) == "ALLOWED"
    assert shell(command, allowedCommands=LISTED, blockedCommands=["shred"]) == "ALLOWED"


@each_row("command", HIDES)
def test_an_entry_that_says_so_keeps_it_from_starting_them(command: str) -> None:
    (program,) = {one.program for one in parse(command, "bash").opaque}
    every: tuple[dict[str, Any], ...] = ({"allowedCommands": LISTED}, {"blockedCommands": ["shred"]}, {})
    for lists in every:
        assert shell(command, **lists, commandPolicies=strict(program)) == "DENIED"
        assert shell(command, **lists, commandPolicies=strict("other")) == "ALLOWED"


@each_row("command", SHOWS)
def test_what_the_line_shows_is_allowed_by_the_strictest_list(command: str) -> None:
    listed = [*LISTED, "grep"]
    assert shell(command, allowedCommands=listed, commandPolicies=strict(*listed)) == "ALLOWED"


@each_row(
    ("command", "expected"),
    [
        ("make test", "ALLOWED"),
        ("cd sub && make", "ALLOWED"),
        ("env A=1 make", "ALLOWED"),
        ("./make", "DENIED"),
        ("bash -c 'make x'", "ALLOWED"),
        ("bash -c 'make; evil'", "DENIED"),
        ("make $(evil)", "DENIED"),
        ("make `python -c x`", "DENIED"),
        ("make | evil", "DENIED"),
        ("timeout 5 evil", "DENIED"),
        ("uv run evil", "DENIED"),
    ],
)
def test_another_program_that_shows_has_to_be_listed_too(command: str, expected: str) -> None:
    assert shell(command, allowedCommands=["make", "env", "cd", "bash", "timeout", "uv"]) == expected


@each_row(
    "command",
    [
        'env "$X"',
        "timeout 5 $X",
        "timeout 5 $(echo make)",
        "find . -exec {} +",
        "sudo $X",
        'eval "$(ssh-agent)"',
        "eval $X",
        "echo evil | xargs sh",
        "echo evil | xargs sh -c",
        "bash $X evil",
        "bash -c $X evil",
        "fish -c evil",
    ],
)
def test_what_is_not_shown_passes_behind_no_wrapper(command: str) -> None:
    listed = ["env", "timeout", "find", "sudo", "eval", "xargs", "sh", "bash", "echo", "make", "ssh-agent", "fish"]
    assert shell(command, allowedCommands=listed) == "DENIED"


def test_the_entry_of_a_program_holds_wherever_the_program_is() -> None:
    for command in ("make", "/usr/bin/make x", "gmake", "MAKE", "env A=1 make", "bash -c 'ls; make'"):
        listed = ["make", "/usr/bin/make", "gmake", "MAKE", "env", "bash", "ls"]
        assert shell(command, allowedCommands=listed, commandPolicies=strict("make")) == "DENIED"


@each_row(
    ("command", "expected"),
    [
        ("hg log", "ALLOWED"),
        ("hg bisect --good", "ALLOWED"),
        ("hg --config=x log", "DENIED"),
        ("hg --conf x log", "DENIED"),
        ("hg bisect -c evil", "DENIED"),
        ("hg bisect --command evil", "DENIED"),
        ("hg merge -t evil", "DENIED"),
        ("hg merge --tool evil", "DENIED"),
        ("hg clone -e evil a", "DENIED"),
        ("hg clone --ssh evil a", "DENIED"),
        ("hg clone --remotecmd evil a", "DENIED"),
        ("hg --debugger log", "DENIED"),
        ("npm version patch --git-tag-version=false", "ALLOWED"),
        ("npm version patch --git evil", "DENIED"),
        ("go test ./...", "ALLOWED"),
        ("go env -w CC=evil", "DENIED"),
        ("go env --w CC=evil", "DENIED"),
        ("r2 a", "DENIED"),
        ("r a", "ALLOWED"),
    ],
)
def test_what_it_starts_is_still_not_what_an_option_names(command: str, expected: str) -> None:
    listed = ["hg", "npm", "go", "r", "r2"]
    policies = [{"command": one, "startsPrograms": True} for one in listed]
    assert shell(command, allowedCommands=listed, commandPolicies=policies) == expected


STARTS: dict[str, Any] = {"command": "make", "startsPrograms": True}


def test_it_narrows_like_any_other_entry_and_admits_no_program() -> None:
    assert shell("make x", allowedCommands=["ls"], commandPolicies=[STARTS]) == "DENIED"
    one = {**STARTS, "subcommands": ["test"]}
    assert shell("make test", allowedCommands=["make"], commandPolicies=[one]) == "ALLOWED"
    assert shell("make x", allowedCommands=["make"], commandPolicies=[one]) == "DENIED"
    assert shell("make $X", allowedCommands=["make"], commandPolicies=[one]) == "DENIED"
    assert shell("make $X", allowedCommands=["make"], commandPolicies=[STARTS]) == "ALLOWED"


def test_entries_of_old_bundles_still_load() -> None:
    for entry in ({"command": "make"}, STARTS):
        assert shell("make", allowedCommands=["make"], commandPolicies=[entry]) == "ALLOWED"


def test_every_entry_of_a_program_has_to_pass() -> None:
    more = {"command": "make", "maxArguments": 1}
    for policies in ([STARTS, more], [more, STARTS]):
        assert shell("make a", allowedCommands=["make"], commandPolicies=policies) == "ALLOWED"
        assert shell("make a b", allowedCommands=["make"], commandPolicies=policies) == "DENIED"


def test_the_denial_says_which_program_and_by_which_entry() -> None:
    held = bundle({"name": "Shell.Exec", "allowedCommands": ["make"], "commandPolicies": strict("make")})
    told = check_tool(held, "Shell.Exec", CommandFacts("make", cwd="/w"), now=NOW)
    assert told.reason == (
        "make starts what the line does not show: the commands of its build files; that is not permitted for make"
    )
    assert told.rule == "capabilities[Shell.Exec].commandPolicies: make, startsPrograms: false"

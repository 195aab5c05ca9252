"""Programs that start what the line does not show: denied where a list decides, unless the bundle lets them."""

from __future__ import annotations

from typing import Any

import pytest

from policy.commands import parse
from policy.names import words

from .helpers import bundle_json, shell

LISTED = sorted(
    words(
        "env sh bash python python3.11 pypy3 perl ruby node nodejs php lua5.4 Rscript julia make gmake ninja cmake "
        "just task rake gradle ./gradlew mvn ant meson tox nox invoke pre-commit npm yarn pnpm bun deno pip3 uv poetry "
        "cargo go dotnet docker sqlite3 hyperfine pytest corepack"
    )
)

HIDES = [
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
    "python <(ls)",
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
    "ninja -v",
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
    "go env -w CC=x",
    "dotnet build",
    "docker run x",
    "sqlite3 a.db '.shell x'",
    "hyperfine 'a b'",
    "corepack yarn build",
]
SHOWS = [
    "python a.py",
    "python a.py -c x",
    "python -u -X utf8 a.py -",
    "python ./$X.py",
    "python -m pytest -c a.ini -k 'a and b'",
    "python -m pip list",
    "python -m poetry run pytest -q",
    "python -X utf8 -m pip show x",
    "python -m unittest discover -q",
    "python -m http.server",
    "python --version",
    "python -V",
    "perl a.pl -e x",
    "perl -wT a.pl",
    "ruby -w a.rb -e",
    "node a.js -e x",
    "node --test",
    "node --max-old-space-size=4096 a.js",
    "node -v",
    "php a.php",
    "lua5.4 a.lua",
    "julia a.jl",
    "pytest -q",
    "make --version",
    "npm ls --depth 0",
    "npm view x version",
    "npm audit --json",
    "npm config get registry",
    "npm exec -- pytest -q",
    "npm --version",
    "pnpm why x",
    "pip3 list",
    "pip3 show -f x",
    "uv pip list",
    "uv run pytest -q",
    "uv run --frozen python a.py",
    "poetry run pytest",
    "cargo add x",
    "go build ./...",
    "go vet ./...",
    "go env GOPATH",
    "go get -u x",
    "bash -c 'pytest -q'",
    "env A=1 python a.py",
]


@pytest.mark.parametrize("command", HIDES)
def test_what_the_line_does_not_show_is_denied_where_a_list_decides(command: str) -> None:
    parsed = parse(command, "bash")
    assert parsed.opaque
    assert shell(command, allowedCommands=[*LISTED, "ls"]) == "DENIED"
    assert shell(command, blockedCommands=["evil"]) == "DENIED"
    assert shell(command, commandPolicies=[{"command": "ls", "maxArguments": 1}]) == "DENIED"


@pytest.mark.parametrize("command", SHOWS)
def test_what_the_line_shows_is_allowed_by_either_list(command: str) -> None:
    assert shell(command, allowedCommands=LISTED) == "ALLOWED"
    assert shell(command, blockedCommands=["evil"]) == "ALLOWED"


def test_without_a_list_it_is_left_to_approval() -> None:
    assert shell("make") == "ALLOWED"
    assert shell("python -c x", requiresApproval=True) == "APPROVAL_REQUIRED"


STARTS: dict[str, Any] = {"command": "make", "startsPrograms": True}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("make test", "ALLOWED"),
        ("cd sub && make", "ALLOWED"),
        ("env A=1 make", "ALLOWED"),
        ("make; python -c x", "DENIED"),
        ("./make", "DENIED"),
        ("MAKE", "DENIED"),
        ("bash -c 'make x'", "ALLOWED"),
        ("make $(evil)", "DENIED"),
        ("make `python -c x`", "DENIED"),
        ("make | evil", "DENIED"),
    ],
)
def test_the_entry_of_that_very_program_lets_it_start_what_it_starts(command: str, expected: str) -> None:
    listed = ["make", "./make", "MAKE", "python", "env", "cd", "bash"]
    assert shell(command, allowedCommands=listed, commandPolicies=[STARTS]) == expected


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sh a.sh", "ALLOWED"),
        ("sh a.sh -x +x", "ALLOWED"),
        ("sh -x a.sh", "DENIED"),
        ("sh +x a.sh", "DENIED"),
        ("sh ~/a.sh", "DENIED"),
        ("sh -s a.sh", "DENIED"),
        ("sh", "DENIED"),
    ],
)
def test_a_shell_may_be_let_start_a_script_that_is_named(command: str, expected: str) -> None:
    assert shell(command, allowedCommands=["sh"], commandPolicies=[{**STARTS, "command": "sh"}]) == expected


def test_it_narrows_like_any_other_entry_and_admits_no_program() -> None:
    assert shell("make x", allowedCommands=["ls"], commandPolicies=[STARTS]) == "DENIED"
    one = {**STARTS, "subcommands": ["test"]}
    assert shell("make test", allowedCommands=["make"], commandPolicies=[one]) == "ALLOWED"
    assert shell("make x", allowedCommands=["make"], commandPolicies=[one]) == "DENIED"
    assert shell("make $X", allowedCommands=["make"], commandPolicies=[one]) == "DENIED"
    assert shell("make $X", allowedCommands=["make"], commandPolicies=[STARTS]) == "ALLOWED"


def test_an_entry_that_does_not_say_so_lets_it_start_nothing() -> None:
    for entry in ({"command": "make"}, {"command": "make", "startsPrograms": False}):
        assert shell("make", allowedCommands=["make"], commandPolicies=[entry]) == "DENIED"


def test_every_entry_of_a_program_has_to_pass() -> None:
    more = {"command": "make", "maxArguments": 1}
    for policies in ([STARTS, more], [more, STARTS]):
        assert shell("make a", allowedCommands=["make"], commandPolicies=policies) == "ALLOWED"
        assert shell("make a b", allowedCommands=["make"], commandPolicies=policies) == "DENIED"


def test_a_block_list_cannot_see_into_it_whatever_the_entry_says() -> None:
    for blocked in (["rm"], ["make"]):
        assert shell("make", allowedCommands=["make"], blockedCommands=blocked, commandPolicies=[STARTS]) == "DENIED"


def test_the_denial_says_which_program_and_what_would_help() -> None:
    from policy.bundle import bundle_from_trusted
    from policy.check import check_tool
    from policy.facts import CommandFacts

    from .helpers import NOW

    held = bundle_from_trusted(bundle_json({"name": "Shell.Exec", "allowedCommands": ["make"]}))
    told = check_tool(held, "Shell.Exec", CommandFacts("make", cwd="/w"), now=NOW)
    assert "make starts what the line does not show: the commands of its build files" in told.reason
    assert "startsPrograms" in told.reason
    assert told.rule == "capabilities[Shell.Exec].allowedCommands"

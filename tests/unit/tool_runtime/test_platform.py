from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rows import each_row
from tool_runtime.families import DESKTOP, ELSEWHERE
from tool_runtime.files import spell
from tool_runtime.platform import posix, windows
from tool_runtime.platform.directories import is_local, kind_of
from tool_runtime.platform.environment import child_environment, looks_secret
from tool_runtime.tool import FaultKind, ToolFault

SECRET_NAMES = """
GITHUB_TOKEN GH_TOKEN TOKEN NPM_AUTH_TOKEN LLM_GATEWAY_AUTH_TOKEN CLIENT_SECRET SECRET_KEY AWS_SECRET_ACCESS_KEY
AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN OPENAI_API_KEY APIKEY db_password PGPASSWORD MYSQL_ROOT_PASSWD SSH_PRIVATE_KEY
GOOGLE_CREDENTIALS DB_PASS GITLAB_PAT SESSION_COOKIE GPG_PASSPHRASE STRIPE_SECRETS
OTEL_EXPORTER_OTLP_HEADERS OTEL_EXPORTER_OTLP_TRACES_HEADERS
"""
PLAIN_NAMES = """
PATH HOME PWD OLDPWD SHELL LANG TERM TOKENIZERS_PARALLELISM SSH_AUTH_SOCK GIT_AUTHOR_NAME COMPASS PATTERN KEYBOARD
MAX_TOKENS_PER_CALL VIRTUAL_ENV PYTHONPATH XAUTHORITY
"""


@each_row("name", SECRET_NAMES.split())
def test_names_that_look_like_secrets(name: str) -> None:
    assert looks_secret(name)


@each_row("name", PLAIN_NAMES.split())
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


def test_child_environment_compares_without_case_and_secret_wins() -> None:
    environ = {"Api_Key": "1", "Mine": "2", "PATH": "3", "GH_TOKEN": "4"}
    shown = child_environment(environ, secret=frozenset({"MINE"}), passthrough=frozenset({"gh_token", "mine"}))
    assert {name: shown.get(name) for name in environ} == {"Api_Key": None, "Mine": None, "PATH": "3", "GH_TOKEN": "4"}


@pytest.mark.parametrize(
    ("allowed", "kept"),
    [
        (None, {"PATH", "LC_ALL", "CI_JOB", "ci_lower", "CC", "OTHER", "NPM_TOKEN"}),
        (frozenset[str](), {"PATH", "LC_ALL", "NPM_TOKEN"}),
        (frozenset({"CI_*", "cc"}), {"PATH", "LC_ALL", "CI_JOB", "ci_lower", "CC", "NPM_TOKEN"}),
        (frozenset({"GH_TOKEN", "BASH_ENV", "MINE"}), {"PATH", "LC_ALL", "NPM_TOKEN"}),
    ],
)
def test_with_a_list_only_its_variables_and_the_basic_ones_are_taken_over(
    allowed: frozenset[str] | None, kept: set[str]
) -> None:
    """A list admits no secret, and nothing that steers a shell: those have a setting of their own, or none."""
    names = ("PATH", "LC_ALL", "CI_JOB", "ci_lower", "CC", "OTHER", "NPM_TOKEN", "GH_TOKEN", "BASH_ENV", "MINE")
    environ = dict.fromkeys(names, "x")
    passthrough = frozenset({"NPM_TOKEN"})
    shown = child_environment(environ, secret=frozenset({"MINE"}), passthrough=passthrough, allowed=allowed)
    assert {name for name in names if name in shown} == kept
    assert shown["GIT_TERMINAL_PROMPT"] == "0"


def test_nobody_is_there_to_edit_to_page_or_to_answer() -> None:
    own = {"EDITOR": "vim", "Pager": "less", "GIT_EDITOR": "emacs"}
    shown = child_environment(own, secret=frozenset(), passthrough=frozenset({"git_editor", "VISUAL"}))
    assert {name: shown[name] for name in ("EDITOR", "PAGER", "MANPAGER", "GIT_PAGER", "GIT_SEQUENCE_EDITOR")} == {
        "EDITOR": "false", "PAGER": "cat", "MANPAGER": "cat", "GIT_PAGER": "cat", "GIT_SEQUENCE_EDITOR": "false",
    }  # fmt: skip
    assert shown["GIT_TERMINAL_PROMPT"] == "0"
    assert shown["GIT_EDITOR"] == "emacs"
    assert not {"Pager", "VISUAL"} & shown.keys()


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"COUNT": "1", "KEY_0": "safe.bareRepository", "VALUE_0": "explicit"}),
        (
            {"COUNT": "1", "KEY_0": "a.b", "VALUE_0": "c"},
            {
                "COUNT": "2", "KEY_0": "a.b", "VALUE_0": "c", "KEY_1": "safe.bareRepository", "VALUE_1": "explicit",
            },
        ),
        (dict.fromkeys(("COUNT", "VALUE_0"), "1") | {"KEY_0": "safe.barerepository"}, None),
        ({"COUNT": "x"}, None),
    ],
)  # fmt: skip
def test_the_users_own_configuration_of_git_is_kept(own: dict[str, str], expected: dict[str, str] | None) -> None:
    environ = {f"GIT_CONFIG_{name}": value for name, value in own.items()}
    shown = child_environment(environ, secret=frozenset(), passthrough=frozenset())
    told = {name.removeprefix("GIT_CONFIG_"): value for name, value in shown.items() if name.startswith("GIT_CONFIG_")}
    assert told == (own if expected is None else expected)
    shown = child_environment(environ, secret=frozenset(), passthrough=frozenset({"GIT_CONFIG_COUNT"}))
    assert {name: value for name, value in shown.items() if name.startswith("GIT_CONFIG_")} == environ


def test_where_temporary_files_go() -> None:
    environ = {"TMPDIR": "/mine", "PATH": "/bin"}
    none = frozenset[str]()
    assert child_environment(environ, secret=none, passthrough=none, temporary="/own")["TMPDIR"] == "/own"
    assert child_environment({}, secret=none, passthrough=none, temporary="/own")["TMPDIR"] == "/own"
    assert child_environment(environ, secret=none, passthrough=none)["TMPDIR"] == "/mine"
    passed = child_environment(environ, secret=none, passthrough=frozenset({"tmpdir"}), temporary="/own")
    assert passed["TMPDIR"] == "/mine"


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_git_starts_no_editor_and_reads_no_directory_that_looks_like_a_repository(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    env = child_environment(environ, secret=frozenset(), passthrough=frozenset())

    def git(*words: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        where = tmp_path / cwd
        return subprocess.run(line, env=env, cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    assert git("init", "work").returncode == 0
    git("config", "core.editor", "touch edited; true", cwd="work")
    refused = git("commit", "--allow-empty", cwd="work")
    assert refused.returncode != 0
    assert "editor" in refused.stderr
    assert git("commit", "--allow-empty", "-m", "x", cwd="work").returncode == 0
    assert not (tmp_path / "work" / "edited").exists()

    # With a work tree elsewhere git takes such a directory for a repository, and asks the program that it names.
    assert git("init", "--bare", "bare").returncode == 0
    (tmp_path / "bare" / "config").write_text("[core]\n\tbare = false\n\tworktree = ..\n\tfsmonitor = touch ran\n")
    assert "safe.bareRepository" in git("status", cwd="bare").stderr
    assert not (tmp_path / "ran").exists()
    assert git("init", "--bare", "origin").returncode == 0
    assert git("push", "../origin", "HEAD:main", cwd="work").returncode == 0
    assert git("clone", "origin", "copy").returncode == 0


def test_what_the_user_says_to_apt_and_pip_holds() -> None:
    none = frozenset[str]()
    shown = child_environment({"SSH_ASKPASS": "/usr/bin/ask", "PATH": "/bin"}, secret=none, passthrough=none)
    expected = {
        "DEBIAN_FRONTEND": "noninteractive", "PIP_NO_INPUT": "1", "SSH_ASKPASS_REQUIRE": "never", "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
    }  # fmt: skip
    assert {name: shown[name] for name in expected} == expected
    assert not {"GIT_SSH_COMMAND", "CI"} & shown.keys()
    own = {"DEBIAN_FRONTEND": "readline", "PIP_NO_INPUT": "0", "GIT_ASKPASS": "mine"}
    shown = child_environment(own, secret=none, passthrough=frozenset({"GIT_ASKPASS"}))
    assert {name: shown[name] for name in own} == own


@pytest.fixture
def asker(tmp_path: Path) -> Path:
    """A program that is asked for a password, and leaves `asked` beside it."""
    program = tmp_path / "ask"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho secret\n")
    program.chmod(0o755)
    return program


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_git_asks_nobody_for_a_password(tmp_path: Path, asker: Path) -> None:
    """Neither by the user's program nor by that of a repository's configuration."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_ASKPASS": str(asker), "SSH_ASKPASS": str(asker)}
    shown = child_environment(environ, secret=frozenset(), passthrough=frozenset())
    line = ["git", "-c", f"core.askPass={asker}", "credential", "fill"]
    question = "protocol=https\nhost=example.com\n\n"

    def ask(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, env=env, cwd=tmp_path, input=question, capture_output=True, text=True, check=False)

    refused = ask(shown)
    assert refused.returncode != 0
    assert "terminal prompts disabled" in refused.stderr
    assert not (tmp_path / "asked").exists()
    assert ask(environ).returncode == 0
    assert (tmp_path / "asked").exists()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh")
def test_ssh_asks_nobody_for_a_passphrase(tmp_path: Path, asker: Path) -> None:
    key = tmp_path / "key"
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "passphrase", "-f", str(key)]
    subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SSH_ASKPASS": str(asker), "DISPLAY": ":0"}
    shown = child_environment(environ, secret=frozenset(), passthrough=frozenset())
    for env, asks in ((shown, False), (environ, True)):
        line = ["ssh-keygen", "-y", "-f", str(key)]
        read = subprocess.run(line, env=env, stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True)
        assert read.returncode != 0
        assert (tmp_path / "asked").exists() is asks


def test_posix_shell(tmp_path: Path) -> None:
    zsh, bash = tmp_path / "zsh", tmp_path / "bash"
    for program in (zsh, bash):
        program.write_text("")
        program.chmod(0o755)
    assert posix.default_shell({"SHELL": str(zsh), "PATH": "/x"}) == str(zsh)
    assert posix.default_shell({"SHELL": "/usr/bin/fish", "PATH": f"/x:.:{tmp_path}"}) == str(bash)
    assert posix.default_shell({"SHELL": "/gone/zsh", "PATH": "/x"}) == "/bin/sh"
    assert posix.shell_argv("/bin/sh", "a b") == ["/bin/sh", "-c", "a b"]
    assert posix.shell_argv("/usr/bin/zsh", "a b") == ["/usr/bin/zsh", "-f", "-c", "a b"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_shell_takes_nothing_but_the_line(tmp_path: Path) -> None:
    """Not the start-up files of a remote login, not those that variables name, no functions, no directories for cd."""
    (tmp_path / "elsewhere" / "sub").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / ".bashrc").write_text("echo bashrc\n")
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "SSH_CLIENT": "::1 1 1", "SSH2_CLIENT": "::1 1 1",
        "BASH_ENV": str(tmp_path / ".bashrc"), "ENV": str(tmp_path / ".bashrc"), "SHELLOPTS": "xtrace",
        "BASH_FUNC_pwd%%": "() { echo function; }", "CDPATH": str(tmp_path / "elsewhere"),
    }  # fmt: skip
    shown = child_environment(environ, secret=frozenset(), passthrough=frozenset({"ENV"}))
    argv = posix.shell_argv(str(shutil.which("bash")), "cd sub; pwd; sh -c pwd; bash -c pwd")
    done = subprocess.run(argv, env=shown, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/sub\n" * 3, "")


@pytest.mark.parametrize(
    ("loadavg", "ordered"),
    [
        (b"0.00 0.01 0.05 1/80 900\n", [900, 30, 7, 1]),
        (b"0.00 0.01 0.05 1/80 31\n", [30, 7, 1, 900]),
        (b"", [900, 30, 7, 1]),
    ],
)
def test_numbers_of_processes_begin_anew(loadavg: bytes, ordered: list[int]) -> None:
    assert posix.youngest_first([1, 900, 7, 30], loadavg) == ordered


def test_process_table_of_ps() -> None:
    rows = posix.parse_ps("    1     0     1 Ss\n   42     1    40 Z+\n")
    assert rows == [posix.ProcessEntry(1, 0, 1, True), posix.ProcessEntry(42, 1, 40, False)]


def test_an_earlier_member_is_recognised_and_its_number_alone_is_not_enough() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
        try:
            started = posix.tree_members(child.pid, "NO=MARK", {})[child.pid]
            nobody = 2**22 + 1
            assert posix.tree_members(nobody, "NO=MARK", {child.pid: started}) == {child.pid: started}
            assert posix.tree_members(nobody, "NO=MARK", {child.pid: started - 1}) == {}
        finally:
            child.kill()


def test_windows_commands() -> None:
    assert windows.default_shell({"COMSPEC": r"C:\Windows\system32\cmd.exe"}) == r"C:\Windows\system32\cmd.exe"
    assert windows.default_shell({}) == r"C:\Windows\System32\cmd.exe"
    assert windows.shell_argv("cmd.exe", 'echo "a b" & dir') == '"cmd.exe" /d /s /c "echo "a b" & dir"'
    assert windows.kill_argv(7, {"SYSTEMROOT": r"D:\W"}) == [r"D:\W\System32\taskkill.exe", "/T", "/F", "/PID", "7"]


def test_windows_paths() -> None:
    assert spell(r"C:/a/./b/..\c", r"C:\Users\u", "windows") == r"C:\a\c"
    assert spell(r"~\f", r"C:\Users\u", "windows") == r"C:\Users\u\f"
    for path in (r"a\b", r"\a", "C:a", r"C:\f:stream", r"\\.\PhysicalDrive0", r"C:\x\NUL", "C:\\a\0"):
        with pytest.raises(ToolFault) as raised:
            spell(path, r"C:\Users\u", "windows")
        assert raised.value.kind is FaultKind.INVALID_ARGUMENT, path


def test_posix_paths() -> None:
    assert spell("~", "/home/u", "posix") == "/home/u"
    assert spell("~/a/../b//c/", "/home/u", "posix") == "/home/u/b/c"
    with pytest.raises(ToolFault):
        spell("~other/f", "/home/u", "posix")


def test_every_fault_has_a_word_in_the_family() -> None:
    assert set(ELSEWHERE) == set(FaultKind)
    assert set(FaultKind) - set(DESKTOP) == {FaultKind.INTERRUPTED, FaultKind.RATE_LIMITED, FaultKind.REFUSED}


def test_importing_the_router_stays_cheap() -> None:
    heavy = "httpx httpcore pydantic difflib tempfile ssl ipaddress anyio socket logging concurrent.futures.thread"
    code = (
        "import sys, asyncio; before = set(sys.modules)\n"
        "import tool_runtime.router\n"
        f"print(*sorted(set({heavy.split()!r}) & (set(sys.modules) - before)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.split() == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel what the process holds")
def test_large_memory_goes_back_to_the_system() -> None:
    """In a process of its own: it changes how all of one allocates. Each thread has a part of memory of its own."""
    program = """
import threading
from tool_runtime.platform import posix

def resident_mib():
    with open("/proc/self/status") as status:
        (size,) = [line.split()[1] for line in status if line.startswith("VmRSS")]
    return int(size) // 1024

def use_it():
    for _ in range(3):
        bytearray(b"x") * (16 * 1024 * 1024)

posix.give_back_large_memory()
before = resident_mib()
for _ in range(4):
    worker = threading.Thread(target=use_it)
    worker.start()
    worker.join()
print(resident_mib() - before)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 8


MOUNTS = """\
21 26 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
26 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 26 0:45 / /mnt/with\\040space rw - nfs4 server:/export - rw,vers=4.2
41 26 8:1 /sub /data rw master:3 propagate_from:2 - xfs /dev/sda1 rw
"""


@pytest.mark.parametrize(
    ("device", "kind"),
    [("254:0", "ext4"), ("0:45", "nfs4"), ("8:1", "xfs"), ("8:11", None), ("54:0", None), ("", None)],
)
def test_the_kind_of_a_file_system_is_read_from_the_table_of_mounts(device: str, kind: str | None) -> None:
    assert kind_of(device, MOUNTS) == kind


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_the_files_of_processes_and_unknown_devices_are_on_no_local_disk() -> None:
    assert not is_local(os.stat("/proc/self").st_dev)
    assert not is_local(os.makedev(4000, 77))

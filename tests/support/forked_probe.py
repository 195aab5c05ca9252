"""A program in the place of `agent-host`: forked (`serve`), or as the interpreter starts it (`plain`). Its arguments
say how it ends: `exit N`, `raise N` or `signal N`; with `has N` it prints first what its process has."""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import locale
import os
import random
import resource
import runpy
import secrets
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGCHLD", "SIGQUIT", "SIGUSR1")


def program(function: str) -> list[str]:
    """The command line of a function of this module, wherever it is started."""
    code = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); from tests.support import forked_probe as probe; "
    return [sys.executable, "-P", "-c", f"{code}probe.{function}()"]


def serve() -> None:
    """Fork processes of the probe."""
    _install()
    importlib.import_module("agent_host.clients.warm_process").main()


def serve_with_a_thread() -> None:
    """The same in a process that has one thread too many."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    serve()


def plain() -> None:
    """Be the probe as `python -P -m agent_host` is `agent-host`."""
    _install()
    runpy.run_module("agent_host", run_name="__main__", alter_sys=True)


def _install() -> None:
    importlib.import_module("agent_host.cli.main").main = _probe  # type: ignore[attr-defined]


def _probe() -> int:
    how, number = sys.argv[1], int(sys.argv[2])
    if how == "signal":
        os.kill(os.getpid(), number)
    if how == "raise":
        sys.exit(number)
    if how == "has":
        print(json.dumps({"has": _has(), "fresh": _fresh()}))
        atexit.register(lambda: print("at the end"))
    return number


def _has() -> dict[str, Any]:
    """What two processes that are started so have in common."""
    told = subprocess.run(["env", "-0"], stdout=subprocess.PIPE, check=True).stdout
    umask = os.umask(0)
    os.umask(umask)
    return {
        "environment": dict(os.environ),
        "environment of a child": sorted(told.decode().split("\0")),
        "directory": os.getcwd(),
        "umask": umask,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
        "zone": (time.tzname, time.timezone, time.strftime("%H", time.localtime(0))),
        "locale": locale.setlocale(locale.LC_ALL),
        "encodings": (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.getencoding()),
        "streams": [one.encoding for one in (sys.stdin, sys.stdout, sys.stderr)],
        "arguments": sys.argv,
        "signals": [str(signal.getsignal(getattr(signal, name))) for name in _SIGNALS],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "group": (
            os.getpgid(0) == os.getpid(),
            os.getsid(0),
            os.getpriority(os.PRIO_PROCESS, 0),
            sorted(os.sched_getaffinity(0)),
        ),
        "threads": os.listdir("/proc/self/task") == [str(os.getpid())],
        "collects": gc.isenabled(),
        "temporary": tempfile.gettempdir(),
        "loop": asyncio.run(_loop()),
        "switches": (sys.flags.safe_path, sys.dont_write_bytecode, sys.flags.hash_randomization),
    }


async def _loop() -> str:
    process = await asyncio.create_subprocess_exec("true")
    return f"{type(asyncio.get_running_loop()).__name__} {await process.wait()}"


def _fresh() -> dict[str, Any]:
    """What no two processes have in common."""
    return {
        "pid": os.getpid(),
        "random": random.random(),
        "secrets": secrets.token_hex(),
        "uuid": str(uuid.uuid4()),
        "ssl": ssl.RAND_bytes(16).hex(),
        "name": next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
        "sockets": len([fd for fd in os.listdir("/proc/self/fd") if _is_socket(fd)]),
        "original": sys.orig_argv,
    }


def _is_socket(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False

"""Windows: the same functions as in `posix`, mostly pure so that they can be tested anywhere."""

from __future__ import annotations

import ctypes
import ntpath
import os
import struct
import subprocess
from typing import IO, TYPE_CHECKING, ClassVar, Final

from tool_runtime.platform.posix import ProcessEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

CRLF: Final = True
_EXTENDED_LIMITS: Final = 9
_KILL_ON_JOB_CLOSE: Final = 0x2000
_PROCESS_MEMORY: Final = 0x0100
_PROCESS_IDS: Final = 3
_MOST_IN_A_JOB: Final = 4096
_SNAP_PROCESSES: Final = 2
_PROCESS_ROW_BYTES: Final = 568


def give_back_large_memory() -> None:
    """Do nothing: the allocator does it itself."""


def default_shell(environ: Mapping[str, str], outside: Sequence[str] = ()) -> str:
    """Return cmd.exe (TR 6.2): the one that COMSPEC names, or the system's if that is relative or in a place `outside`,
    where commands write."""
    named = environ.get("COMSPEC", "")
    inside = [ntpath.normcase(ntpath.normpath(one)).rstrip("\\") + "\\" for one in outside]
    is_inside = ntpath.normcase(ntpath.normpath(named)).startswith(tuple(inside))
    return named if ntpath.isabs(named) and not is_inside else system_program("cmd.exe", environ)


def system_program(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a Windows program, because its bare name would be searched in the current directory first."""
    return ntpath.join(environ.get("SYSTEMROOT") or "C:\\Windows", "System32", name)


def shell_argv(shell: str, command: str) -> str:
    """Return one command line without quoting, because cmd.exe reads it raw. /d disables AutoRun, /s strips one pair of
    quotes."""
    return f'"{shell}" /d /s /c "{command}"'


def kill_argv(pid: int, environ: Mapping[str, str]) -> list[str]:
    """Return the command that ends a process and its children (TR 6.2)."""
    return [system_program("taskkill.exe", environ), "/T", "/F", "/PID", str(pid)]


def descendants(pid: int) -> dict[int, ProcessEntry]:  # noqa: ARG001  as on POSIX
    """Return nothing: a Job contains them."""
    return {}


def entry_of(pid: int) -> ProcessEntry | None:  # noqa: ARG001  as on POSIX
    """Return None: a Job contains them."""
    return None


def look_up() -> Callable[[int], ProcessEntry | None]:
    """Return a function that returns the row of a process, None if there is none."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]  # Windows alone has it
    kernel.CreateToolhelp32Snapshot.restype = ctypes.c_void_p
    snapshot = ctypes.c_void_p(kernel.CreateToolhelp32Snapshot(_SNAP_PROCESSES, 0))
    rows, buffer = [], ctypes.create_string_buffer(_PROCESS_ROW_BYTES)
    ask = kernel.Process32FirstW
    struct.pack_into("<I", buffer, 0, _PROCESS_ROW_BYTES)
    while ask(snapshot, buffer):
        rows.append(buffer.raw)
        ask = kernel.Process32NextW
    kernel.CloseHandle(snapshot)
    in_job = {pid for job in JobObject.open_ones for pid in job.members()}
    return table_of(rows, in_job, os.getpid()).get


def table_of(rows: Iterable[bytes], in_job: AbstractSet[int], own: int) -> dict[int, ProcessEntry]:
    """Make the process table from the rows of a snapshot (PROCESSENTRY32W, 64 bits). Orphans are not adopted on
    Windows, so a process whose parent has ended has none. Processes `in_job` get this process, `own`, as their parent,
    even if the one that started them has ended."""
    parents = {}
    for row in rows:
        (pid,), (parent,) = struct.unpack_from("<I", row, 8), struct.unpack_from("<I", row, 32)
        parents[pid] = parent
    known = {pid: own if pid in in_job else parent if parent in parents else 0 for pid, parent in parents.items()}
    return {pid: ProcessEntry(pid, parent, 0, True) for pid, parent in known.items() if pid}


def client_of_pipe(handle: int) -> int:
    """Return the PID at the other end of a named pipe. Raises OSError."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]  # Windows alone has it
    pid = ctypes.c_ulong()
    if not kernel.GetNamedPipeClientProcessId(ctypes.c_void_p(handle), ctypes.byref(pid)):
        raise OSError("the system does not report the other end of the pipe")
    return int(pid.value)


def adopt_orphans(*, adopt: bool = True) -> bool:  # noqa: ARG001  as on POSIX
    """Return False: a Job contains every process."""
    return False


def reap(pid: int) -> None:
    """Do nothing: an ended process has no entry in the table."""


class JobObject:
    """A Job Object that ends its processes when its last handle is closed, for example when this process exits.
    `memory_bytes` limits the memory of each process. `open_ones` are the open jobs of this process."""

    open_ones: ClassVar[list[JobObject]] = []

    def __init__(self, memory_bytes: int = 0) -> None:
        self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]  # Windows alone has it
        self._kernel.CreateJobObjectW.restype = ctypes.c_void_p
        self._handle = self._kernel.CreateJobObjectW(None, None)
        limits = job_limits(memory_bytes=memory_bytes)
        self._kernel.SetInformationJobObject(
            ctypes.c_void_p(self._handle), _EXTENDED_LIMITS, limits, ctypes.c_ulong(len(limits))
        )
        self.open_ones.append(self)

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Put a process that was just started into the job; processes that it starts are in it, too."""
        handle = int(process._handle)  # type: ignore[attr-defined]  # noqa: SLF001  the only place that has it
        self._kernel.AssignProcessToJobObject(ctypes.c_void_p(self._handle), ctypes.c_void_p(handle))

    def members(self) -> Sequence[int]:
        """Return the PIDs of the processes in it."""
        listed = ctypes.create_string_buffer(8 + 8 * _MOST_IN_A_JOB)
        self._kernel.QueryInformationJobObject(
            ctypes.c_void_p(self._handle), _PROCESS_IDS, listed, ctypes.c_ulong(len(listed)), None
        )
        count = struct.unpack_from("<I", listed, 4)[0]
        return struct.unpack_from(f"<{min(count, _MOST_IN_A_JOB)}Q", listed, 8)

    def close(self) -> None:
        """End every process in it."""
        self.open_ones.remove(self)
        self._kernel.CloseHandle(ctypes.c_void_p(self._handle))


def start_limited(
    argv: Sequence[str], *, memory_bytes: int, cpu_s: float, stdin: IO[bytes], cwd: str
) -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
    """See `posix.start_limited`. A job limits the memory; the caller must limit the time itself."""
    del cpu_s
    process = subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},
        cwd=cwd,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    job = JobObject(memory_bytes)
    job.add(process)
    return process, job.close


def job_limits(pointer_bytes: int = 8, memory_bytes: int = 0) -> bytes:
    """Return a JOBOBJECT_EXTENDED_LIMIT_INFORMATION with KILL_ON_JOB_CLOSE, and PROCESS_MEMORY if given: basic limits
    with their flags after two 64-bit times, six IO counters, and four sizes, of which the first is the limit per
    process."""
    word, pad, end = ("Q", "4x", "") if pointer_bytes == 8 else ("I", "", "4x")
    flags = _KILL_ON_JOB_CLOSE | (_PROCESS_MEMORY if memory_bytes else 0)
    basic = struct.pack(f"<qqI{pad}{word}{word}I{pad}{word}II{end}", 0, 0, flags, 0, 0, 0, 0, 0, 0)
    return basic + struct.pack("<6Q", *[0] * 6) + struct.pack(f"<4{word}", memory_bytes, 0, 0, 0)


def tree_members(
    leader: int,  # noqa: ARG001  as on POSIX
    mark: str,  # noqa: ARG001
    known: Mapping[int, int],  # noqa: ARG001
    on_sight: Callable[[int], None] = lambda _: None,  # noqa: ARG001
) -> dict[int, int]:
    """Return nothing: taskkill finds the tree itself."""
    return {}

"""A world from one seed: a clock that jumps to whatever is due next, chance that repeats, a network within the process
and commands that follow a script. What runs on its event loop waits for minutes in no time.

    world = SimulatedWorld(1, {"make": Act(90.0, "built\\n")}, {"gateway.example": "192.0.2.1"}, SimulatedDisk())
    world.run(session(world.surroundings))

Work that a program hands to a thread through the loop is done at once in the loop's own thread. Sockets are real pairs
of them: what is written to one can be read from the other in the same moment, so that nothing depends on the machine.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent_host.host.environment import Surroundings
from agent_host.ids import Outside
from state.disk import ThreadJob
from tool_runtime.output.artifacts import SpillRoom
from tool_runtime.processes.command import Captured
from tool_runtime.processes.guard import NO_LEFTOVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from agent_host.contracts import Denial, Leftovers
    from agent_host.faults.disk import SimulatedDisk
    from tool_runtime.processes.command import CommandParams
    from tool_runtime.processes.guard import ProcessGuard
    from tool_runtime.sandbox.session import Sandbox
    from tool_runtime.threads import DaemonPool

EPOCH: Final = 1_767_268_800.0
"""2026-01-01T12:00:00Z, when every simulated process starts."""
_STUCK_S: Final = 10.0
_TERMINATED: Final = 128 + 15


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: where no socket is ready the clock stands at the next timer at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # a thread that nobody waits for may still say that it is done
            ready = super().select(_STUCK_S)
            assert ready, "everything waits, and nothing is left that could happen"
            return ready
        self.now += timeout
        return []


class _Listening:
    """A server at a place of the simulated network."""

    def __init__(self, loop: SimulatedLoop, place: tuple[str, int]) -> None:
        self._loop = loop
        self._place = place
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._place

    def close(self) -> None:
        self._loop.servers.pop(self._place, None)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The event loop of a simulated process. `hosts` gives the address of each name that there is."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._jumping = _Jumping()
        self._hosts = hosts
        self.servers: dict[tuple[str, int], Callable[[], asyncio.BaseProtocol]] = {}
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  it is raised where the work is waited for
            done.set_exception(error)
        return done

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        address = name if name in self._hosts.values() else self._hosts.get(name)
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no host {host} in this world")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        place = (host, port or 49152 + len(self.servers))
        assert place not in self.servers
        self.servers[place] = protocol_factory
        return _Listening(self, place)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        if more.get("sock") is not None:
            return await super().create_connection(protocol_factory, sock=more["sock"])
        host, port = (await self.getaddrinfo(host, port))[0][4]
        if (host, port) not in self.servers:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            one.setblocking(False)
        await self.connect_accepted_socket(self.servers[host, port], theirs)
        return await super().create_connection(protocol_factory, sock=ours)


class Act(NamedTuple):
    """A command runs for so long, prints this and ends so."""

    takes_s: float
    prints: str = ""
    exit_code: int = 0


class _ScriptedCommand:
    """A RunningCommand that is no process."""

    def __init__(self, params: CommandParams, act: Act) -> None:
        room = SpillRoom(params.artifact_max_bytes)
        self.stdout = Captured(params, "stdout", room)
        self.stderr = self.stdout if params.one_stream else Captured(params, "stderr", room)
        self.exit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._act = act
        self._code = _TERMINATED

    def connect(self) -> None:
        asyncio.get_running_loop().call_later(self._act.takes_s, self._over, self._act.exit_code)

    def _over(self, code: int) -> None:
        if not self.exit.done():
            self.stdout.take(self._act.prints.encode())
            self._code = code
            self.exit.set_result(None)

    async def drain(self) -> None:
        """All that it prints comes at once."""

    async def end(self) -> Leftovers:
        return await self.kill()

    async def kill(self) -> Leftovers:
        if not self.exit.done():
            self.exit.set_result(None)
        return NO_LEFTOVERS

    async def count_left(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""

    def discard(self) -> None:
        self.stdout.spill.close()
        self.stderr.spill.close()

    def exit_code(self) -> int:
        return self._code

    def denials(self, *, was_ended: bool = False) -> tuple[Denial, ...]:
        return ()


class _Done(ThreadJob):
    """A job that was done as it began."""

    def __init__(self, work: Callable[[], None]) -> None:
        work()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """It is over."""


class SimulatedWorld:
    """One simulated process. `commands` are the lines that can be run, `hosts` the names of the network and their
    addresses; `started` are the lines that were run."""

    def __init__(self, seed: int, commands: Mapping[str, Act], hosts: Mapping[str, str], disk: SimulatedDisk) -> None:
        chance = random.Random(seed)
        self._commands = commands
        self.started: list[str] = []
        self.disk = disk
        self.loop = SimulatedLoop(hosts)
        outside = Outside(lambda: EPOCH + self.loop.time(), self.loop.time, chance.randbytes)
        self.surroundings = Surroundings(outside, self.disk, _Done, self._start)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to the end."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(work)

    def _start(
        self, params: CommandParams, pool: DaemonPool, guard: ProcessGuard | None, sandbox: Sandbox | None
    ) -> _ScriptedCommand:
        line = params.argv[-1]
        self.started.append(line)
        return _ScriptedCommand(params, self._commands[line])

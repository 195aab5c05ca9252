"""A long session in a process of its own: what its resume or its making costs in time and memory.

    python -m benchmarks.children.long_session resume|create|create-alone FOLDER MESSAGES

`resume` restores the session in FOLDER. `create` makes one of so many messages there, with the thread that is sent,
`create-alone` without it. Prints what `benchmarks.checkpoint.InChild` holds.
"""

from __future__ import annotations

import gc
import itertools
import resource
import sys
import time

import orjson

from agent_host.llm.dialects.anthropic import AnthropicRenderer
from agent_host.thread import Thread
from agent_host.thread.messages import decode
from benchmarks.kept import Disk, Store, keep, long_steps, new_session


def memory() -> tuple[int, int]:
    """Present and highest resident bytes. Not from getrusage on Linux: there a child starts with its parent's peak."""
    if sys.platform != "linux":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak, peak
    with open("/proc/self/status", encoding="ascii") as file:
        found = dict(line.split(":", 1) for line in file)
    return int(found["VmRSS"].split()[0]) * 1024, int(found["VmHWM"].split()[0]) * 1024


def forget_peak() -> None:
    """Reset the peak of memory, so that the imports' temporary memory does not count."""
    gc.collect()
    if sys.platform == "linux":
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")


def create(folder: str, messages: int, thread: Thread | None) -> Store:
    Disk.off = True
    store = new_session(folder)
    for step in long_steps(messages):
        keep(store, step)
        if thread is not None:
            thread.add_exchange(step.assistant, step.results)
    store.compact()
    return store


def main(what: str, folder: str, messages: int) -> None:
    Disk.watch()
    forget_peak()
    idle, _ = memory()
    thread = Thread(AnthropicRenderer())
    started, cpu = time.perf_counter(), time.process_time()
    if what == "resume":
        store = Store(folder)
        thread.restore(map(decode, itertools.islice(store.messages(), 1, None)))
    else:
        store = create(folder, messages, thread if what == "create" else None)
    elapsed, cpu = time.perf_counter() - started - Disk.ns / 1e9, time.process_time() - cpu
    peak = memory()[1]
    print(orjson.dumps([elapsed * 1000, cpu * 1000, peak - idle, sum(map(len, store.messages()))]).decode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""The same steps kept in other ways: `checkpoint` prints this beside its figures."""

from __future__ import annotations

import importlib
import itertools
import os
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from benchmarks.kept import SESSION, keep, make_step, new_session, written
from benchmarks.report import MIB, Row, medians
from state.records import message_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class StoreCost(NamedTuple):
    """Cost of one way to keep a session: milliseconds of each step, bytes written in all."""

    times: list[float]
    written: int


def kept_by_us(folder: str, steps: int) -> StoreCost:
    before, store = written(), new_session(folder)
    times = [keep(store, make_step(number)).ms for number in range(1, steps + 1)]
    store.close()
    return StoreCost(times, written() - before)


def kept_by_rewriting(folder: str, steps: int) -> StoreCost:
    """The whole checkpoint after each step: temporary file, sync, rename, sync of the directory. Encoded by orjson,
    once a step and not twice: so a crash during the tools loses what the model said and what they did."""
    os.mkdir(folder)
    path = os.path.join(folder, "checkpoint.json")
    thread: list[Any] = []
    times: list[float] = []
    before = written()
    for number in range(1, steps + 1):
        step = make_step(number)
        thread += [orjson.loads(message) for message in map(message_of, (*step.ahead, *step.rest)) if message]
        started = time.perf_counter_ns()
        with open(f"{path}.tmp", "wb") as file:
            file.write(orjson.dumps({"checkpointVersion": "1.0", "stepCount": number, "thread": thread}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
        directory = os.open(folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        times.append((time.perf_counter_ns() - started) / 1e6)
    return StoreCost(times, written() - before)


def kept_by_langgraph(folder: str, steps: int) -> StoreCost:
    """A graph of a model node and a tools node over MessagesState. `durability="sync"` has each checkpoint written
    before the next node starts, as ours is; the saver opens its database with SQLite's WAL and synchronous=FULL."""
    graphs, messages = importlib.import_module("langgraph.graph"), importlib.import_module("langchain_core.messages")
    saver = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
    os.mkdir(folder)
    ends: list[int] = []

    def model(_: Any) -> Any:
        ends.append(time.perf_counter_ns())
        step = make_step(len(ends))
        calls = [{"id": call.call_id, "name": call.name, "args": call.arguments} for call in step.assistant.tool_calls]
        return {"messages": [messages.AIMessage(step.assistant.content, tool_calls=calls)]}

    def tools(_: Any) -> Any:
        results = make_step(len(ends)).results
        return {"messages": [messages.ToolMessage(one.content, tool_call_id=one.tool_call_id) for one in results]}

    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(graphs.START, "model")
    graph.add_edge("model", "tools")
    graph.add_conditional_edges("tools", lambda _: "model" if len(ends) < steps else graphs.END)
    before = written()
    with saver.from_conn_string(os.path.join(folder, "checkpoints.sqlite")) as checkpointer:
        config = {"configurable": {"thread_id": SESSION}, "recursion_limit": 2 * steps + 10}
        prompt = {"messages": [messages.HumanMessage("Read on.")]}
        graph.compile(checkpointer=checkpointer).invoke(prompt, config, durability="sync")
    ends.append(time.perf_counter_ns())
    return StoreCost([(after - at) / 1e6 for at, after in itertools.pairwise(ends)], written() - before)


def comparison(folder: str, steps: int, rounds: int) -> Iterator[object]:
    """A row for each way, the ways in turns and each in some rounds, so that noise hits them all."""
    os.mkdir(folder)
    ways = {"ours": kept_by_us, "whole file rewritten, once a step": kept_by_rewriting}
    try:
        importlib.import_module("langgraph.checkpoint.sqlite")
        ways["LangGraph, SqliteSaver"] = kept_by_langgraph
    except ImportError:
        pass
    kept: dict[str, list[StoreCost]] = {way: [] for way in ways}
    for turn, way in itertools.product(range(rounds), ways):
        kept[way].append(ways[way](os.path.join(folder, f"{way}-{turn}"), steps))
    thread = sum(make_step(number).thread_bytes for number in range(1, steps + 1))
    yield f"{steps:,} steps of 1 KB results, milliseconds a step"
    for way, runs in kept.items():
        means = ((statistics.fmean(run.times), last_tenth(run.times), run.written) for run in runs)
        mean, last, size = medians(means)
        note = f"the last tenth {last:.2f} ms; {size / MIB:.1f} MiB written, {size / thread:.1f}x the thread's"
        yield Row(f"  {way}", mean, "ms", None, note)
    if len(ways) < 3:
        yield "  LangGraph, SqliteSaver: not installed: pip install langgraph langgraph-checkpoint-sqlite"


def last_tenth(times: list[float]) -> float:
    return statistics.fmean(times[-max(1, len(times) // 10) :])

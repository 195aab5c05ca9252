"""`agent-host batch FILE`: many tasks, each as a session of its own, until each has ended (docs/batch.md)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Final

import orjson

from agent_host.batch import content_hash, read_tasks
from agent_host.batch.engines import LocalEngine, RayEngine
from agent_host.batch.ledger import Ledger, Progress, exit_code_of, summarize, table_of
from agent_host.batch.scheduler import Attempts, BatchLaunch, Scheduler
from agent_host.batch.workspaces import Depot, Workspaces
from agent_host.cli import answer, notice
from agent_host.cli.outputs import import_view, write_page
from agent_host.cli.policy import policy_of_options
from agent_host.cli.shared import CommandLine, approval_options, end_on_signals, setting_options, settings_of_options
from agent_host.clients.fork_server import default_starter
from agent_host.errors import PolicyBundleInvalid, UsageError
from agent_host.host.backends import NO_GATEWAY, hide_key, hide_secrets
from agent_host.host.dry_runs import policy_to_try
from agent_host.host.options import anchor, model_facts
from agent_host.host.records import stored_sessions
from agent_host.ids import MACHINE
from config.policies import names_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from agent_host.batch import BatchTask
    from agent_host.batch.ledger import Row, Stop
    from agent_host.batch.scheduler import Engine
    from config.settings import Settings

_OF_ALL: Final = ("host.policy", "sandbox.level", "sandbox.allowed_domains")
_OF_MODEL: Final = ("llm.gateway", "llm.provider", "llm.dialect", "llm.model", "host.toolset")
_MEMORY_OF_ONE: Final = 512 * 1024**2
_PROGRESS_INTERVAL_S: Final = 0.5


def batch(namespace: argparse.Namespace) -> int:
    """Run the batch. Raises UsageError for invalid tasks and options, SessionHeld if another batch uses the directory;
    then nothing runs."""
    tasks = read_tasks(namespace.file)
    line = CommandLine(namespace)
    settings = line.source.new().settings
    if not settings.llm.gateway:
        raise UsageError(f"no LLM gateway: {NO_GATEWAY}")
    policy_of_options(namespace)
    for name in dict.fromkeys(task.policy for task in tasks if task.policy):
        flags = {**settings_of_options(namespace), "host.policy": name}
        try:
            policy_to_try(flags, workspace=anchor(os.curdir), state_dir=line.source.state_dir)
        except PolicyBundleInvalid as error:
            raise UsageError(f"policy {name}: {error}") from error
    _check_prices(tasks, namespace, settings, line.source.state_dir)
    out = anchor(namespace.out or f"{namespace.file}.out")
    jobs = namespace.jobs or _jobs_of_this_machine()
    hide_secrets()
    hide_key(settings)
    policy = settings.host.policy
    suffix = " objects" if _uses_parcels(namespace, settings) else ""
    ledger = Ledger(out, tasks, f"{policy} {content_hash(policy)}".strip() + suffix)
    try:
        return asyncio.run(_run(namespace, line, settings, tasks, ledger, jobs))
    finally:
        ledger.close()


async def _run(
    namespace: argparse.Namespace,
    line: CommandLine,
    settings: Settings,
    tasks: Sequence[BatchTask],
    ledger: Ledger,
    jobs: int,
) -> int:
    started = MACHINE.monotonic()
    launch = _launch(namespace, line, settings)
    depot, parcels = Depot(ledger.path, launch.state_dir), _uses_parcels(namespace, settings)
    if parcels:
        depot.finish_all()
        launch, tasks = _with_copies(launch, tasks, ledger)
    spaces = Workspaces(ledger.at("workspaces"), (ledger.path, launch.state_dir), borrows=not parcels)
    engine: Engine = (
        RayEngine(jobs=jobs, depot=depot, parcels=parcels, batch_id=ledger.batch_id)
        if namespace.engine == "ray"
        else LocalEngine(default_starter(settings, notice))
    )

    def print_row(row: Row) -> None:
        answer(orjson.dumps(row).decode() + "\n")

    def stop_early(_: int) -> None:
        notice("stopping: sessions finish their steps; the same command continues")
        scheduler.interrupt()

    attempts = Attempts(ledger, launch, spaces, engine, depot if parcels else None)
    progress = Progress(ledger)
    max_cost = settings.llm.max_cost or None
    scheduler = Scheduler(
        tasks, ledger, attempts,
        jobs=jobs, retries=namespace.retries, max_cost=max_cost,
        on_row=print_row if namespace.output == "jsonl" else lambda _: None,
        spent=None if max_cost is None else _costs_on_record(ledger, depot),
    )  # fmt: skip
    end_on_signals(stop_early)
    reporting = asyncio.ensure_future(_report_progress(progress, scheduler))
    try:
        stop = await scheduler.run()
    finally:
        reporting.cancel()
        progress.end()
        await engine.aclose()
    return _report(namespace, ledger, launch.state_dir, stop, int((MACHINE.monotonic() - started) * 1000))


def _costs_on_record(ledger: Ledger, depot: Depot) -> dict[str, float]:
    """Costs of the sessions in the state directory, including lost processes, by task id."""
    ids = {ledger.session_id(task): task.id for task in ledger.tasks}
    costs = {task.id: depot.costs.total(task.key) for task in ledger.tasks}
    for row in stored_sessions(depot.state_dir).all():
        if row.session_id in ids:
            costs[ids[row.session_id]] += float((row.usage or {}).get("cost", 0.0))
    return costs


def _uses_parcels(namespace: argparse.Namespace, settings: Settings) -> bool:
    return namespace.engine == "ray" and settings.batch.node_storage == "objects"


def _with_copies(
    launch: BatchLaunch, tasks: Sequence[BatchTask], ledger: Ledger
) -> tuple[BatchLaunch, list[BatchTask]]:
    """Copy the files that options name into the batch's directory, for parcels to include; return the launch and tasks
    with the copies' names. Raises UsageError."""
    copies: dict[str, str] = {}

    def copy(named: str) -> str:
        if named not in copies:
            try:
                with open(os.path.join(launch.directory, named), "rb") as file:
                    copies[named] = ledger.keep_file(file.read())
            except OSError as error:
                raise UsageError(f"{error.filename}: {error.strerror}") from error
        return copies[named]

    def of_words(words: Sequence[str]) -> tuple[str, ...]:
        before = ("", *words)
        return tuple(
            copy(word) if option == "--schema" or (option == "--policy" and names_file(word)) else word
            for option, word in zip(before, words, strict=False)
        )

    launch = launch._replace(common=of_words(launch.common), model=of_words(launch.model))
    tasks = [task._replace(policy=copy(task.policy)) if names_file(task.policy) else task for task in tasks]
    return launch._replace(files=tuple(copies.values())), tasks


async def _report_progress(progress: Progress, scheduler: Scheduler) -> None:
    while True:
        progress.print_if_due(scheduler.waiting, scheduler.running)
        await asyncio.sleep(_PROGRESS_INTERVAL_S)


def _report(namespace: argparse.Namespace, ledger: Ledger, state_dir: str, stop: Stop, duration_ms: int) -> int:
    """Write the output files and print the summary; return the exit code."""
    summary = summarize(ledger, stop=stop, duration_ms=duration_ms)
    code = exit_code_of(ledger, stop)
    try:
        ledger.finish(summary)
    except OSError as error:
        notice(f"error: {ledger.path}: {error.strerror}; the same command writes the rest")
        code = code or 3
    _write_page(ledger, state_dir)
    if stop == "broken":
        notice("the infrastructure ended the last attempts, and three single ones: nothing more was started")
    if namespace.output in ("json", "jsonl"):  # a line each row came before
        answer(orjson.dumps(summary).decode() + "\n")
    else:
        answer(f"{table_of(ledger, summary)}results: {ledger.path}\n")
    return code


def _write_page(ledger: Ledger, state_dir: str) -> None:
    try:
        view = import_view()
    except UsageError:
        return
    wanted = {ledger.session_id(task) for task in ledger.tasks}
    rows = [row for row in stored_sessions(state_dir).all() if row.session_id in wanted]
    page = ledger.at("report.html")
    write_page(page, lambda: view.sessions_page(rows, state_dir=state_dir, folder=None), quiet=True)


def _launch(namespace: argparse.Namespace, line: CommandLine, settings: Settings) -> BatchLaunch:
    state_dir = line.source.state_dir
    return BatchLaunch(
        anchor(os.curdir),
        state_dir,
        (*setting_options(namespace, _OF_ALL), "--state-dir", state_dir, *approval_options(namespace)),
        (*setting_options(namespace, _OF_MODEL), *([] if namespace.schema is None else ["--schema", namespace.schema])),
        settings.host.max_steps,
        namespace.timeout,
        settings.tools.command_timeout_max_s,
        namespace.keep,
        (),
    )


def _check_prices(
    tasks: Sequence[BatchTask], namespace: argparse.Namespace, settings: Settings, state_dir: str
) -> None:
    """Raise UsageError if a cost is limited and a model has no price."""
    limited = [task for task in tasks if settings.llm.max_cost or task.max_cost is not None]
    if not limited:
        return
    usual = settings.llm.model
    if not usual:
        flags, workspace = settings_of_options(namespace), anchor(os.curdir)
        bundle = policy_to_try(flags, workspace=workspace, state_dir=state_dir).bundle
        usual = bundle.llm_policy.allowed_models[0]
    facts = model_facts().table
    for name in dict.fromkeys(task.model or usual for task in limited):
        if facts.of(name).prices is None:
            raise UsageError(
                f"a cost is limited, and {name} has no price: give price_input and price_output for a million tokens "
                f'in [models."{name}"] of your configuration'
            )


def _jobs_of_this_machine() -> int:
    """Number of concurrent sessions; they mostly wait for a model."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    memory = _MEMORY_OF_ONE * 4 * cores
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not on Windows
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(4 * cores, memory // _MEMORY_OF_ONE))

"""A scripted session over the simulated disk, cut at every call: no record lost that was durable, no effect twice.

What is asserted stands in `scripted`: every process that opens the session checks what it finds against what happened,
and the last one, on a disk without faults, has to bring the session to its end.
"""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_host.faults.crash import CODES, Faults
from agent_host.faults.disk import EXTREMES, PickedOutcome, SimulatedDisk
from state import StateError
from state import loading as recovery
from state.journal import JournalFile
from tests.faults import scripted
from tests.faults.scripted import SCRIPT, STATE_DIR, World, advance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent_host.faults.disk import PowerLossOutcome
    from state.checkpoint import OpenCall

SHARDS = 4
RANDOM_OUTCOMES = 2
CHAINS = 160
# A little more than any session has, so that a plan may also find nothing to spoil.
MANY_CALLS = 220


# A compaction is over with the sync that begins it, in the middle of the next step, some steps later, or only when
# somebody has to wait for it.
LASTS = (0, 1, 4, 1000)


@functools.cache
def calls(lasts: int = 0) -> int:
    """How many calls an undisturbed session makes: the number of cuts to try."""
    return spoiled(Faults(), lasts)[0].calls.count


def finish(disk: SimulatedDisk, world: World, why: str) -> None:
    """One process more, without faults: it finds what it must and brings the session to its end."""
    if world.done:
        return
    disk = disk.kill()
    try:
        advance(disk, world)
        assert world.done, f"the last process did not come to the end\n{disk.explain()}"
    except BaseException as error:
        error.add_note(f"==== {why}")
        raise


def spoiled(faults: Faults, lasts: int = 0) -> tuple[SimulatedDisk, World]:
    """The disk and the world after one process under `faults`, whose compactions last that long."""
    disk, world = SimulatedDisk(faults), World(compaction_lasts=lasts)
    try:
        advance(disk, world)
    except BaseException as error:
        error.add_note(f"==== in the first process, {faults}")
        raise
    return disk, world


def outcomes(seed: int, number: int = RANDOM_OUTCOMES) -> Iterator[tuple[str, PowerLossOutcome]]:
    yield from EXTREMES.items()
    for each in range(number):
        yield f"seed {seed}-{each}", PickedOutcome(random.Random(f"{seed}-{each}").randrange)


def lose_power(disk: SimulatedDisk, world: World, seed: int, number: int = RANDOM_OUTCOMES) -> None:
    """Every outcome of a power loss now, each taken to the end."""
    for name, outcome in outcomes(seed, number):
        finish(disk.crash(outcome), world.lose_power(), f"{disk.calls.faults}, then a power loss: {name}")


each_shard = pytest.mark.parametrize("shard", range(SHARDS))
each_duration = pytest.mark.parametrize("lasts", LASTS)


def cuts(shard: int, lasts: int = 0) -> range:
    return range(1 + shard, calls(lasts) + 1, SHARDS)


@each_duration
def test_undisturbed(lasts: int) -> None:
    disk, world = spoiled(Faults(), lasts)
    assert world.done
    assert world.effects == dict.fromkeys((call.call_id for row in SCRIPT for call in row if call.side_effects), 1)
    snapshots = [line for line in disk.calls.log if "replace" in line and line.endswith(".json)")]
    assert len(snapshots) > (3 if lasts < 1000 else 0), "it is to compact several times"
    assert disk.calls.count < MANY_CALLS


@each_shard
@each_duration
def test_power_lost_before_each_call(shard: int, lasts: int) -> None:
    for call in cuts(shard, lasts):
        lose_power(*spoiled(Faults(cut_before=call), lasts), seed=call)


def test_power_lost_after_the_end() -> None:
    disk, world = spoiled(Faults(cut_after=calls()))
    lose_power(disk, world, seed=0, number=40)


@each_shard
@each_duration
def test_killed_before_each_call(shard: int, lasts: int) -> None:
    for call in cuts(shard, lasts):
        disk, world = spoiled(Faults(kill_before=call), lasts)
        finish(disk, world, f"{disk.calls.faults}")


@each_shard
@pytest.mark.parametrize("persistently", [False, True])
@pytest.mark.parametrize("lasts", LASTS[:2])
def test_each_call_fails(shard: int, persistently: bool, lasts: int) -> None:
    """A process that goes on as the loop does; then the next one, with the machine still up or after a power loss."""
    codes = list(CODES.values())
    for call in cuts(shard, lasts):
        plan = Faults(fail_call=call, code=codes[call % len(codes)], persistently=persistently, written=call % 5 / 4)
        disk, world = spoiled(plan, lasts)
        lose_power(disk, world, seed=call, number=1)
        finish(disk, world, f"{plan}")


@each_shard
def test_power_lost_again_while_it_recovers(shard: int) -> None:
    """Some of the first twenty calls of a recovery, after a cut at some call and with some outcome."""
    chance = random.Random(shard)
    for call in cuts(shard)[::3]:
        disk, world = spoiled(Faults(cut_before=call))
        outcome = PickedOutcome(random.Random(call).randrange)
        for again in chance.sample(range(1, 21), 4):
            plan = Faults(cut_before=again) if again % 2 else Faults(kill_before=again)
            second, later = disk.crash(outcome, plan), world.lose_power()
            advance(second, later)
            lose_power(second, later, seed=call, number=0)


def chain(pick: Callable[[int], int]) -> None:
    """Up to three processes one after another, each with a fault of its own, and one without."""
    # Where the sync of a new state directory's own name failed, later processes take it for durable.
    bare = SimulatedDisk()
    bare.make_private_dir(STATE_DIR)
    for directory in ("/", "/home"):
        bare.sync_directory(directory)
    disk, world = bare.kill(some_faults(pick)), World(compaction_lasts=pick(7))
    said = [str(disk.calls.faults)]
    try:
        for _ in range(1 + pick(3)):
            advance(disk, world)
            if pick(2):
                disk, world = disk.crash(PickedOutcome(pick), some_faults(pick)), world.lose_power()
                said.append("power lost")
            else:
                disk = disk.kill(some_faults(pick))
            said.append(str(disk.calls.faults))
        advance(disk, world)
    except BaseException as error:
        error.add_note("==== " + "\n".join(said))
        raise
    finish(disk, world, "\n".join(said))


def some_faults(pick: Callable[[int], int]) -> Faults:
    kind = pick(5)
    if kind == 0:
        return Faults()
    call = 1 + pick(MANY_CALLS)
    if kind == 1:
        return Faults(cut_before=call)
    if kind == 2:
        return Faults(kill_before=call)
    code = list(CODES.values())[pick(len(CODES))]
    return Faults(fail_call=call, code=code, persistently=kind == 3, written=pick(5) / 4)


@each_shard
def test_one_fault_after_another(shard: int) -> None:
    for seed in range(shard, CHAINS, SHARDS):
        chain(random.Random(seed).randrange)


@given(data=st.data())
@settings(max_examples=40)
def test_whatever_is_chosen(data: st.DataObject) -> None:
    chain(lambda n: data.draw(st.integers(0, n - 1)))


def never_sync(journal: JournalFile) -> None:
    journal._synced = journal.next_seq - 1


def trust_a_failed_sync(journal: JournalFile) -> None:
    try:
        journal._disk.sync(journal._fd)
    except OSError:
        journal._disk.sync(journal._fd)


def blind_to_boots(call: OpenCall, *, same_boot: bool) -> recovery.ResumeVerdict:
    return recovery.judge(call, same_boot=True)


@pytest.mark.parametrize(
    "flaw", ["never synced", "failed sync trusted", "old file removed first", "boots not told apart"]
)
def test_flaws_are_caught(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    if flaw == "never synced":
        monkeypatch.setattr(JournalFile, "sync", never_sync)
    elif flaw == "failed sync trusted":
        monkeypatch.setattr(JournalFile, "sync", trust_a_failed_sync)
    elif flaw == "old file removed first":
        replace = SimulatedDisk.replace

        def not_atomic(disk: SimulatedDisk, source: str, target: str) -> None:
            disk.remove(target)
            replace(disk, source, target)

        monkeypatch.setattr(SimulatedDisk, "replace", not_atomic)
    else:
        monkeypatch.setattr(scripted, "judge", blind_to_boots)
    assert any(goes_wrong(call) for call in range(1, calls() + 1))


def goes_wrong(call: int) -> bool:
    try:
        for plan in (Faults(cut_before=call), Faults(fail_call=call)):
            lose_power(*spoiled(plan), seed=call, number=1)
    except (AssertionError, StateError):
        return True
    return False

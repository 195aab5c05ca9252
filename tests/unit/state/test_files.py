"""Files written through a disk that fails."""

from __future__ import annotations

import pytest

from agent_host.faults.crash import Faults
from agent_host.faults.disk import SimulatedDisk
from state.disk import replace_atomically, second_name, write_new


def writing() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_private_dir("/w")
    return disk


def test_a_file_that_could_not_be_written_whole_is_taken_away() -> None:
    whole = writing()
    before = whole.calls.count
    assert write_new(whole, "/w/a", [b"content"]) == 7
    assert [line.split("(")[0].split()[-1] for line in whole.calls.log[before:]] == [
        "open_new",
        "write",
        "sync",
        "close",
    ]
    for call in range(before + 1, whole.calls.count + 1):
        disk = writing()
        disk.calls.faults = Faults(fail_call=call)
        with pytest.raises(OSError, match="error"):
            write_new(disk, "/w/a", [b"content"])
        assert disk.names("/w") == [], disk.explain()


def test_a_file_that_could_not_be_put_in_place_leaves_the_one_before_and_nothing_else() -> None:
    whole = writing()
    write_new(whole, "/w/a", [b"before"])
    before = whole.calls.count
    replace_atomically(whole, "/w/a", [b"after"])
    for call in range(before + 1, whole.calls.count + 1):
        disk = writing()
        write_new(disk, "/w/a", [b"before"])
        disk.calls.faults = Faults(fail_call=call)
        with pytest.raises(OSError, match="error"):
            replace_atomically(disk, "/w/a", [b"after"])
        assert disk.names("/w") == ["a"], disk.explain()
        is_renamed = call == whole.calls.count  # the last call makes the new name durable
        assert disk.read("/w/a") == (b"after" if is_renamed else b"before")


def test_a_second_name_that_could_not_be_given_leaves_nothing() -> None:
    whole = writing()
    write_new(whole, "/w/a", [b"content"])
    before = whole.calls.count
    second_name(whole, "/w/a", "/w/b")
    (rename,) = (place for place, line in enumerate(whole.calls.log[before:], before + 1) if " replace(" in line)
    disk = writing()
    write_new(disk, "/w/a", [b"content"])
    disk.calls.faults = Faults(fail_call=rename)
    with pytest.raises(OSError, match="error"):
        second_name(disk, "/w/a", "/w/b")
    assert disk.names("/w") == ["a"]

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.output import HeadTail, artifacts, decode_body, decode_output, marker, truncate, truncate_text

if TYPE_CHECKING:
    from pathlib import Path


def test_truncate_keeps_four_fifths_in_front() -> None:
    assert truncate(b"x" * 100, 100) == b"x" * 100
    assert truncate(b"a" * 80 + b"-" * 50 + b"b" * 20, 100) == b"a" * 80 + marker(50, 150) + b"b" * 20
    assert truncate(b"abc", 0) == marker(3, 3)


@given(st.text(max_size=300), st.integers(0, 200))
def test_truncated_text_is_whole_characters_within_the_limit(text: str, limit: int) -> None:
    data = text.encode()
    cut = truncate(data, limit)
    cut.decode()  # raises when a character was cut
    if len(data) > limit:
        missing = int(cut.split(b"[... truncated ")[-1].split()[0])
        assert len(cut) - len(marker(missing, len(data))) == len(data) - missing <= limit
        assert missing - (len(data) - limit) <= 6, "no more is lost than two cut characters"
    assert truncate_text(text, limit).encode() == cut


@given(st.lists(st.binary(max_size=60), max_size=12), st.integers(0, 80), st.integers(0, 80))
def test_a_stream_is_cut_like_the_whole(chunks: list[bytes], limit: int, smaller: int) -> None:
    collected = HeadTail(limit)
    for chunk in chunks:
        collected.add(chunk)
    whole = b"".join(chunks)
    assert collected.total == len(whole)
    assert collected.render(min(smaller, limit)) == truncate(whole, min(smaller, limit))


def test_a_stream_is_kept_in_bounded_memory() -> None:
    collected = HeadTail(1000)
    for _ in range(1000):
        collected.add(b"x" * 150)
    assert len(collected._head) + len(collected._tail) < 2000


def test_decoding() -> None:
    assert decode_output(b"a\r\nb\xff", crlf=True) == "a\nb�"
    assert decode_output(b"a\r\nb", crlf=False) == "a\r\nb"
    assert decode_body("é".encode("latin-1"), "iso-8859-1") == "é"
    assert decode_body("é".encode(), "no-such-charset") == "é"
    assert decode_body("é".encode("latin-1"), "utf-8") == "é"
    assert decode_body(b"\0\1") is None


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"d"]), max_size=25).map(b"".join)


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the patch program")
def test_diffs_apply(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("diffs")

    @given(LINES, LINES)
    def check(before: bytes, after: bytes) -> None:
        apply(folder, before, after)

    check()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the patch program")
def test_bounded_diffs_apply_and_stay_cheap(tmp_path: Path) -> None:
    before = b"".join(b"same\nold %d\n" % (n % 7) for n in range(20_000))
    after = b"head\n" + b"".join(b"same\nnew %d\n" % (n % 5) for n in range(20_000))
    began = time.process_time()
    artifacts.make_diff(before, after, "f")
    assert time.process_time() - began < 2
    apply(tmp_path, before, after)


def apply(folder: Path, before: bytes, after: bytes) -> None:
    made = artifacts.make_diff(before, after, "f")
    if before == after:
        assert made == b""
        return
    (folder / "f").write_bytes(before)
    subprocess.run(["patch", "--binary", "-s", "f"], input=made, cwd=folder, check=True)
    assert ((folder / "f").read_bytes() if (folder / "f").exists() else b"") == after


def test_a_diff_names_only_what_changed() -> None:
    before = b"".join(b"%d\n" % n for n in range(1, 10_001))
    after = before.replace(b"\n5000\n", b"\nfive thousand\n")
    assert artifacts.make_diff(before, after, "f") == (
        b"--- f\n+++ f\n@@ -4997,7 +4997,7 @@\n 4997\n 4998\n 4999\n-5000\n+five thousand\n 5001\n 5002\n 5003\n"
    )
    assert b"Binary files differ: 2 and 1 bytes" in artifacts.make_diff(b"\0a", b"b", "f")

"""How near the estimate of a request comes to what the gateway counts then, over whole sessions.

The gateway of these tests counts with the tokens that OpenAI's encodings make of texts of many kinds
(`tests/support/token_samples.py`), or with a third more, as encodings of other providers do.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from agent_host.events import EventType
from agent_host.thread.messages import estimate
from state.checkpoint import TokenUsage
from tests.support.loop import Loop
from tests.support.loop_parts import Script, Tools, calls, read, says, succeeded
from tests.support.rows import each_row
from tests.support.token_samples import Sample, samples

if TYPE_CHECKING:
    from pathlib import Path

    from agent_host.contracts import ToolRequest, ToolResult
    from agent_host.llm import ModelTurn

SAMPLES = samples()
# Of these the estimate is off by another share than of all others: a session that has nothing else is counted right
# from the second answer on.
ODD = {"paths", "russian", "chinese"}
COMMON = sorted(SAMPLES.keys() - ODD)
STEPS = 8


class Counting(Script):
    """A model whose gateway counts input: `scale` times the tokens of the samples that a request has, in `encoding`,
    and of what else it has about as many as the estimate says without its margin."""

    def __init__(self, encoding: str, scale: float, *turns: Any) -> None:
        super().__init__(*turns)
        self.encoding = encoding
        self.scale = scale

    async def stream(self, head: bytes, messages: Any, *more: Any) -> ModelTurn:
        """See Model."""
        turn = await super().stream(head, messages, *more)
        text = str(self.requests[-1])
        found = {sample: text.count(repr(sample.text)[1:-1]) for sample in SAMPLES.values()}
        known = sum(self._tokens(sample) * times for sample, times in found.items())
        rest = estimate(text) - sum(estimate(sample.text) * times for sample, times in found.items())
        counted = round(self.scale * (known + rest / 1.1))
        return turn._replace(usage=TokenUsage(counted, 20))

    def _tokens(self, sample: Sample) -> int:
        return int(getattr(sample, self.encoding))


def session(folder: Path, results: list[str], *, encoding: str, scale: float) -> Loop:
    """A session whose prompt is a schema and prose, as the head of a real one is, and whose calls have `results`."""
    left = iter(results)

    def answer(request: ToolRequest) -> ToolResult:
        return succeeded(request, next(left))

    loop = Loop(folder, tools=Tools(answer))
    turns = [*(calls(read(folder / f"file-{number}")) for number in range(len(results))), says()]
    model = Counting(encoding, scale, *turns)
    loop.model = loop.ctx.conversation.llm = model
    loop.begin(prompt="\n".join(SAMPLES[kind].text for kind in ("schema", "prose")), max_steps=len(results) + 1)
    return loop


def errors(loop: Loop) -> list[float]:
    """By which share each estimate was too high."""
    estimated = [told["estimatedInputTokens"] for told in loop.told(EventType.LLM_REQUEST_STARTED)]
    counted = [told["inputTokens"] for told in loop.told(EventType.LLM_REQUEST_COMPLETED)]
    return [one / other - 1 for one, other in zip(estimated, counted, strict=True)]


def drawn(seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["\n".join(SAMPLES[kind].text for kind in chance.choices(COMMON, k=3)) for _ in range(STEPS)]


@pytest.mark.many_rows(8)
@pytest.mark.parametrize(("encoding", "scale"), [("o200k", 1.0), ("cl100k", 1.0), ("o200k", 1.35)])
@pytest.mark.parametrize("seed", range(8))
async def test_after_the_first_answer_the_estimate_is_within_a_tenth(
    tmp_path: Path, seed: int, encoding: str, scale: float
) -> None:
    loop = session(tmp_path, drawn(seed), encoding=encoding, scale=scale)
    assert (await loop.run()).status == "completed"
    first, *later = errors(loop)
    assert -0.1 < first < 0.5, "the first one errs high, but for a provider with a third more tokens"
    assert len(later) == STEPS
    assert max(map(abs, later)) < 0.1, later


@pytest.mark.parametrize("kind", sorted(ODD))
async def test_of_odd_text_the_second_answer_tells(tmp_path: Path, kind: str) -> None:
    loop = session(tmp_path, [SAMPLES[kind].text] * STEPS, encoding="cl100k", scale=1.0)
    assert (await loop.run()).status == "completed"
    assert max(map(abs, errors(loop)[3:])) < 0.1, errors(loop)


@each_row("kind", sorted(SAMPLES))
def test_the_estimate_errs_high(kind: str) -> None:
    """Before an answer: by a quarter more than these figures (`loop.requests`)."""
    sample = SAMPLES[kind]
    most = 2.4 if kind in ODD else 1.3
    assert 1.0 <= estimate(sample.text) / sample.o200k < most
    assert 1.25 * estimate(sample.text) >= 0.95 * sample.cl100k


async def test_a_resume_goes_on_with_what_was_counted(tmp_path: Path) -> None:
    results = drawn(1)
    loop = session(tmp_path, results, encoding="o200k", scale=1.35)

    def stop() -> None:
        if len(loop.model.requests) == 4:
            loop.ctx.cancellation.request(resumable=True)

    loop.model.at_request = stop
    assert (await loop.run()).resumable
    again = loop.again(tools=loop.tools)
    again.model = again.ctx.conversation.llm = Counting("o200k", 1.35, *loop.model.turns)
    assert (await again.run()).status == "completed"
    assert max(map(abs, errors(again))) < 0.1, "the first estimate of the next process as well"

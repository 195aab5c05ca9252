"""The merge of the live stream and GetEvents by the rules of docs/events.md, which lists the source of this class."""

from __future__ import annotations

from typing import Any


class MergedEvents:
    """The events of a session that a client has, from the live stream and from GetEvents."""

    def __init__(self) -> None:
        self._covering: dict[int, dict[str, Any]] = {}  # for each number the event that covers it
        self._last_live = 0
        self._gaps: list[tuple[int, int]] = []  # (last number before it, last number in it; 0: not known)
        self.is_incomplete = False  # something is lost for good

    def connected(self) -> None:
        """Expect to have missed events: the session began before this connection."""
        self._gaps.append((self._last_live, 0))

    def live(self, event: dict[str, Any]) -> None:
        """Take an event of the live stream."""
        if event.get("droppedEvents"):
            self._gaps.append((self._last_live, event.get("firstEventId", event["eventId"]) - 1))
        self._last_live = event["eventId"]
        self._keep(event)

    @property
    def ask_since(self) -> int | None:
        """The `sinceId` to ask GetEvents with, None where nothing is missing."""
        return min((since for since, _ in self._gaps), default=None)

    def reply(self, result: dict[str, Any]) -> None:
        """Take the result of GetEvents for `ask_since`."""
        for event in result["events"]:
            self._keep(event)
        latest = result["latestId"]
        known = result["events"][-1]["eventId"] if result["events"] else latest
        self._gaps = [(max(since, known), until) for since, until in self._gaps if known < (until or latest)]
        self.is_incomplete |= result["gapDetected"]

    def _keep(self, event: dict[str, Any]) -> None:
        last = event["eventId"]
        numbers = range(event.get("firstEventId", last), last + 1)
        if not all(number in self._covering for number in numbers):
            self._covering.update(dict.fromkeys(numbers, event))

    @property
    def events(self) -> list[dict[str, Any]]:
        """All of them, in order."""
        kept = {event["eventId"]: event for event in self._covering.values()}
        return [kept[number] for number in sorted(kept)]

    def text(self, step_id: str, kind: str = "text_chunk") -> str:
        """What the model says in a step, without what was taken back; `kind` is `text_chunk` or `thinking_chunk`."""
        said = [event for event in self.events if event.get("stepId") == step_id and "attempt" in event["payload"]]
        attempts = [event["payload"]["attempt"] + (event["eventType"] == "llm_retry") for event in said]
        pieces = [event["payload"] for event in said if event["eventType"] == kind]
        return "".join(piece["text"] for piece in pieces if piece["attempt"] == max(attempts))

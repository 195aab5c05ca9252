"""Which turn answers a request."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from agent_host.testing.placeholders import fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.testing.dialect import RequestView
    from agent_host.testing.script import Script, Turn

_MAX_SESSIONS = 10_000


class OffTheEnd(LookupError):
    """The script has no turn for the request; the text says which one was wanted."""


class TurnChooser:
    """Chooses by the last message first, then by position.

    The only state is how often turns with a limit have been served, per session, so a request that is sent again,
    by the same process or the next, gets the same answer again.
    """

    def __init__(self, script: Script) -> None:
        self._variables = script.variables
        self._conditional = [turn for turn in script.turns if turn.when is not None]
        self._by_position: list[tuple[Turn, ...]] = []
        failing: tuple[Turn, ...] = ()
        for turn in script.turns:
            if turn.when is not None:
                continue
            if turn.fails:
                failing += (turn,)
            else:
                # A failing turn leaves no message in the thread: it shares the position of the answer it delays.
                self._by_position.append((*failing, turn))
                self._by_position.extend([(turn,)] * (turn.repeat - 1))
                failing = ()
        if failing:
            self._by_position.append(failing)
        self._served: OrderedDict[str, Counter[int]] = OrderedDict()

    def choose(self, view: RequestView) -> Turn:
        """The turn for a request. Nothing is counted yet: see `served`.

        Raises:
            OffTheEnd: no turn with conditions matches and the position is beyond the last one.
        """
        counts: Mapping[int, int] = self._served.get(view.session, {})
        variables = {**self._variables, "turn": str(view.turn_index)}
        for turn in self._conditional:
            if _left(turn, counts) and all(fill(condition, variables).met(view) for condition in turn.when or ()):
                return turn
        if view.position < len(self._by_position):
            for turn in self._by_position[view.position]:
                if _left(turn, counts):
                    return turn
        raise OffTheEnd(
            f"the script has no answer left: it has {len(self._by_position)} by position, answer "
            f"{view.position + 1} is asked for, and no 'when' matches"
        )

    def served(self, turn: Turn, session: str) -> None:
        """Count one use of `turn`. The counts of the sessions used longest ago are dropped beyond 10,000 sessions."""
        if turn.limit is None:
            return
        counts = self._served.setdefault(session, Counter())
        counts[turn.number] += 1
        self._served.move_to_end(session)
        if len(self._served) > _MAX_SESSIONS:
            self._served.popitem(last=False)


def _left(turn: Turn, counts: Mapping[int, int]) -> bool:
    return turn.limit is None or counts.get(turn.number, 0) < turn.limit

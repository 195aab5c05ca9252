"""Which event of a Responses stream belongs to which item of its output (AH 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from config.lean_typing import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["message", "function_call", "reasoning", "other"]
_KINDS: Final[Mapping[str, Kind]] = {
    "message": "message",
    "function_call": "function_call",
    "reasoning": "reasoning",
}


class Place(NamedTuple):
    """How an event names its item: by its id, "" for none, and by its place in the output, None for none."""

    item_id: str
    number: int | None


class Item:
    """One item as far as it has come. `parts` are the deltas of its text or arguments, `refused` those of a refusal,
    `size` the bytes of the arguments. `is_done`: its last event came; `is_whole`: the answer did not end in it. `raw`
    is JSON text to keep: the item, or of a call the fields that came with it. `told`: its thinking was shown.
    `replaced` counts halves of characters that became U+FFFD."""

    __slots__ = (
        "arguments", "call_id", "index", "is_done", "is_whole", "kind", "name", "open_end", "parts", "raw", "refused",
        "replaced", "size", "text", "told",
    )  # fmt: skip

    def __init__(self, kind: Kind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.is_done = self.is_whole = self.told = False
        self.call_id = self.name = self.arguments = self.text = ""
        self.raw: str | None = None
        self.parts: list[str] = []
        self.refused: list[str] = []
        self.open_end = ""  # the first half of a character that the next delta may complete
        self.size = self.replaced = 0


class StreamedItems:
    """The items of one answer. Of the two names of an item proxies get one or the other wrong: ids that change from
    event to event, one place for several items, or none. So an event belongs to the open item of its kind that has its
    id, else to that at its place."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._by_id: dict[tuple[Kind, str], Item] = {}
        self._by_index: dict[tuple[Kind, int], Item] = {}
        self._newest: dict[Kind, Item] = {}
        self._closed: set[tuple[Kind, Place, str]] = set()
        self._highest = 0

    def announce(self, kind: Kind, place: Place) -> Item:
        """A new item, or the one that is known: another event may have been sent before the one that announces it."""
        known = self._by_id.get((kind, place.item_id)) if place.item_id else None
        if known is None or known.is_done or place.number not in (None, known.index):
            return self._begin(kind, place)
        return known

    def open(self, kind: Kind, place: Place) -> Item:
        """The open item that an event belongs to; a new one where none is."""
        return self._find(kind, place) or self._begin(kind, place)

    def close(self, kind: Kind, place: Place, call_id: str) -> Item | None:
        """The item that has come to its end; None where it had before."""
        item = self._find(kind, place)
        names_it = bool(place.item_id) and place.number is not None
        if item is None:
            if names_it and (kind, place, call_id) in self._closed:
                return None
            item = self._begin(kind, place)
        if names_it:
            self._closed.add((kind, place, call_id))
        item.is_done = True
        return item

    def in_order(self) -> list[Item]:
        """The items by their places, and of one place in the order in which they began."""
        return sorted(self._items, key=lambda item: item.index)

    def _find(self, kind: Kind, place: Place) -> Item | None:
        found = self._by_id.get((kind, place.item_id)) if place.item_id else None
        if found is None or found.is_done:
            found = self._newest.get(kind) if place.number is None else self._by_index.get((kind, place.number))
        return None if found is None or found.is_done else found

    def _begin(self, kind: Kind, place: Place) -> Item:
        if place.number is not None:
            self._highest = max(place.number, self._highest)
        item = Item(kind, self._highest if place.number is None else place.number)
        self._items.append(item)
        if place.item_id:
            self._by_id[kind, place.item_id] = item
        if place.number is not None:
            self._by_index[kind, place.number] = item
        self._newest[kind] = item
        return item


def kind_of(item: Mapping[str, Any]) -> Kind:
    """What an item is here. Raises ValueError for one without a type."""
    kind = item.get("type")
    if not isinstance(kind, str) or not kind:
        raise ValueError("an item without a type")
    return _KINDS.get(kind, "other")

"""Messages of every kind, for tests that want any of them."""

from __future__ import annotations

from hypothesis import strategies as st

from agent_host.thread.messages import Message, Role, ToolCall

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
ids = st.text("abc_0123456789", min_size=1, max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, values, max_size=3)
calls = st.tuples(ids, texts, arguments, st.none() | texts.filter(bool)).map(lambda given: ToolCall(*given))
counts = st.integers(0, 10**6)
speakers: st.SearchStrategy[Role] = st.sampled_from(("system", "user"))
said = st.tuples(speakers, texts, counts).map(lambda given: Message(*given))
turns = st.tuples(st.just("assistant"), texts, counts, st.lists(calls, max_size=3).map(tuple)).map(
    lambda given: Message(*given)
)
results = st.tuples(st.just("tool"), texts, counts, st.just(()), ids, st.booleans()).map(lambda given: Message(*given))
messages = said | turns | results

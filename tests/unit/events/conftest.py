from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.otlp import Receiver


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    from tests.support.otlp import receiver  # it needs the extra, and the other tests here do not

    with receiver() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made

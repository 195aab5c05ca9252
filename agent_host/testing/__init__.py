"""Helpers for users' tests: the scripted gateway and the mock services, over real HTTP on loopback.

`MockGateway` answers model requests from a `Script` (docs/mock-gateway.md), `MockServices` replaces the backend
services (docs/services.md). Each is imported on first use.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent_host.testing.gateway import MockGateway, RequestRecord
    from agent_host.testing.script import Script, ScriptError
    from agent_host.testing.services import MockServices

__all__ = ["MockGateway", "MockServices", "RequestRecord", "Script", "ScriptError"]

_HOMES = {"MockServices": "services", "Script": "script", "ScriptError": "script"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'gateway')}"), name)


def __dir__() -> list[str]:
    return __all__

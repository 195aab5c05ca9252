"""`ObjectRead`: objects of S3, read and listed. Text of moderate size comes with the answer, anything else is
stored."""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_host.contracts import Artifact
from agent_host.errors import ErrorCode
from agent_host.services.workspace import StoredFile
from agent_host.tool_service.storage import BUCKET_SHAPE, Bucket
from agent_host.tool_service.tool import BucketSettings, Output, ToolFault
from config.shapes import MapOf, Record, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_host.tool_service.tool import Call, TenantServices

_INLINE_BYTES: Final = 64 * 1024
_MAX_OBJECT_BYTES: Final = 512 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_MOST_LISTED: Final = 1000
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "store": {"type": "string", "description": "name of the configured store"},
        "key": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "the object to read"},
        "list": {"type": "string", "maxLength": 1024, "description": "in place of key: list keys that begin so"},
        "offset": {"type": "integer", "minimum": 0, "description": "first byte to read (0)"},
        "length": {"type": "integer", "minimum": 1, "description": "how many bytes (all)"},
    },
    "required": ["store"],
    "oneOf": [{"required": ["key"]}, {"required": ["list"]}],
    "additionalProperties": False,
}


class ObjectReadTool:
    """See `agent_host.tool_service.tool.BackendTool`."""

    name = "ObjectRead"
    description = (
        "Read an object of a configured S3 store, or list its keys. Text up to 64 KiB comes with the answer; larger "
        "objects and other content are stored as artifacts."
    )
    input_schema: Mapping[str, Any] = _SCHEMA
    shape = Record({"stores": MapOf(BUCKET_SHAPE)}, {"maxObjectBytes": whole(1)}, closed=True)
    high_risk = False
    repeatable = True

    def build(self, configuration: Mapping[str, Any], services: TenantServices) -> ObjectRead:  # noqa: ARG002  BackendTool's
        """See BackendTool."""
        stores = {name: Bucket(BucketSettings.read(value)) for name, value in configuration["stores"].items()}
        return ObjectRead(stores, configuration.get("maxObjectBytes", _MAX_OBJECT_BYTES))


class ObjectRead:
    """The stores of one tenant. Keys are below each store's `prefix`, and cannot leave it: S3 knows no `..`."""

    def __init__(self, stores: Mapping[str, Bucket], max_object_bytes: int) -> None:
        self._stores = stores
        self._max_object_bytes = max_object_bytes

    async def run(self, call: Call) -> Output:
        """See RunningTool."""
        store = self._stores.get(call.arguments["store"])
        if store is None:
            known = ", ".join(sorted(self._stores)) or "none"
            raise ToolFault(ErrorCode.INVALID_REQUEST, f"there is no such store; there are: {known}")
        if "list" in call.arguments:
            return await _list(store, call.arguments["list"])
        return await self._read(store, call.arguments)

    async def aclose(self) -> None:
        """See RunningTool."""
        for store in self._stores.values():
            await store.aclose()

    async def _read(self, store: Bucket, arguments: Mapping[str, Any]) -> Output:
        key, offset, length = arguments["key"], arguments.get("offset", 0), arguments.get("length")
        wanted = {"Key": store.settings.prefix + key}
        if offset or length is not None:
            wanted["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        answer = await store.ask("get_object", **wanted)
        size = answer["ContentLength"]
        with _closing(answer["Body"]) as body:
            if size > self._max_object_bytes:
                raise ToolFault(
                    ErrorCode.FILE_TOO_LARGE,
                    f"the object has {size:,} bytes and at most {self._max_object_bytes:,} are read: ask for a part "
                    f"of it "
                    "with offset and length",
                )
            content = await asyncio.to_thread(_spool, body, size)
        kind, name = answer.get("ContentType", "application/octet-stream"), key.rpartition("/")[2] or key
        if isinstance(content, bytes):
            try:
                return Output(content.decode())
            except UnicodeDecodeError:
                pass
        said = f"{name}: {size:,} bytes, {kind}; stored as an artifact"
        return Output(said, (Artifact("tool_output", name, kind, content),))


async def _list(store: Bucket, beginning: str) -> Output:
    prefix = store.settings.prefix
    answer = await store.ask("list_objects_v2", Prefix=prefix + beginning, MaxKeys=_MOST_LISTED)
    rows = [
        {
            "key": one["Key"].removeprefix(prefix),
            "size": one["Size"],
            "modified": one["LastModified"].isoformat(),
        }
        for one in answer.get("Contents", ())
    ]
    return Output(orjson.dumps({"objects": rows, "truncated": bool(answer.get("IsTruncated"))}).decode())


class _closing:  # noqa: N801  a context manager in the form of contextlib.closing, which does not know boto3's types
    def __init__(self, body: Any) -> None:
        self._body = body

    def __enter__(self) -> Any:
        return self._body

    def __exit__(self, *_: object) -> None:
        self._body.close()


def _spool(body: Any, size: int) -> bytes | StoredFile:
    """The content: in memory where it is small, else in a file without a name. Raises ToolFault."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    try:
        if size <= _INLINE_BYTES:
            small: bytes = body.read()
            return small
        file = tempfile.TemporaryFile()  # noqa: SIM115  StoredFile owns it
        try:
            for piece in iter(lambda: body.read(_PIECE_BYTES), b""):
                file.write(piece)
            file.flush()
            return StoredFile(file)
        except BaseException:
            file.close()
            raise
    except (BotoCoreError, HTTPError, OSError) as error:
        raise ToolFault(
            ErrorCode.TOOL_EXECUTION_FAILED, f"the object could not be read whole ({type(error).__name__})"
        ) from None

"""S3 on loopback: moto's server in this process, with a client of its own."""

from __future__ import annotations

import contextlib
import urllib.request
from typing import TYPE_CHECKING, Any

import boto3
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator


class ObjectStore:
    """A running server; `settings` is how the tenants file names a bucket of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="id", aws_secret_access_key="key"
        )

    def settings(self, bucket: str, **more: Any) -> dict[str, Any]:
        own = {"bucket": bucket, "endpoint": self.url, "accessKeyId": "id", "secretAccessKey": "key", "pathStyle": True}
        return {**own, **more}

    def put(self, bucket: str, key: str, content: bytes, content_type: str = "text/plain") -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=content, ContentType=content_type)

    def get(self, uri: str) -> bytes:
        """The content that an s3:// URI names."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        content: bytes = self.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return content


@contextlib.contextmanager
def object_store(*buckets: str) -> Iterator[ObjectStore]:
    """A server with these buckets, empty."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = ObjectStore(f"http://{host}:{port}")
        urllib.request.urlopen(
            urllib.request.Request(f"{store.url}/moto-api/reset", method="POST")
        ).close()  # of others
        for bucket in buckets:
            store.client.create_bucket(Bucket=bucket)
        yield store
        store.client.close()
    finally:
        server.stop()

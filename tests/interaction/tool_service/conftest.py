"""A PostgreSQL server for each worker of the test run that needs one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.tool_service import Postgres, postgres, postgres_is_there

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A running server, with the database `shop` and its role `reader`, which owns nothing."""
    if not postgres_is_there():
        pytest.skip("PostgreSQL is not installed")
    with postgres() as running:
        with psycopg.connect(running.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        with psycopg.connect(running.url.removesuffix("postgres") + "shop", autocommit=True) as connection:
            connection.execute(
                """CREATE TABLE orders (id integer PRIMARY KEY, status text, amount numeric, paid boolean, weight
                float8); INSERT INTO orders SELECT i, CASE WHEN i % 2 = 0 THEN 'done' ELSE 'pending' END, i * 1.10, i %
                3 = 0, i / 4.0 FROM generate_series(1, 284) i;
                CREATE SEQUENCE numbers;
                CREATE FUNCTION touch() RETURNS integer LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
                CREATE FUNCTION touched(orders) RETURNS integer LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
                CREATE FUNCTION "Odd Name"() RETURNS integer LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'"""
            )
        yield running


@pytest.fixture
def shop(server: Postgres) -> str:
    """The URL of `shop`, as its superuser: no right of the role hides what the tool itself lets
    through."""
    return server.url.removesuffix("postgres") + "shop"


@pytest.fixture
def database(server: Postgres) -> str:
    """The URL of a new database."""
    name = f"answers_{os.urandom(4).hex()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url.removesuffix("postgres") + name

"""psycopg's pools of connections, without their warnings: these name host and user of what cannot be reached."""

from __future__ import annotations

import logging

from psycopg_pool import AsyncConnectionPool, PoolTimeout

__all__ = ["AsyncConnectionPool", "PoolTimeout"]

logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)

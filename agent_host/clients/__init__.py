"""Clients of session processes, shared by all user interfaces: processes that start at once, many of them, each on one
connection."""

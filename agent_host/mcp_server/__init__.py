"""The host as an MCP server: other agents and editors hand it tasks. Each session has a process of its own
(decision 57)."""

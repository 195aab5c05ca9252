"""MCP servers as a source of tools (TR 9). Only what `connection` brings along imports the SDK."""

"""Runs tool calls on this machine (TR). `tool_runtime.router` is the public face; importing this loads nothing."""

"""A small MCP server on standard input and output, for the recording of a session that uses one."""

import json
import sys

TOOL = {
    "name": "forecast",
    "description": "The weather of tomorrow at a place.",
    "inputSchema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        info = {"name": "weather", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"Sun at {params['arguments']['place']}, 21 degrees."}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)

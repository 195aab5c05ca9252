"""A complete client of `agent-host serve`: python client.py PROMPT [COMMAND...]. It shows the session on standard
error, asks for approvals, and prints the text that stands at the end. It needs the standard library only."""

import json
import subprocess
import sys
from collections import deque
from functools import partial

ENDS = ("task_completed", "task_failed", "task_cancelled", "session_paused", "session_failed")
show = partial(print, end="", file=sys.stderr, flush=True)


class Host:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.replies, self.live, self.count = {}, deque(), 0

    def read(self):  # one JSON object a line: an event, or the reply to a request
        message = json.loads(self.process.stdout.readline() or sys.exit("the host has ended"))
        if message.get("method") == "SessionEvent":
            self.live.append(message["params"])
        else:
            self.replies[message["id"]] = message

    def call(self, method, **params):
        self.count += 1
        request = {"jsonrpc": "2.0", "id": self.count, "method": method, "params": params}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        while request["id"] not in self.replies:
            self.read()
        reply = self.replies.pop(request["id"])
        return reply["result"] if "result" in reply else sys.exit(f"{method}: {reply['error']}")

    def events(self, session):  # each one once and in order, by rules 1 to 4 of docs/events.md
        last = 0
        while True:
            while not self.live:
                self.read()
            event = self.live.popleft()
            first, missing = event.get("firstEventId", event["eventId"]), event.get("droppedEvents")
            while missing and last < first - 1:
                reply = self.call("GetEvents", sessionId=session, sinceId=last)
                missing = [one for one in reply["events"] if one["eventId"] < first]
                yield from missing
                last = missing[-1]["eventId"] if missing else last
                show("[some events are lost]\n" if reply["gapDetected"] else "")
            yield event
            last = event["eventId"]


def main(prompt, *command):
    host = Host(command or ("agent-host", "serve"))
    who = {"userId": "me", "tenantId": "mine", "executionEnvironment": "desktop", "clientInfo": {"name": "client.py"}}
    session = host.call("CreateSession", **who, supportedCapabilities=[])["sessionId"]
    host.call("StartTask", sessionId=session, taskId="task-1", prompt=prompt)
    answer, text = "", ""  # what stands, and what this step has said
    for event in host.events(session):
        kind, payload = event["eventType"], event["payload"]
        if kind == "text_chunk":
            text += payload["text"]
            show(payload["text"])
        elif kind in ("step_started", "llm_retry"):  # rules 6 and 7: text of another attempt or step is taken back
            text = ""
            show(f"\n[taken back and tried again: {payload['message']}]\n" if kind == "llm_retry" else "")
        elif kind == "llm_request_completed":
            answer += text + "\n" if text else ""
        elif kind == "tool_requested":
            show(f"\n> {payload['toolName']} {json.dumps(payload.get('arguments'))}\n")
        elif kind == "tool_completed":
            shown = {name: payload[name] for name in ("exitCode", "message", "pathsChanged") if name in payload}
            show(f"< {payload['status']} {json.dumps(shown)}\n{payload['output']}\n")
        elif kind == "approval_requested":
            show(f"\n? {payload['actionSummary']} ({payload['riskLevel']} risk)\n")
            show("".join(f"  {name}: {value}\n" for name, value in payload["details"].items()) + "  approve? [y/N] ")
            decision = "approved" if sys.stdin.readline().strip() == "y" else "denied"
            host.call("ApproveAction", approvalId=payload["approvalId"], decision=decision)
        elif kind in ENDS:
            show(f"\n[{kind} {payload.get('message', '')}]\n")
            break
    host.call("Shutdown")
    host.process.wait()
    print(answer, end="")
    return kind != "task_completed"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)

"""A complete client of `agent-host serve`: python client.py PROMPT [COMMAND...]. It shows the session on standard
error, asks for approvals, and prints the text that stands at the end. It needs the standard library only."""

import json
import subprocess
import sys

ENDS = ("task_completed", "task_failed", "task_cancelled", "session_paused", "session_failed")


def show(text):
    print(text, end="", file=sys.stderr, flush=True)


class Host:
    def __init__(self, command):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=1, encoding="utf-8")
        self.live = []  # events that came while a reply was waited for

    def read(self):  # one JSON object a line: an event, or the reply to a request
        return json.loads(self.process.stdout.readline() or sys.exit("the host has ended"))

    def call(self, method, **params):
        print(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}), file=self.process.stdin)
        while "id" not in (message := self.read()):
            self.live.append(message["params"])
        return message["result"] if "result" in message else sys.exit(f"{method}: {message['error']}")

    def events(self, session):  # each one once and in order, by rules 1 to 4 of docs/events.md
        last = 0
        while True:
            event = self.live.pop(0) if self.live else self.read()["params"]
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
    answer = text = ""  # what stands, and what this step has said
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
            details = "".join(f"  {name}: {value}\n" for name, value in payload["details"].items())
            show(f"\n? {payload['actionSummary']} ({payload['riskLevel']} risk)\n{details}  approve? [y/N] ")
            decision = "approved" if sys.stdin.readline().strip() == "y" else "denied"
            host.call("ApproveAction", approvalId=payload["approvalId"], decision=decision)
        elif kind in ENDS:
            break
    show(f"\n[{kind} {payload.get('message', '')}]\n")
    host.call("Shutdown")
    print(answer, end="")
    return host.process.wait() or kind != "task_completed"


sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)

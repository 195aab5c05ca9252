// A complete client of `agent-host serve` on vscode-jsonrpc: node client.ts PROMPT [COMMAND...]. It shows the session on
// standard error, asks for approvals, and prints the text that stands at the end. Messages are framed by Content-Length.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { createMessageConnection, StreamMessageReader, StreamMessageWriter } from 'vscode-jsonrpc/node.js';

type SessionEvent = { eventId: number; eventType: string; firstEventId?: number; droppedEvents?: number; payload: any };

const ENDS = ['task_completed', 'task_failed', 'task_cancelled', 'session_paused', 'session_failed'];
const [prompt, program = 'agent-host', ...options] = process.argv.slice(2);
const host = spawn(program, process.argv[3] ? options : ['serve'], { stdio: ['pipe', 'pipe', 'inherit'] });
const exited = new Promise((resolve) => host.on('exit', resolve));
const rpc = createMessageConnection(new StreamMessageReader(host.stdout), new StreamMessageWriter(host.stdin));
const typed = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const show = (text: string) => process.stderr.write(text);
const call = (method: string, params: object): Promise<any> => rpc.sendRequest(method, params);

function fail(error: any): never {
  show(`${error.data?.code ?? 'error'}: ${error.message}\n`);
  process.exit(1); // which closes the host's standard input: it ends, and the session can be resumed
}
host.on('error', fail);

const live: SessionEvent[] = [];
let news = () => {};
rpc.onNotification('SessionEvent', (event: SessionEvent) => {
  live.push(event);
  news();
});
let over = false;
rpc.onClose(() => over || fail(new Error('the host has ended')));
rpc.listen();

// Each event once and in order, by rules 1 to 4 of docs/events.md.
async function* inOrder(sessionId: string): AsyncGenerator<SessionEvent> {
  for (let last = 0; ; ) {
    while (live.length === 0) await new Promise<void>((resolve) => (news = resolve));
    const event = live.shift()!;
    const first = event.firstEventId ?? event.eventId;
    for (let missing = event.droppedEvents ?? 0; missing > 0 && last < first - 1; ) {
      const reply = await call('GetEvents', { sessionId, sinceId: last });
      const found = reply.events.filter((one: SessionEvent) => one.eventId < first);
      yield* found;
      missing = found.length;
      last = found.at(-1)?.eventId ?? last;
      if (reply.gapDetected) show('[some events are lost]\n');
    }
    yield event;
    last = event.eventId;
  }
}

async function main(): Promise<void> {
  const who = { userId: 'me', tenantId: 'mine', executionEnvironment: 'desktop', clientInfo: { name: 'client.ts' } };
  const { sessionId } = await call('CreateSession', { ...who, supportedCapabilities: [] });
  await call('StartTask', { sessionId, taskId: 'task-1', prompt });
  let [answer, text] = ['', '']; // what stands, and what this step has said
  for await (const { eventType, payload } of inOrder(sessionId)) {
    if (eventType === 'text_chunk') {
      text += payload.text;
      show(payload.text);
    } else if (eventType === 'step_started' || eventType === 'llm_retry') {
      text = ''; // rules 6 and 7: text of another attempt or step is taken back
      if (eventType === 'llm_retry') show(`\n[taken back and tried again: ${payload.message}]\n`);
    } else if (eventType === 'llm_request_completed') {
      answer += text && text + '\n';
    } else if (eventType === 'tool_requested') {
      show(`\n> ${payload.toolName} ${JSON.stringify(payload.arguments)}\n`);
    } else if (eventType === 'tool_completed') {
      const { status, exitCode, message, pathsChanged, output } = payload;
      show(`< ${status} ${JSON.stringify({ exitCode, message, pathsChanged })}\n${output}\n`);
    } else if (eventType === 'approval_requested') {
      show(`\n? ${payload.actionSummary} (${payload.riskLevel} risk)\n`);
      for (const [name, value] of Object.entries(payload.details)) {
        show(`  ${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}\n`);
      }
      show('  approve? [y/N] ');
      const decision = (await typed.next()).value?.trim() === 'y' ? 'approved' : 'denied';
      await call('ApproveAction', { approvalId: payload.approvalId, decision });
    } else if (ENDS.includes(eventType)) {
      show(`\n[${eventType} ${payload.message ?? ''}]\n`);
      process.exitCode = eventType === 'task_completed' ? 0 : 1;
      break;
    }
  }
  over = true;
  await call('Shutdown', {});
  await exited;
  process.stdin.destroy();
  process.stdout.write(answer);
}

main().catch(fail);

// A client of `agent-host serve` on the JSON-RPC library of VS Code, as a desktop app would write it.
//
//     node client.js COMMAND ARGUMENT...
//
// starts the command, plays one session with it, and prints what it was answered as one JSON object.
'use strict';

const { spawn } = require('node:child_process');
const readline = require('node:readline');
const rpc = require('vscode-jsonrpc/node');

class LineReader extends rpc.AbstractMessageReader {
  constructor(stream) {
    super();
    this.lines = readline.createInterface({ input: stream, crlfDelay: Infinity });
  }
  listen(callback) {
    this.lines.on('line', (line) => [JSON.parse(line)].flat().forEach(callback));
    this.lines.on('close', () => this.fireClose());
    return rpc.Disposable.create(() => this.lines.close());
  }
}

class LineWriter extends rpc.AbstractMessageWriter {
  constructor(stream) {
    super();
    this.stream = stream;
    this.held = null;
  }
  async write(message) {
    if (this.held) this.held.push(message);
    else this.stream.write(JSON.stringify(message) + '\n');
  }
  // What `send` sends goes out as one JSON-RPC batch; the library itself knows none.
  async batch(send) {
    this.held = [];
    const answers = send();
    await new Promise((resolve) => setImmediate(resolve));
    const batch = this.held;
    this.held = null;
    await this.write(batch);
    return { sent: batch.length, answers: await Promise.all(answers) };
  }
  end() {
    this.stream.end();
  }
}

async function refused(request) {
  try {
    return { answered: await request };
  } catch (error) {
    return { code: error.code, message: error.message, data: error.data };
  }
}

async function play(client, writer) {
  const events = [];
  let wake = () => {};
  client.onNotification('SessionEvent', (event) => {
    events.push(event);
    wake();
  });
  async function event(type, taskId) {
    for (;;) {
      const found = events.find((one) => one.eventType === type && (!taskId || one.taskId === taskId));
      if (found) return found;
      await new Promise((resolve) => (wake = resolve));
    }
  }
  client.listen();
  const told = {};
  told.tooEarly = await refused(client.sendRequest('GetSessionState', { sessionId: 'x' }));
  told.created = await client.sendRequest('CreateSession', {
    userId: 'u',
    tenantId: 't',
    executionEnvironment: 'desktop',
    clientInfo: { name: 'vscode-jsonrpc', osFamily: process.platform },
    supportedCapabilities: [],
  });
  const { sessionId } = told.created;

  told.started = await client.sendRequest('StartTask', { sessionId, taskId: 'task-1', prompt: 'Write it.' });
  const { approvalId } = (await event('approval_requested', 'task-1')).payload;
  told.waiting = await client.sendRequest('GetSessionState', { sessionId });
  told.second = await refused(client.sendRequest('StartTask', { sessionId, taskId: 'task-x', prompt: 'Too soon.' }));
  told.approved = await client.sendRequest('ApproveAction', { approvalId, decision: 'approved', reason: 'fine' });
  await event('task_completed', 'task-1');

  told.batch = await writer.batch(() => [
    client.sendRequest('GetPatchPreview', { sessionId }),
    client.sendRequest('GetEvents', { sessionId, sinceId: 0 }),
    refused(client.sendRequest('NoSuchMethod', {})),
    refused(client.sendRequest('StartTask', { sessionId, taskId: 'task-x', prompt: 7 })),
  ]);

  told.hanging = await client.sendRequest('StartTask', { sessionId, taskId: 'task-2', prompt: 'Wait.' });
  await event('tool_requested', 'task-2');
  told.cancelling = await client.sendRequest('CancelTask', { sessionId, taskId: 'task-2', force: true });
  await event('task_cancelled', 'task-2');
  told.cancelled = await client.sendRequest('GetSessionState', { sessionId });
  told.shutdown = await client.sendRequest('Shutdown', { reason: 'that was all' });
  told.events = events;
  return told;
}

async function main([command, ...argv]) {
  const host = spawn(command, argv, { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => host.on('exit', resolve));
  const writer = new LineWriter(host.stdin);
  const client = rpc.createMessageConnection(new LineReader(host.stdout), writer);
  const told = await play(client, writer);
  told.exitCode = await ended;
  process.stdout.write(JSON.stringify(told));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});

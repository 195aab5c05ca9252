// An editor on the protocol's own SDK.
//
//     node client.js WORKSPACE COMMAND ARGUMENT...
//
// starts the command, plays a session with it, cancels a prompt, loads the session again, and prints what it was told as
// one JSON object.
'use strict';

const { spawn } = require('node:child_process');
const { Readable, Writable } = require('node:stream');
const acp = require('@agentclientprotocol/sdk');

async function play(agent, workspace, updates) {
  const initialized = await agent.request('initialize', {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { session: { notices: {} }, elicitation: { form: {} } },
    clientInfo: { name: 'sdk', version: '2.4.0' },
  });
  const session = await agent.request('session/new', { cwd: workspace, mcpServers: [] });
  const sessionId = session.sessionId;
  const prompt = (text) => agent.request('session/prompt', { sessionId, prompt: [{ type: 'text', text }] });
  const first = await prompt('Write it.');
  const running = prompt('Wait.');
  await updates.until((one) => JSON.stringify(one.content ?? '').includes('started'));
  await agent.notify('session/cancel', { sessionId });
  const second = await running;
  const listed = await agent.request('session/list', { cwd: workspace });
  const before = updates.all.length;
  const loaded = await agent.request('session/load', { sessionId, cwd: workspace, mcpServers: [] });
  const history = updates.all.slice(before).map((one) => one.sessionUpdate);
  await agent.request('session/close', { sessionId });
  await agent.request('session/delete', { sessionId });
  const gone = await agent.request('session/list', {});
  return { initialized, session, first, second, listed, loaded, history, gone };
}

function collected() {
  const all = [];
  let wake = () => {};
  return {
    all,
    take(update) {
      all.push(update);
      wake();
    },
    async until(fits) {
      while (!all.some(fits)) await new Promise((resolve) => (wake = resolve));
    },
  };
}

async function main() {
  const [workspace, command, ...args] = process.argv.slice(2);
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  const updates = collected();
  const asked = [];
  const app = acp
    .client()
    .onNotification('session/update', ({ params }) => updates.take(params.update))
    .onRequest('session/request_permission', ({ params }) => {
      asked.push(params);
      return { outcome: { outcome: 'selected', optionId: 'allow_once' } };
    });
  const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
  const told = await app.connectWith(stream, (agent) => play(agent, workspace, updates));
  child.stdin.end();
  const exitCode = await exited;
  process.stdout.write(JSON.stringify({ ...told, updates: updates.all, asked, exitCode }));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n${JSON.stringify(error)}\n`);
  process.exit(1);
});

"use strict";
// The live page: the parts that the server sends take the place of those before. Their text was escaped there.
(() => {
  const status = document.getElementById("live");
  const session = location.pathname.startsWith("/s/") ? location.pathname.slice(3) : "";

  function takeToken() {
    const found = /^#token=([\w-]+)$/.exec(location.hash);
    if (found) {
      sessionStorage.setItem("token", found[1]);
      history.replaceState(null, "", location.pathname);
    }
    return sessionStorage.getItem("token") || "";
  }
  let token = takeToken();

  // A page in another tab of this server, whose link a person has opened here, lends the token: no other origin hears.
  const tabs = new BroadcastChannel("agent-host-token");
  tabs.onmessage = (event) => {
    if (event.data === "lend" && token) tabs.postMessage({ token });
    else if (!token && typeof event.data?.token === "string") begin(event.data.token);
  };

  function begin(lent) {
    token = lent;
    sessionStorage.setItem("token", token);
    run();
  }

  function nodesOf(html) {
    return [...new DOMParser().parseFromString(html, "text/html").body.childNodes];
  }

  // What a person has unfolded or stands on stays so.
  function swap(place, nodes) {
    const open = new Map();
    place.querySelectorAll("[id] details, details.file").forEach((one) => open.set(keyOf(one), one.open));
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const href = focused && focused.getAttribute("href");
    place.replaceChildren(...nodes);
    place.querySelectorAll("[id] details, details.file").forEach((one) => {
      const before = open.get(keyOf(one));
      if (before !== undefined) one.open = before;
    });
    if (href) [...place.querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === href)?.focus({ preventScroll: true });
  }

  function keyOf(details) {
    const item = details.closest("[id]");
    return `${item ? item.id : ""} ${details.classList.contains("file") ? details.textContent.slice(0, 200) : ""}`;
  }

  function putStep(name, html) {
    const steps = document.getElementById("steps");
    const [fresh] = nodesOf(html).filter((node) => node.nodeType === 1);
    const old = document.getElementById(name);
    if (!fresh) return;
    if (!old) { steps.append(fresh); return; }
    swap(old, [...fresh.childNodes]);
  }

  function take(change) {
    if (!change.parts) return;
    const isLow = window.innerHeight + window.scrollY > document.body.scrollHeight - 80 && window.scrollY > 0;
    document.title = change.title;
    for (const [name, html] of Object.entries(change.parts)) {
      const place = document.getElementById(name);
      if (place) swap(place, nodesOf(html));
    }
    for (const name of change.gone) document.getElementById(name)?.remove();
    for (const [name, html] of change.steps) putStep(name, html);
    document.getElementById("found-bar").hidden = false;
    document.getElementById("fold").hidden = !session;
    tellAges();
    Pages.forget();
    Pages.search();
    if (isLow) window.scrollTo(0, document.body.scrollHeight);
    if (first) { first = false; Pages.start(); }
  }
  let first = true;

  function tellAges() {
    for (const one of document.querySelectorAll("time[datetime]")) {
      const minutes = Math.floor((Date.now() - Date.parse(one.dateTime)) / 60000);
      if (Number.isNaN(minutes)) continue;
      one.title = one.dateTime;
      one.textContent = minutes < 1 ? "now" : minutes < 60 ? `${minutes} min ago`
        : minutes < 2880 ? `${Math.floor(minutes / 60)} h ago` : `${Math.floor(minutes / 1440)} d ago`;
    }
  }

  async function read() {
    const path = session ? `/api/sessions/${session}` : "/api/sessions";
    const reply = await fetch(path, { headers: { "x-agent-host-token": token }, cache: "no-store" });
    if (!reply.ok) {
      status.textContent = (await reply.text()).trim();
      return reply.status >= 500;
    }
    status.textContent = "live";
    const reader = reply.body.getReader(), decoder = new TextDecoder();
    let waiting = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return true;
      waiting += decoder.decode(value, { stream: true });
      const lines = waiting.split("\n");
      waiting = lines.pop();
      for (const line of lines) take(JSON.parse(line));
    }
  }

  async function answer(event) {
    const button = event.target.closest("button[data-decision]");
    if (!button) return;
    const place = button.closest("[data-approval]"), said = place.querySelector("[role=status]");
    place.querySelectorAll("button").forEach((one) => { one.disabled = true; });
    const reply = await fetch("/api/answers", {
      method: "POST",
      headers: { "x-agent-host-token": token, "content-type": "application/json" },
      body: JSON.stringify({ approvalId: place.dataset.approval, decision: button.dataset.decision }),
    });
    said.textContent = reply.ok ? (await reply.json()).status : (await reply.text()).trim();
  }

  async function run() {
    for (;;) {
      let again = true;
      try { again = await read(); } catch { /* the server is gone, or will be back */ }
      if (!again) return;
      status.textContent = "the server is away; trying again…";
      await new Promise((done) => { setTimeout(done, 1000); });
    }
  }

  document.addEventListener("click", answer);
  setInterval(tellAges, 30000);
  document.getElementById("home").hidden = !session;
  if (!session) document.getElementById("q").placeholder = "title, id, workspace…";
  if (token) {
    run();
  } else {
    status.textContent = "the token is missing: open the URL that `agent-host view` printed";
    tabs.postMessage("lend");
  }
})();

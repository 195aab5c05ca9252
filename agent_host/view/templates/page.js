"use strict";
// A page is readable without this: it searches, folds, and goes from item to item by keys.
const Pages = (() => {
  const byId = (id) => document.getElementById(id);
  let texts = new WeakMap(); // the text of an item, in small letters; made when it is first searched
  let timer = 0;

  function textOf(item) {
    let text = texts.get(item);
    if (text === undefined) {
      text = item.textContent.toLowerCase();
      texts.set(item, text);
    }
    return text;
  }

  function search() {
    const field = byId("q"), bad = byId("bad"), found = byId("found");
    if (!field) return;
    const wanted = field.value.trim().toLowerCase();
    const only = Boolean(bad && bad.checked);
    let count = 0;
    for (const group of document.querySelectorAll(".step, tbody.found")) {
      let any = false;
      for (const item of group.querySelectorAll(".item, tr")) {
        const shows = (!wanted || textOf(item).includes(wanted)) &&
          (!only || item.classList.contains("bad") || item.classList.contains("warn"));
        if (item.hidden === shows) item.hidden = !shows;
        if (shows) { any = true; count += 1; }
      }
      const isStep = group.classList.contains("step");
      if (isStep && group.hidden === any) group.hidden = !any;
    }
    found.textContent = wanted || only ? `${count} shown` : "";
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(search, 60);
  }

  // The first search would wait for all texts.
  function readAhead() {
    const all = [...document.querySelectorAll(".item")];
    const go = (deadline) => {
      while (all.length && deadline.timeRemaining() > 2) textOf(all.pop());
      if (all.length) requestIdleCallback(go);
    };
    requestIdleCallback(go);
  }

  function items() {
    return [...document.querySelectorAll(".item:not([hidden])")].filter((item) => !item.parentElement.hidden);
  }

  function show(item, focus) {
    for (let part = item; part; part = part.parentElement) {
      if (part.hidden) part.hidden = false;
      if (part.tagName === "DETAILS") part.open = true;
    }
    const own = item.querySelector("details");
    if (own) own.open = true;
    document.querySelectorAll(".item.now").forEach((other) => other.classList.remove("now"));
    item.classList.add("now");
    item.scrollIntoView({ block: "start" });
    const link = item.querySelector("a.at, h3 a");
    if (focus && link) link.focus({ preventScroll: true });
  }

  function target() {
    let id = "";
    try { id = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const found = id && byId(id);
    if (found && found.matches(".item, .step")) show(found, true);
  }

  function move(by) {
    const all = items();
    const here = document.activeElement && document.activeElement.closest(".item");
    const at = here ? all.indexOf(here) : by > 0 ? -1 : all.length;
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    if (!next) return;
    const link = next.querySelector("a.at");
    link.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
      if (event.key === "Escape" && event.target.id === "q") { event.target.value = ""; search(); event.target.blur(); }
      return;
    }
    if (event.key === "/") { byId("q")?.focus(); event.preventDefault(); }
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "o") {
      const own = document.activeElement.closest?.(".item")?.querySelector("details");
      if (own) own.open = !own.open;
    }
  }

  function fold(event) {
    const button = event.target, opens = button.textContent.startsWith("Unfold");
    document.querySelectorAll("#steps details").forEach((one) => { one.open = opens; });
    button.textContent = opens ? "Fold all" : "Unfold all";
  }

  function sort(event) {
    const head = event.target.closest("button[data-sort]");
    if (!head) return;
    const table = head.closest("table"), body = table.tBodies[0], column = head.closest("th").cellIndex;
    const down = head.dataset.sort !== "down";
    table.querySelectorAll("button[data-sort]").forEach((one) => { one.dataset.sort = ""; one.closest("th").removeAttribute("aria-sort"); });
    head.dataset.sort = down ? "down" : "up";
    head.closest("th").setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const order = (a, b) => {
      const [left, right] = [value(a), value(b)], numbers = [Number(left), Number(right)];
      return numbers.some(Number.isNaN) ? left.localeCompare(right) : numbers[0] - numbers[1];
    };
    const rows = [...body.rows].sort((a, b) => (down ? -order(a, b) : order(a, b)));
    body.append(...rows);
  }

  function start() {
    byId("q")?.addEventListener("input", later);
    byId("bad")?.addEventListener("change", search);
    byId("fold")?.addEventListener("click", fold);
    document.querySelectorAll("form.bar").forEach((form) => form.addEventListener("submit", (event) => event.preventDefault()));
    target();
    readAhead();
  }

  document.addEventListener("keydown", key);
  document.addEventListener("click", sort);
  window.addEventListener("hashchange", target);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  return { start, search, show, target, forget: () => { texts = new WeakMap(); } };
})();
if (!document.querySelector("[data-live]")) Pages.start();

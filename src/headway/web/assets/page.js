"use strict";
// Fetches the data of each panel after the first paint, and shows it. Texts go in as text, never as HTML.

(() => {
  const root = document.documentElement, night = matchMedia("(prefers-color-scheme: dark)");
  const main = document.getElementById("main");
  const shown = new Map(); // a panel's element and what was last drawn there
  const LIVE_MS = 5000, REPORT_MS = 10000, WAIT_MS = 2000;

  // -- light and dark --------------------------------------------------------------------------

  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : night.matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("headway-theme", root.dataset.theme);
    redraw();
  });
  night.addEventListener("change", redraw);

  function redraw() {
    for (const [panel, { payload, marks }] of shown) draw(panel, payload, marks);
    const frame = document.querySelector("#report iframe");
    if (frame && frame.contentDocument) dress(frame);
  }

  if (!main.dataset.query && main.dataset.query !== "") return; // a page without data

  // -- small tools -----------------------------------------------------------------------------

  function make(tag, className, text) {
    const found = document.createElement(tag);
    if (className) found.className = className;
    if (text !== undefined) found.textContent = text;
    return found;
  }

  function address(path, changes) {
    const parameters = new URLSearchParams(main.dataset.query);
    for (const [name, value] of Object.entries(changes)) {
      if (value === "") parameters.delete(name);
      else parameters.set(name, value);
    }
    parameters.delete("run_id");
    const text = parameters.toString();
    return text ? `${path}?${text}` : path;
  }

  async function ask(url) {
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    if (answer.status === 401) { location.reload(); return new Promise(() => {}); }
    if (answer.status === 429) { await pause(WAIT_MS); return ask(url); }
    const type = answer.headers.get("Content-Type") || "";
    if (!type.startsWith("application/json")) return { error: (await answer.text()).trim() };
    return answer.json();
  }

  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  // -- panels ----------------------------------------------------------------------------------

  async function load(panel) {
    const url = `/data/${panel.dataset.panel}${main.dataset.query}`;
    let payload;
    try {
      payload = await ask(url);
    } catch {
      payload = { error: "the server does not answer" };
    }
    while (payload.wait) {
      say(panel, payload.wait);
      await pause(WAIT_MS);
      payload = await ask(url).catch(() => ({ error: "the server does not answer" }));
    }
    show(panel, payload);
    return payload;
  }

  function say(panel, text) {
    const status = panel.querySelector(".status");
    if (status) status.textContent = text || "";
    else if (text) panel.querySelector("dd").textContent = text;
  }

  function show(panel, payload) {
    panel.setAttribute("aria-busy", "false");
    if (payload.error || payload.none) { say(panel, payload.error ? `${payload.error}.` : payload.none); return; }
    say(panel, "");
    if (payload.cards) { cards(panel, payload.cards); return; }
    const rows = panel.querySelector(".rows");
    rows.replaceChildren(payload.rows.length ? table(panel, payload) : "");
    if (payload.paging) rows.append(paging(payload.paging));
    const count = payload.paging ? payload.paging.of : payload.of || payload.rows.length;
    if (!payload.plot) panel.querySelector("h2 .n").textContent = count.toLocaleString("en");
    if (!payload.rows.length) {
      say(panel, payload.empty || "Nothing of that is in the store.");
    } else if (payload.plot) {
      draw(panel, payload, null);
      if (payload.marks) marks(panel, payload);
    }
  }

  function cards(panel, given) {
    const room = panel.querySelector(".room");
    room.replaceChildren(...given.map((card) => {
      const box = make("div", "card");
      box.append(
        make("dt", "", card.label),
        make("dd", "", headwayCharts.words(card.value, card.unit)),
        make("dd", "dim", card.remark || "\u00a0"),
      );
      return box;
    }));
  }

  // Millions of bytes of script: not before the page has been painted, and only for charts.
  let loading = null;
  function plotly() {
    loading ||= new Promise((done) => requestAnimationFrame(() => setTimeout(() => {
      const script = make("script");
      script.addEventListener("load", done);
      script.src = main.dataset.plotly;
      document.head.append(script);
    })));
    return loading;
  }

  async function draw(panel, payload, found) {
    shown.set(panel, { payload, marks: found });
    const room = panel.querySelector(".room");
    await plotly();
    const place = Object.fromEntries(payload.columns.map((column, i) => [column.key, i]));
    await headwayCharts.draw(room, payload, found, {
      click: (row) => { const to = target(payload, place, row); if (to) location.href = to; },
      zoom: (from, to) => zoomed(panel, from, to),
    });
    room.classList.toggle("leads", Boolean(payload.links));
    room.dataset.drawn = "yes";
  }

  function zoomed(panel, from, to) {
    const link = panel.querySelector(".zoomed");
    link.hidden = from === null;
    if (from === null) return;
    const time = (text) => text.slice(0, 16).replace(" ", "T");
    link.href = address(location.pathname, { since: time(from), until: time(to) });
    link.textContent = `Show only ${time(from).replace("T", " ")} to ${time(to).replace("T", " ")}`;
  }

  async function marks(panel, payload) {
    let found = await ask(payload.marks);
    while (found.wait) { await pause(WAIT_MS); found = await ask(payload.marks); }
    if (!found.marks || !found.marks.length) return;
    const times = payload.rows.map((row) => row[0]);
    const inside = found.marks.filter((one) => one.at >= times[0] && one.at <= times.at(-1));
    if (inside.length) draw(panel, payload, inside);
  }

  // -- tables ----------------------------------------------------------------------------------

  const NUMBERS = new Set(["count", "number", "percent", "points", "hours", "minutes", "seconds"]);

  function target(payload, place, row) {
    if (!payload.links) return null;
    const parts = Object.entries(payload.links.parameters).map(([name, key]) => [name, row[place[key]] ?? ""]);
    if (parts.some(([, value]) => value === "")) return null;
    return address(payload.links.to, Object.fromEntries(parts));
  }

  function table(panel, payload) {
    const place = Object.fromEntries(payload.columns.map((column, i) => [column.key, i]));
    const columns = payload.columns.filter((column) => column.unit !== "id");
    const made = make("table"), head = make("thead"), body = make("tbody"), top = make("tr");
    const title = panel.querySelector("h2");
    if (title) made.append(make("caption", "sr", title.firstChild.textContent.trim()));
    top.append(...columns.map((column) => heading(payload, column)));
    head.append(top);
    for (const row of payload.rows) {
      const line = make("tr");
      columns.forEach((column, i) => {
        const cell = make("td", NUMBERS.has(column.unit) ? "r" : column.unit);
        fill(cell, row[place[column.key]], column.unit, i ? null : target(payload, place, row),
          "run_id" in place ? row[place.run_id] : null);
        line.append(cell);
      });
      body.append(line);
    }
    made.append(head, body);
    return made;
  }

  function heading(payload, column) {
    const cell = make("th", NUMBERS.has(column.unit) ? "r" : "");
    cell.scope = "col";
    const sorts = payload.sorts;
    if (sorts && sorts.all.includes(column.key)) {
      const link = make("a", "", column.label + (sorts.now === column.key ? " \u2193" : ""));
      link.href = address(location.pathname, { sort: column.key, page: "" });
      if (sorts.now === column.key) cell.setAttribute("aria-sort", "descending");
      cell.append(link);
    } else cell.textContent = column.label;
    return cell;
  }

  const STATES = { completed: "good", resolved: "good", failed: "bad", firing: "bad", running: "live" };

  function fill(cell, value, unit, to, run) {
    const text = headwayCharts.words(value, unit);
    if (unit === "run" && run) to = `/runs/${encodeURIComponent(run)}${main.dataset.shared}`;
    if (unit === "outcome" && value) {
      cell.append(make("span", `chip ${STATES[value] || ""}`, text));
    } else if (to) {
      const link = make("a", "", text);
      link.href = to;
      cell.append(link);
    } else {
      if (unit === "leaf") {
        const swatch = make("i", "sw leaf");
        swatch.style.background = `var(--${String(value).replace(".", "-")})`;
        cell.append(swatch);
      }
      cell.append(text);
    }
    if (unit === "text" || unit === "run") cell.title = text;
  }

  function paging({ page, rows, of }) {
    const box = make("nav", "paging"), pages = Math.max(1, Math.ceil(of / rows));
    box.setAttribute("aria-label", "Pages of the table");
    const link = (text, to) => {
      const found = make("a", "", text);
      found.href = address(location.pathname, { page: to === 1 ? "" : String(to) });
      return found;
    };
    if (page > 1) box.append(link("Previous", page - 1));
    box.append(make("span", "dim", `Page ${page.toLocaleString("en")} of ${pages.toLocaleString("en")}`));
    if (page < pages) box.append(link("Next", page + 1));
    return box;
  }

  // -- filters ---------------------------------------------------------------------------------

  async function choices() {
    const lists = document.querySelectorAll("select[data-choices]");
    if (!lists.length) return;
    const told = await ask("/data/choices");
    for (const list of lists) {
      const values = (told.choices || {})[list.name] || [];
      const there = new Set([...list.options].map((option) => option.value));
      for (const value of values) if (!there.has(value)) list.append(new Option(value, value));
    }
  }

  // -- one run ---------------------------------------------------------------------------------

  function introduce(payload) {
    if (!payload.title) return;
    document.getElementById("title").textContent = payload.title;
    document.title = `${payload.title} - Headway`;
    const lead = document.getElementById("lead"), id = location.pathname.split("/")[2];
    lead.replaceChildren(make("span", `chip ${STATES[payload.state] || ""}`, payload.state),
      ` ${id}, began ${headwayCharts.words(payload.began, "time")} UTC`);
    if (payload.running) lead.append(", looked at again every few seconds");
    const facts = document.getElementById("facts");
    facts.querySelector("dl").replaceChildren(...payload.facts.map(([name, value]) => {
      const box = make("div");
      box.append(make("dt", "", name), make("dd", "", value));
      return box;
    }));
    facts.hidden = !payload.facts.length;
  }

  // The frame is as high as the report, and has its light or dark.
  function dress(frame) {
    const inside = frame.contentDocument;
    if (!inside || !inside.body) return;
    if (root.dataset.theme) inside.documentElement.dataset.theme = root.dataset.theme;
    else delete inside.documentElement.dataset.theme;
    const own = inside.getElementById("theme");
    if (own) own.hidden = true; // ours is enough
    const fit = () => { frame.style.height = `${inside.documentElement.scrollHeight + 4}px`; };
    fit();
    new ResizeObserver(fit).observe(inside.body);
  }

  function report() {
    const frame = document.querySelector("#report iframe");
    if (!frame) return null;
    frame.addEventListener("load", () => dress(frame));
    if (frame.contentDocument && frame.contentDocument.readyState === "complete") dress(frame);
    return frame;
  }

  async function run() {
    const panels = [...document.querySelectorAll("[data-panel]")], frame = report();
    const first = await load(panels[0]);
    introduce(first);
    await Promise.all(panels.slice(1).map(load));
    if (!first.running) return;
    let reloaded = Date.now();
    for (let running = true; running;) {
      await pause(LIVE_MS);
      if (document.hidden) continue;
      const now = await load(panels[0]);
      introduce(now);
      panels.slice(1).forEach(load);
      running = Boolean(now.running);
      if (frame && (Date.now() - reloaded > REPORT_MS || !running)) {
        reloaded = Date.now();
        frame.contentWindow.location.reload();
      }
    }
  }

  choices();
  if (document.querySelector(".of-run")) run();
  else document.querySelectorAll("[data-panel]").forEach(load);
})();

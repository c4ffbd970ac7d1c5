"use strict";
(() => {
const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const tip = $("tip"), box = $("timeline"), canvas = box.firstElementChild, cursor = $("cursor");
const ctx = canvas.getContext("2d"), root = document.documentElement;
const WALL = D.wall / D.tick || 1, HOLE = D.leaves.length;

// Words.

const pad = (n) => String(n).padStart(2, "0");
function duration(ns) {
  if (ns < 999.5e6) return ns <= 0 ? "0 s" : (ns / 1e6).toFixed(ns < 9.95e6 ? 1 : 0) + " ms";
  if (ns < 59.95e9) return (ns / 1e9).toFixed(1) + " s";
  const s = Math.round(ns / 1e9);
  if (s < 3600) return Math.floor(s / 60) + " m " + pad(s % 60) + " s";
  const m = Math.round(s / 60);
  if (m < 1440) return Math.floor(m / 60) + " h " + pad(m % 60) + " m";
  const h = Math.round(m / 60);
  return Math.floor(h / 24) + " d " + pad(h % 24) + " h";
}
const ticks = (n) => duration(n * D.tick);

// Tracks: starts[i] .. starts[i + 1] belongs to leaf[i].

function decode(text) {
  let n = 0;
  for (let i = 0; i < text.length; i++) if (text.charCodeAt(i) > 57) n++;
  const starts = new Float64Array(n + 1), leaf = new Uint8Array(n);
  let at = 0, k = -1, number = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c <= 57) { number = number * 10 + c - 48; continue; }
    at += number; number = 0; k++;
    starts[k] = at;
    leaf[k] = text[i] === "_" ? HOLE : D.letters.indexOf(text[i]);
  }
  starts[n] = at + number;
  return { starts, leaf, n };
}
const tracks = D.tracks.map(decode);

function find(track, t) {  // the piece that holds tick t
  let low = 0, high = track.n - 1;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (track.starts[mid] <= t) low = mid; else high = mid - 1;
  }
  return low;
}

// Colours.

let rgb = [], packed = new Uint32Array(0), ink, dim, line, bad;
let picked = -1;
function colours() {
  const style = getComputedStyle(root), get = (name) => style.getPropertyValue(name).trim();
  ink = get("--ink"); dim = get("--dim"); line = get("--line-strong"); bad = get("--fail");
  const card = channels(get("--card"));
  rgb = D.leaves.map((_, i) => {
    const c = channels(get("--l" + i));
    return picked < 0 || picked === i ? c : c.map((v, j) => v * .16 + card[j] * .84);
  });
  rgb.push(card);
  packed = Uint32Array.from(rgb, pack);
}
function channels(hex) {
  const h = hex.length === 4 ? [...hex.slice(1)].map((x) => x + x).join("") : hex.slice(1);
  return [0, 2, 4].map((i) => parseInt(h.slice(i, i + 2), 16));
}
const pack = ([r, g, b]) => (255 << 24 | Math.round(b) << 16 | Math.round(g) << 8 | Math.round(r)) >>> 0;

// Layout, in CSS pixels.

let width = 0, dpr = 1, left = 0, rowTops = [], rowHeights = [], height = 0;
const TOP = 26, AXIS = 24;
let a = 0, b = WALL;  // what is in view, in ticks
function layout() {
  width = box.clientWidth;
  dpr = window.devicePixelRatio || 1;
  left = Math.min(64, width * .16);
  const n = tracks.length - 1;
  const pitch = n <= 4 ? 30 : n <= 8 ? 24 : n <= 16 ? 18 : n <= 32 ? 13 : n <= 64 ? 9 : n <= 128 ? 5 : n <= 256 ? 3 : 1;
  const space = pitch >= 13 ? 3 : pitch >= 5 ? 1 : 0;
  rowTops = [TOP]; rowHeights = [22];
  for (let i = 0; i < n; i++) { rowTops.push(TOP + 32 + i * pitch); rowHeights.push(pitch - space); }
  height = TOP + 32 + n * pitch + AXIS;
  canvas.width = Math.round(width * dpr);
  canvas.height = Math.round(height * dpr);
  canvas.style.height = height + "px";
}

// One row of device pixels; pieces narrower than a pixel are mixed by their share of it.

let image = null, row = null;
function paint(track, W) {
  const { starts, leaf, n } = track, k = W / (b - a);
  row.fill(0);
  if (!n) return;
  let i = find(track, a), x0 = Math.max((starts[i] - a) * k, 0);
  let R = 0, G = 0, B = 0, mass = 0;
  for (; i < n && x0 < W; i++) {
    const x1 = Math.min((starts[i + 1] - a) * k, W), c = rgb[leaf[i]];
    const p0 = x0 | 0, p1 = x1 | 0;
    if (p0 === p1) {
      const w = x1 - x0;
      R += w * c[0]; G += w * c[1]; B += w * c[2]; mass += w;
    } else {
      const w = p0 + 1 - x0, m = mass + w;
      row[p0] = (255 << 24 | (B + w * c[2]) / m << 16 | (G + w * c[1]) / m << 8 | (R + w * c[0]) / m) >>> 0;
      if (p1 > p0 + 1) row.fill(packed[leaf[i]], p0 + 1, p1);
      mass = x1 - p1;
      R = mass * c[0]; G = mass * c[1]; B = mass * c[2];
    }
    x0 = x1;
  }
  if (mass > .01 && x0 < W) row[x0 | 0] = (255 << 24 | B / mass << 16 | G / mass << 8 | R / mass) >>> 0;
}

function draw() {
  const began = performance.now();
  const W = Math.max(1, Math.round((width - left) * dpr)), H = Math.round((height - AXIS) * dpr);
  if (!image || image.width !== W || image.height !== H) {
    image = ctx.createImageData(W, H);
    row = new Uint32Array(W);
  }
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  tracks.forEach((track, i) => {
    paint(track, W);
    const y0 = Math.round(rowTops[i] * dpr), y1 = Math.max(y0 + 1, Math.round((rowTops[i] + rowHeights[i]) * dpr));
    for (let y = y0; y < y1 && y < H; y++) pixels.set(row, y * W);
  });
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.clearRect(0, 0, canvas.width, canvas.height);
  ctx.putImageData(image, Math.round(left * dpr), 0);
  ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
  labels(); attempts(); axis();
  $("reset").disabled = a <= 0 && b >= WALL;
  return performance.now() - began;
}

const xOf = (t) => left + (t - a) / (b - a) * (width - left);
const tOf = (x) => a + (x - left) / (width - left) * (b - a);
function font(weight, size) { ctx.font = weight + " " + size + "px system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif"; }

function labels() {
  ctx.textBaseline = "middle"; ctx.textAlign = "right";
  let free = 0;
  D.labels.forEach((label, i) => {
    const y = rowTops[i] + rowHeights[i] / 2;
    if (y < free) return;
    free = y + 12;
    font(i ? 400 : 650, i ? 11 : 12);
    ctx.fillStyle = i ? dim : ink;
    ctx.fillText(label, left - 8, y);
  });
}

function attempts() {
  ctx.save();
  ctx.beginPath(); ctx.rect(left, 0, width - left, height - AXIS + 4); ctx.clip();
  ctx.textAlign = "left"; font(500, 11.5);
  for (const [index, start, end, outcome] of D.attempts) {
    const x0 = xOf(start), x1 = xOf(end);
    if (x1 < left || x0 > width) continue;
    ctx.fillStyle = outcome === "failed" ? bad : line;
    ctx.fillRect(x0, TOP - 5, Math.max(x1 - x0 - 1, 1), 2);
    const text = "attempt " + index + (x1 - x0 > 130 ? ", " + outcome : "");
    const from = Math.max(x0, left);
    if (x1 - from > ctx.measureText(text).width + 12) {
      ctx.fillStyle = dim;
      ctx.fillText(text, from + 2, 10);
    }
  }
  for (const [at] of D.failures) {
    const x = xOf(at);
    if (x < left - 6 || x > width + 6) continue;
    ctx.fillStyle = bad;
    ctx.fillRect(x - .75, TOP - 8, 1.5, height - AXIS - TOP + 10);
    ctx.beginPath(); ctx.moveTo(x - 6, TOP - 15); ctx.lineTo(x + 6, TOP - 15); ctx.lineTo(x, TOP - 5); ctx.fill();
  }
  ctx.restore();
}

const STEPS = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, .001, .002, .005, .01, .02, .05, .1, .2, .5,
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
function axis() {
  const second = 1e9 / D.tick, most = Math.max(2, (width - left) / 84);
  const step = STEPS.find((s) => (b - a) / second / s <= most) || 2592000;
  const y = height - AXIS + 4;
  ctx.fillStyle = line;
  ctx.fillRect(left, y - 2, width - left, 1);
  font(400, 11); ctx.textAlign = "center"; ctx.textBaseline = "middle";
  for (let s = Math.ceil(a / second / step) * step; s * second <= b; s += step) {
    const x = xOf(s * second), text = clock(s, step);
    ctx.fillStyle = line;
    ctx.fillRect(x, y - 2, 1, 5);
    ctx.fillStyle = dim;
    const half = ctx.measureText(text).width / 2;
    ctx.fillText(text, Math.min(Math.max(x, left + half), width - half), y + 11);
  }
}
function clock(s, step) {
  if (step < 1) {
    const digits = -Math.floor(Math.log10(step) + 1e-9), m = Math.floor((s + step / 2) / 60);
    const rest = Math.max(0, s - 60 * m).toFixed(digits);
    return m ? m + ":" + rest.padStart(digits + 3, "0") : rest + " s";
  }
  s = Math.round(s);
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  if (s >= 172800) return Math.floor(h / 24) + " d " + pad(h % 24) + " h";
  return (h ? h + ":" + pad(m) : m) + ":" + pad(s % 60);
}

// Moving about.

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}
function view(from, to) {
  const span = Math.min(Math.max(to - from, Math.min(WALL, 20)), WALL);
  a = Math.min(Math.max(from, 0), WALL - span);
  b = a + span;
  redraw();
}
function zoom(factor, x = left + (width - left) / 2) {
  const t = tOf(Math.max(x, left));
  view(t - (t - a) * factor, t + (b - t) * factor);
}
const move = (share) => view(a + (b - a) * share, b + (b - a) * share);
const reset = () => view(0, WALL);

box.addEventListener("wheel", (e) => {
  const whole = a <= 0 && b >= WALL;
  if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
    if (whole) return;
    e.preventDefault();
    move(e.deltaX / (width - left));
  } else {
    if (whole && e.deltaY > 0) return;  // nothing to zoom out of: the page scrolls
    e.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY * (e.deltaMode ? 18 : 1))) * .005), e.offsetX);
  }
  hide();
}, { passive: false });

const fingers = new Map();
let moved = false;
box.addEventListener("pointerdown", (e) => {
  if (e.button) return;
  fingers.set(e.pointerId, local(e));
  moved = false;
  try { box.setPointerCapture(e.pointerId); } catch { /* the pointer is gone already */ }
});
box.addEventListener("pointermove", (e) => {
  const now = local(e), before = fingers.get(e.pointerId);
  if (!before) { hover(e, now); return; }
  if (fingers.size === 1) {
    if (Math.abs(now.x - before.x) + Math.abs(now.y - before.y) < 3 && !moved) return;
    moved = true;
    box.classList.add("drag");
    hide();
    move((before.x - now.x) / (width - left));
  } else {
    const other = [...fingers].find(([id]) => id !== e.pointerId)[1];
    const was = Math.abs(before.x - other.x), is = Math.abs(now.x - other.x);
    if (was > 8 && is > 8) zoom(was / is, (now.x + other.x) / 2);
  }
  fingers.set(e.pointerId, now);
});
for (const name of ["pointerup", "pointercancel"]) box.addEventListener(name, (e) => {
  fingers.delete(e.pointerId);
  box.classList.remove("drag");
  if (!moved && name === "pointerup") hover(e, local(e));
});
box.addEventListener("pointerleave", () => hide());
box.addEventListener("dblclick", (e) => zoom(.4, local(e).x));
box.addEventListener("keydown", (e) => {
  const act = { "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1 / .6), 0: reset, Home: reset,
    ArrowLeft: () => move(-.2), ArrowRight: () => move(.2) }[e.key];
  if (act && !e.ctrlKey && !e.metaKey) { e.preventDefault(); act(); hide(); }
});
$("in").onclick = () => zoom(.5);
$("out").onclick = () => zoom(2);
$("reset").onclick = reset;
function local(e) {
  const r = box.getBoundingClientRect();
  return { x: e.clientX - r.left, y: e.clientY - r.top };
}

// The tooltip: text nodes only, so that nothing from a journal becomes markup.

function show(e, leaf, title, lines) {
  const head = document.createElement("b");
  if (leaf >= 0 && leaf < HOLE) {
    const sw = document.createElement("i");
    sw.className = "sw";
    sw.style.background = "var(--l" + leaf + ")";
    head.append(sw);
  }
  head.append(title);
  tip.replaceChildren(head, ...lines.filter(Boolean).map((text) => {
    const div = document.createElement("div");
    div.textContent = text;
    return div;
  }));
  tip.hidden = false;
  const r = tip.getBoundingClientRect(), gap = 14;
  let x = e.clientX + gap, y = e.clientY + gap;
  if (x + r.width > innerWidth - 6) x = Math.max(6, e.clientX - r.width - gap);
  if (y + r.height > innerHeight - 6) y = Math.max(6, e.clientY - r.height - gap);
  tip.style.transform = "translate(" + x + "px," + y + "px)";
}
function hide() { tip.hidden = true; cursor.hidden = true; }

function hover(e, { x, y }) {
  if (x < left) { hide(); return; }
  cursor.hidden = false;
  cursor.style.transform = "translateX(" + x + "px)";
  const failure = D.failures.find(([at]) => Math.abs(xOf(at) - x) < 6 && y < TOP + 4);
  if (failure) {
    const [at, attempt, rank, category, evidence] = failure;
    show(e, -1, category, ["attempt " + attempt + (rank === null ? "" : ", rank " + rank) + ", at " + ticks(at), evidence]);
    return;
  }
  const i = rowTops.findIndex((top, k) => y >= top && y < (rowTops[k + 1] ?? top + rowHeights[k]));
  if (i < 0 || !tracks[i].n) { tip.hidden = true; return; }
  const where = D.labels[i] + (D.hosts[i] ? " on " + D.hosts[i] : "");
  const t = tOf(x), pixel = (b - a) / ((width - left) * dpr), track = tracks[i], k = find(track, t);
  const length = track.starts[k + 1] - track.starts[k], attempt = attemptAt(t);
  if (length < pixel * 1.5) { mixture(e, track, t, pixel, where); return; }
  const leaf = track.leaf[k];
  if (leaf === HOLE) { tip.hidden = true; return; }
  show(e, leaf, D.leaves[leaf][0], [D.leaves[leaf][1],
    ticks(length) + (length * D.tick < D.floor ? " gathered" : "") + ", from " + ticks(track.starts[k]), where + attempt]);
}
function attemptAt(t) {
  const found = D.attempts.find(([, start, end]) => t >= start && t < end);
  return found ? ", attempt " + found[0] : "";
}
function mixture(e, track, t, pixel, where) {
  const from = t - pixel, to = t + pixel, sums = new Map();
  for (let k = find(track, from); k < track.n && track.starts[k] < to; k++) {
    const part = Math.min(track.starts[k + 1], to) - Math.max(track.starts[k], from);
    if (part > 0 && track.leaf[k] < HOLE) sums.set(track.leaf[k], (sums.get(track.leaf[k]) || 0) + part);
  }
  const top = [...sums].sort((p, q) => q[1] - p[1]), all = top.reduce((s, p) => s + p[1], 0);
  if (!all) { tip.hidden = true; return; }
  show(e, top[0][0], ticks(all) + " at " + ticks(t), [
    ...top.slice(0, 4).map(([leaf, part]) => D.leaves[leaf][0] + " " + (100 * part / all).toFixed(0) + " %"),
    where + attemptAt(t) + "; zoom in to see each"]);
}

// The other charts: the same tooltip, and one bucket picked out everywhere.

document.addEventListener("pointermove", (e) => {
  if (box.contains(e.target)) return;
  const holder = e.target.closest ? e.target.closest("[data-tip]") : null;
  if (!holder) { tip.hidden = true; return; }
  const [title, ...lines] = holder.dataset.tip.split("|");
  const leaf = holder.closest("[data-leaf]");
  show(e, leaf ? Number(leaf.dataset.leaf) : -1, title, lines);
});
document.addEventListener("scroll", hide, { passive: true });

function mark(leaf) {
  document.body.classList.toggle("picking", leaf >= 0);
  for (const x of document.querySelectorAll("[data-leaf]")) x.classList.toggle("on", Number(x.dataset.leaf) === leaf);
}
function pick(leaf) {
  picked = picked === leaf ? -1 : leaf;
  mark(picked);
  colours();
  redraw();
}
for (const x of document.querySelectorAll(".groups li, .stack i")) {
  x.addEventListener("click", () => pick(Number(x.dataset.leaf)));
}
for (const x of document.querySelectorAll(".groups li")) {
  x.tabIndex = 0;
  x.setAttribute("role", "button");
  x.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); x.click(); } });
  x.addEventListener("pointerenter", () => mark(Number(x.dataset.leaf)));
  x.addEventListener("pointerleave", () => mark(picked));
}

// The stages of a start: one of them with what it needs, and what needs it.

for (const graph of document.querySelectorAll(".graph")) {
  const stages = [...graph.querySelectorAll("[data-stage]")], lines = [...graph.querySelectorAll("path")];
  const trace = (stage) => {
    const near = new Set([stage]);
    for (const line of lines) {
      const { since, until } = line.dataset, on = since === stage || until === stage;
      line.classList.toggle("on", on);
      if (on) near.add(since).add(until);
    }
    for (const x of stages) x.classList.toggle("near", near.has(x.dataset.stage));
    graph.classList.toggle("tracing", stage !== null);
  };
  for (const x of stages) {
    x.tabIndex = 0;
    for (const name of ["pointerenter", "focus"]) x.addEventListener(name, () => trace(x.dataset.stage));
    for (const name of ["pointerleave", "blur"]) x.addEventListener(name, () => trace(null));
  }
}

// Light and dark.

const night = matchMedia("(prefers-color-scheme: dark)");
$("theme").hidden = false;
$("theme").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : night.matches;
  root.dataset.theme = dark ? "light" : "dark";
  colours(); redraw();
};
night.addEventListener("change", () => { colours(); redraw(); });
new ResizeObserver(() => { if (box.clientWidth !== width || devicePixelRatio !== dpr) { layout(); draw(); } }).observe(box);

colours(); layout(); draw();
window.headwayTimeline = { draw, view, reset, inView: () => [a, b], wall: WALL, pieces: tracks.reduce((s, t) => s + t.n, 0) };
})();

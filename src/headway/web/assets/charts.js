"use strict";
// Draws the data of a panel with Plotly. Every text of the data is escaped for Plotly's own markup.

const headwayCharts = (() => {
  const style = () => getComputedStyle(document.documentElement);
  const css = (name) => style().getPropertyValue(name).trim();
  const safe = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}\u2026` : text);
  const narrow = () => innerWidth < 620;

  // -- words ---------------------------------------------------------------------------------

  const number = (value, digits) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  function duration(seconds) {
    if (seconds < 0) return `-${duration(-seconds)}`;
    if (seconds === 0) return "0 s";
    if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
    if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
    const two = (n) => String(n).padStart(2, "0");
    const s = Math.round(seconds), m = Math.round(s / 60), h = Math.round(m / 60);
    if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
    if (m < 1440) return `${Math.floor(m / 60)} h ${two(m % 60)} m`;
    return `${Math.floor(h / 24)} d ${two(h % 24)} h`;
  }

  const WORDS = {
    count: (v) => number(v, 0),
    number: (v) => number(v, 1),
    percent: (v) => `${number(v, v !== 0 && Math.abs(v) < 0.1 ? 2 : 1)} %`,
    points: (v) => `${v > 0 ? "+" : ""}${number(v, 1)} points`,
    hours: (v) => Math.abs(v) >= 1e6 ? `${number(v / 1e6, 2)} M h`
      : `${number(v, v === 0 || Math.abs(v) >= 100 ? 0 : Math.abs(v) >= 1 ? 1 : 2)} h`,
    minutes: (v) => `${number(v, 1)} min`,
    seconds: duration,
    time: (v) => String(v).replace("T", " ").slice(0, 16),
    period: (v) => String(v).replace("T", " ").slice(0, 16).replace(" 00:00", ""),
    mark: (v) => (v ? "yes" : "no"),
  };

  function words(value, unit) {
    if (value === null || value === undefined || value === "") return "-";
    return (WORDS[unit] || String)(value);
  }

  // -- looks ---------------------------------------------------------------------------------

  const slices = () => Array.from({ length: 10 }, (_, i) => css(`--s${i}`));
  const leafColour = (leaf) => css(`--${leaf.replace(".", "-")}`);
  const colours = (names) => {
    const own = slices();
    return names.map((name, i) => leafColour(name) || own[i % own.length]);
  };

  function axis(more) {
    const line = css("--line");
    return {
      gridcolor: line, linecolor: css("--line-strong"), zeroline: false, automargin: true,
      tickfont: { size: 12 }, fixedrange: true, ...more,
    };
  }

  function layout(more) {
    const font = style().getPropertyValue("font-family") || "system-ui, sans-serif";
    return {
      font: { family: getComputedStyle(document.body).fontFamily || font, size: 13, color: css("--dim") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 8, t: 12, b: 8 }, bargap: 0.25, barcornerradius: 3,
      showlegend: false, dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
      hoverlabel: {
        bgcolor: css("--tip"), bordercolor: css("--tip"), align: "left",
        font: { color: css("--tip-ink"), size: 12.5 },
      },
      ...more,
    };
  }

  const SETTINGS = { responsive: true, displaylogo: false, displayModeBar: false };

  // -- one function for each kind; each gives traces, a layout, and what a click means ---------

  function reader(payload) {
    const place = Object.fromEntries(payload.columns.map((c, i) => [c.key, i]));
    const unit = Object.fromEntries(payload.columns.map((c) => [c.key, c.unit]));
    const label = Object.fromEntries(payload.columns.map((c) => [c.key, c.label]));
    return { get: (row, key) => row[place[key]], unit, label };
  }

  const ticks = (unit) => ({
    percent: { ticksuffix: " %" }, hours: { ticksuffix: " h" }, minutes: { ticksuffix: " min" },
  })[unit] || {};

  // Seconds read badly as 4000: ticks at whole minutes, hours or days.
  function timeTicks(most) {
    const steps = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400,
      21600, 43200, 86400, 172800, 604800, 2592000];
    const step = steps.find((s) => most / s <= (narrow() ? 3 : 6)) || most / 5 || 1;
    const at = [];
    for (let v = 0; v <= most * 1.05 && at.length < 12; v += step) at.push(v);
    const short = (v) => v === 0 ? "0" : v < 1 ? `${v.toFixed(1)} s` : v < 60 ? `${v} s`
      : v < 3600 ? `${+(v / 60).toFixed(1)} m` : v < 86400 ? `${+(v / 3600).toFixed(1)} h`
      : `${+(v / 86400).toFixed(1)} d`;
    return { tickmode: "array", tickvals: at, ticktext: at.map(short) };
  }

  const scale = (unit, values) =>
    unit === "seconds" ? timeTicks(Math.max(...values.filter((v) => v !== null), 0)) : ticks(unit);

  const isTime = (unit) => unit === "period" || unit === "time";
  const along = (unit) => axis(isTime(unit)
    ? { type: "date", showgrid: false, fixedrange: false }
    : { type: "category", showgrid: false, tickangle: "auto" });

  function lines(payload) {
    const { get, unit, label } = reader(payload), plot = payload.plot;
    const own = slices(), traces = [];
    let groups = [["", payload.rows]];
    if (plot.split) {
      const parts = new Map();
      for (const row of payload.rows) {
        const name = words(get(row, plot.split), "text");
        parts.set(name, [...(parts.get(name) || []), row]);
      }
      const weight = (rows) => rows.reduce((sum, row) => sum + (get(row, "accelerator_hours") || 0), 0);
      groups = [...parts].sort((a, b) => weight(b[1]) - weight(a[1])).slice(0, plot.most);
    }
    groups.forEach(([name, rows], group) => plot.lines.forEach((key, i) => {
      traces.push({
        type: "scatter", mode: rows.length > 1 ? "lines" : "markers",
        name: safe(cut(name || label[key], 28)), connectgaps: false,
        x: rows.map((row) => get(row, plot.x)), y: rows.map((row) => get(row, key)),
        line: { color: own[plot.split ? group : i], width: 2, dash: i ? "dot" : "solid" },
        hovertext: rows.map((row) => safe(`${name || label[key]}: ${words(get(row, key), unit[key])}`)),
        hoverinfo: "x+text", visible: (plot.folded || []).includes(key) ? "legendonly" : true,
      });
    }));
    const values = traces.flatMap((trace) => trace.y);
    const tick = scale(unit[plot.lines[0]], values);
    return {
      traces,
      layout: layout({
        showlegend: traces.length > 1, hovermode: "x unified",
        xaxis: along(unit[plot.x]), yaxis: axis({ ...tick, rangemode: unit[plot.lines[0]] === "percent" ? "normal" : "tozero" }),
      }),
    };
  }

  function pareto(payload) {
    const { get, unit, label } = reader(payload), plot = payload.plot;
    const rows = payload.rows.slice(0, narrow() ? 8 : plot.most);
    const names = rows.map((row) => String(get(row, plot.x)));
    const y = rows.map((row) => get(row, plot.y));
    const x = rows.map((_, i) => i);
    const hover = rows.map((row, i) => safe(`${names[i]}: ${words(y[i], unit[plot.y])}, ` +
      `${words(get(row, "cumulative"), "percent")} so far`));
    return {
      traces: [
        { type: "bar", x, y, marker: { color: unit[plot.x] === "leaf" ? colours(names) : css("--s4") },
          hovertext: hover, hoverinfo: "text", name: safe(label[plot.y]) },
        { type: "scatter", mode: "lines+markers", x, y: rows.map((row) => get(row, "cumulative")),
          yaxis: "y2", line: { color: css("--dim"), width: 1.5 }, marker: { size: 5 }, hoverinfo: "skip" },
      ],
      layout: layout({
        margin: { l: 28, r: 8, t: 12, b: 8 },
        xaxis: axis({ showgrid: false, tickmode: "array", tickvals: x, tickangle: narrow() ? -70 : -55,
          ticklabeloverflow: "allow", ticktext: names.map((name) => safe(cut(name, 24))) }),
        yaxis: axis({ ...scale(unit[plot.y], y), rangemode: "tozero" }),
        yaxis2: axis({ overlaying: "y", side: "right", range: [0, 104], showgrid: false,
          tickmode: "array", tickvals: [0, 50, 100], ticktext: ["0 %", "50 %", "100 %"] }),
      }),
      rows,
    };
  }

  function fall(payload) {
    const { get, unit } = reader(payload), plot = payload.plot;
    const all = payload.rows, most = narrow() ? 10 : 14;
    const total = all.reduce((sum, row) => sum + get(row, plot.y), 0);
    const parts = all.map((row) => ({ name: String(get(row, plot.x)), value: get(row, plot.y) }));
    const down = parts.some((part) => part.name === "train.effective");
    let shown = parts;
    if (parts.length > most) {
      const small = [...parts].filter((p) => p.name !== "train.effective")
        .sort((a, b) => a.value - b.value).slice(0, parts.length - most + 1);
      shown = parts.filter((part) => !small.includes(part));
      const rest = { name: `${small.length} smaller ones`, value: small.reduce((s, p) => s + p.value, 0) };
      shown.splice(down ? shown.length - 1 : shown.length, 0, rest);
    }
    // From the whole down to training, or from nothing up to the whole.
    let at = down ? total : 0;
    const base = shown.map((part) => {
      if (down) { at -= part.value; return Math.max(at, 0); }
      at += part.value; return at - part.value;
    });
    const names = [...shown.map((part) => part.name)], values = shown.map((part) => part.value);
    const colour = colours(names).map((c, i) => leafColour(names[i]) || css("--line-strong"));
    const first = down ? "unshift" : "push";
    names[first](plot.total); values[first](total); base[first](0); colour[first](css("--line-strong"));
    const y = names.map((_, i) => i);
    const short = names.map((name) => name.replace(/^(start|recover)\./, down ? "$1." : ""));
    return {
      traces: [{
        type: "bar", orientation: "h", y, x: values, base, marker: { color: colour },
        text: values.map((v) => safe(words(v, unit[plot.y]))), textposition: "outside",
        textfont: { color: css("--dim"), size: 12 }, cliponaxis: false, constraintext: "none",
        hovertext: names.map((name, i) => safe(`${name}: ${words(values[i], unit[plot.y])}, ` +
          `${words(total ? (100 * values[i]) / total : 0, "percent")}`)), hoverinfo: "text",
      }],
      layout: layout({
        margin: { l: 8, r: 64, t: 4, b: 8 }, bargap: 0.3,
        xaxis: axis({ ...scale(unit[plot.y], [total]), range: [0, total * 1.02 || 1], tickangle: 0,
          nticks: narrow() ? 4 : 7 }),
        yaxis: axis({ autorange: "reversed", showgrid: false, tickmode: "array", tickvals: y,
          ticktext: short.map((name) => safe(cut(name, narrow() ? 22 : 34))) }),
      }),
    };
  }

  function stack(payload) {
    const { get, unit, label } = reader(payload), plot = payload.plot;
    const x = payload.rows.map((row) => isTime(unit[plot.x]) ? get(row, plot.x) : safe(words(get(row, plot.x), "text")));
    const colour = colours(plot.parts);
    const totals = payload.rows.map((row) => plot.parts.reduce((s, key) => s + (get(row, key) || 0), 0));
    return {
      traces: plot.parts.map((key, i) => ({
        type: "bar", x, y: payload.rows.map((row) => get(row, key) || 0), name: safe(cut(label[key], 28)),
        marker: { color: colour[i] },
        hovertext: payload.rows.map((row) => safe(`${label[key]}: ${words(get(row, key) || 0, unit[key])}`)),
        hoverinfo: "x+text",
      })),
      layout: layout({
        barmode: "stack", showlegend: plot.parts.length > 1 && (plot.parts.length < 5 || !narrow()),
        barcornerradius: 0,
        legend: { orientation: "h", x: 0, y: -0.16, yanchor: "top", font: { size: 11.5 }, traceorder: "normal" },
        xaxis: along(unit[plot.x]), yaxis: axis(scale(unit[plot.parts[0]], totals)),
      }),
    };
  }

  function bars(payload) {
    const { get, unit } = reader(payload), plot = payload.plot;
    const rows = payload.rows.filter((row) => get(row, plot.y) !== null).slice(0, plot.most || undefined);
    const timed = isTime(unit[plot.x]);
    const y = rows.map((row) => get(row, plot.y));
    return {
      traces: [{
        type: "bar", x: rows.map((row) => timed ? get(row, plot.x) : safe(words(get(row, plot.x), "text"))), y,
        marker: { color: plot.leaf ? leafColour(plot.leaf) : css("--s7") },
        hovertext: rows.map((row, i) => safe(timed ? words(y[i], unit[plot.y])
          : `${get(row, plot.x)}: ${words(y[i], unit[plot.y])}`)),
        hoverinfo: timed ? "x+text" : "text",
      }],
      layout: layout({
        margin: { l: timed ? 8 : 28, r: 8, t: 12, b: 8 },
        xaxis: { ...along(unit[plot.x]), ...(timed ? {} : { tickangle: -55, ticklabeloverflow: "allow" }) },
        yaxis: axis({ ...scale(unit[plot.y], y), rangemode: "tozero" }),
      }),
      rows,
    };
  }

  function heat(payload) {
    const { get, unit } = reader(payload), plot = payload.plot;
    const count = new Map(), kinds = new Map(), cells = new Map();
    for (const row of payload.rows) {
      const [host, kind, z] = [get(row, plot.y), get(row, plot.x), get(row, plot.z)];
      count.set(host, (count.get(host) || 0) + z);
      kinds.set(kind, (kinds.get(kind) || 0) + z);
      cells.set(`${host}\n${kind}`, row);
    }
    const ys = [...count.keys()].slice(0, narrow() ? 25 : plot.most);
    const xs = [...kinds].sort((a, b) => b[1] - a[1]).map(([kind]) => kind);
    const cell = (y, x) => cells.get(`${y}\n${x}`);
    const z = ys.map((y) => xs.map((x) => (cell(y, x) ? get(cell(y, x), plot.z) : null)));
    return {
      traces: [{
        type: "heatmap", x: xs.map(safe), y: ys.map((y) => safe(cut(String(y), 30))), z, xgap: 2, ygap: 2,
        colorscale: [[0, css("--heat0")], [0.35, css("--heat1")], [1, css("--heat2")]], zmin: 0,
        hovertext: ys.map((y) => xs.map((x) => safe(`${y}, ${x}: ` +
          `${words(cell(y, x) ? get(cell(y, x), plot.z) : 0, unit[plot.z])} failures`))),
        hoverinfo: "text", showscale: false, texttemplate: "%{z}", textfont: { size: 12 },
      }],
      layout: layout({
        xaxis: axis({ side: "top", showgrid: false, tickangle: -38, type: "category",
          domain: [0, Math.min(1, xs.length * (narrow() ? 0.24 : 0.12))] }),
        yaxis: axis({ autorange: "reversed", showgrid: false, type: "category", dtick: 1,
          domain: [1 - Math.min(1, ys.length * 0.05), 1] }),
      }),
      clicked: (point) => cell(ys[point.pointIndex[0]], xs[point.pointIndex[1]]),
    };
  }

  const KINDS = { lines, pareto, fall, stack, bars, heat };

  // -- what the page calls ---------------------------------------------------------------------

  async function draw(room, payload, marks, on) {
    const made = KINDS[payload.plot.kind](payload);
    if (marks && marks.length) mark(made, marks);
    await Plotly.react(room, made.traces, made.layout, SETTINGS);
    room.removeAllListeners("plotly_click");
    room.removeAllListeners("plotly_relayout");
    room.on("plotly_click", (event) => {
      const point = event.points[0];
      const row = made.clicked ? made.clicked(point) : (made.rows || payload.rows)[point.pointIndex];
      if (row) on.click(row);
    });
    room.on("plotly_relayout", (change) => {
      if (made.layout.xaxis.type !== "date") return;
      const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
      if (from !== undefined && to !== undefined) on.zoom(String(from), String(to));
      else if (change["xaxis.autorange"]) on.zoom(null, null);
    });
  }

  function mark(made, marks) {
    const values = made.traces.filter((trace) => trace.visible === true)
      .flatMap((trace) => trace.y).filter((v) => v !== null);
    const low = Math.min(...values);
    made.layout.shapes = marks.map((one) => ({
      type: "line", x0: one.at, x1: one.at, y0: 0, y1: 1, yref: "paper", layer: "below",
      line: { color: css("--fail"), width: 1, dash: "dot" },
    }));
    made.traces.push({
      type: "scatter", mode: "markers", name: "change points", x: marks.map((one) => one.at),
      y: marks.map(() => low), marker: { symbol: "triangle-up", size: 9, color: css("--fail") },
      hovertext: marks.map((one) => safe(`${one.slice}: ${one.bucket} ${words(one.points, "points")}`)),
      hoverinfo: "x+text",
    });
    made.layout.showlegend = true;
  }

  return { draw, words };
})();

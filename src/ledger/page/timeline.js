"use strict";
// Memory against wall time: the device above, the process below, one cursor through both.

const DEVICE_SERIES = [
  {name: "planned", css: "planned", line: true, value: row => row.planned_device_bytes},
  {name: "held", css: "device", area: true, value: row => row.device_bytes},
  ...(ledger.onGpu ? [{name: "in use, by the driver", css: "rss-file", value: row => row.device_used_bytes}] : []),
];
const planned = ledger.header.planned_bytes;
const HOST_SERIES = [
  {name: "planned pinned + host", css: "planned", line: true, value: () => planned.pinned + planned.host},
  {name: "pinned", css: "pinned", value: row => row.pinned_bytes},
  {name: "host", css: "host", value: row => row.host_bytes},
  {name: "RSS anonymous", css: "rss-anon", value: row => row.rss_anon_bytes},
  {name: "RSS file", css: "rss-file", value: row => row.rss_file_bytes},
];
const BUDGET_IN_VIEW = 1.6;  // a budget further above the data than this is named, not drawn to scale

// Values hold until the next row, so a line is steps; no more than a lowest and a highest point a pixel.
function stepPath(plot, rows, value) {
  const points = [];
  let column = null;
  for (const row of rows) {
    const x = Math.round(plot.x(row.wall_end_ms) * 2) / 2, bytes = value(row);
    if (column !== null && column.x === x) {
      column.low = Math.min(column.low, bytes);
      column.high = Math.max(column.high, bytes);
      column.last = bytes;
    } else {
      points.push(column = {x, first: bytes, low: bytes, high: bytes, last: bytes});
    }
  }
  let path = "";
  for (const p of points) {
    const y = [p.first, p.low, p.high, p.last].filter((v, i, all) => i === 0 || v !== all[i - 1]).map(v => plot.y(v));
    path += path === "" ? `M${plot.left},${y[0]}H${p.x}` : `H${p.x}`;
    path += y.map(v => `V${v.toFixed(1)}`).join("");
  }
  return path === "" ? "" : `${path}H${plot.right}`;
}

function drawSteps(plot, rows) {
  const steps = new Map();
  for (const row of rows) {
    const seen = steps.get(row.step);
    if (seen) seen.end = row.wall_end_ms;
    else steps.set(row.step, {begin: row.wall_begin_ms, end: row.wall_end_ms});
  }
  const every = Math.ceil(steps.size / ((plot.right - plot.left) / 60));
  for (const [step, {begin, end}] of steps) {
    if (step % 2 === 1)
      element(plot.svg, "rect", {class: "step", x: plot.x(begin), y: plot.top,
                                 width: Math.max(0, plot.x(end) - plot.x(begin)), height: plot.bottom - plot.top});
    if (step > 0 && step % every === 0 && plot.x(end) - plot.x(begin) > 1)
      element(plot.svg, "text", {class: "axis faint", x: plot.x((begin + end) / 2), y: plot.top - 8,
                                 "text-anchor": "middle"}, every === 1 && steps.size <= 12 ? `step ${step}` : step);
  }
}

function drawBudget(plot, budget) {
  if (budget === null || budget > plot.yMost) return;
  const y = plot.y(budget);
  element(plot.svg, "line", {class: "stroke budget", x1: plot.left, x2: plot.right, y1: y, y2: y});
}

class MemoryChart {
  constructor(figure, title, series, budget) {
    this.figure = figure;
    this.series = series;
    this.budget = budget;
    this.values = legend(figure, title, [...series, ...(budget === null ? [] : [{name: "budget", css: "budget", line: true}])]);
    if (budget !== null) this.values.budget.textContent = formatBytes(budget);
    this.title = title;
  }
  draw(rows) {
    this.plot?.svg.remove();
    let most = 0;
    for (const {value} of this.series) for (const row of rows) most = Math.max(most, value(row));
    if (this.budget !== null && this.budget <= most * BUDGET_IN_VIEW) most = Math.max(most, this.budget);
    const plot = this.plot = new Plot(this.figure, {
      height: 220, label: `${this.title} against time, arrow keys move the cursor`, yMost: most * 1.08,
      x0: rows.length ? rows[0].wall_begin_ms : 0, x1: rows.length ? rows.at(-1).wall_end_ms : 1,
      yText: formatBytes, yBase: 1024,
    });
    drawSteps(plot, rows);
    const span = plot.x1 - plot.x0;
    const sign = selection.step === null ? "" : "+";  // of a step, counted from its begin
    for (const t of timeTicks(span, 6)) plot.xLabel(plot.x0 + t, sign + tickText(t, formatMs));
    for (const {css, value, area} of [...this.series].reverse()) {
      const path = stepPath(plot, rows, value);
      if (area) element(plot.svg, "path", {class: `area ${css}`, d: `${path}V${plot.bottom}H${plot.left}Z`});
      element(plot.svg, "path", {class: `stroke ${css}`, d: path});
    }
    drawBudget(plot, this.budget);
    this.cursor = element(plot.svg, "line", {class: "cursor", y1: plot.top, y2: plot.bottom, x1: -9, x2: -9});
  }
  show(row) {
    for (const {name, value} of this.series) {
      this.values[name].textContent = formatBytes(value(row));
      this.values[name].dataset.value = value(row);
    }
    const x = this.plot.x(row.wall_end_ms);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
  }
}

const timeline = {
  charts: [
    new MemoryChart(document.getElementById("device-figure"), "Device", DEVICE_SERIES, ledger.header.device_budget_bytes),
    new MemoryChart(document.getElementById("host-figure"), "Process", HOST_SERIES, ledger.header.ram_budget_bytes),
  ],
  rows: [],
  at: 0,

  // The rows of the chosen step: a block alone would be a sliver.
  draw() {
    this.rows = ledger.rows.filter(row => selection.step === null || row.step === selection.step);
    for (const chart of this.charts) {
      chart.draw(this.rows);
      this.listen(chart.plot);
    }
    const chosen = this.rows.findLastIndex(row => selection.block !== null && selection.covers(row));
    this.moveTo(chosen >= 0 ? chosen : this.rows.length - 1);
  },
  moveTo(index) {
    if (this.rows.length === 0) return;
    this.at = Math.min(Math.max(index, 0), this.rows.length - 1);
    const row = this.rows[this.at];
    for (const chart of this.charts) chart.show(row);
    document.getElementById("moment").textContent =
      `After ${formatMs(row.wall_end_ms)}: ${whereText(row)}, ${formatMs(row.device_ms)}`;
  },
  nearest(ms) {
    let low = 0, high = this.rows.length - 1;  // the first row that ends at ms or later
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].wall_end_ms < ms) low = middle + 1; else high = middle;
    }
    return low;
  },
  listen(plot) {
    plot.svg.addEventListener("pointermove", event => this.moveTo(this.nearest(plot.xAt(event.clientX))));
    plot.svg.addEventListener("click", () => {
      const row = this.rows[this.at];
      select(row.step || null, row.block);
    });
    plot.svg.addEventListener("keydown", event => {
      const to = {ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: this.rows.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.moveTo(to);
    });
  },
};

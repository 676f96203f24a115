"use strict";
// Puts the page together: summary, remarks, table, what is selected, light and dark.

const MOST_TABLE_ROWS = 600;  // more are a wait, and nobody reads them: a step or block is then to be chosen

function drawTiles() {
  const {header, summary} = ledger;
  const peak = summary.peak_bytes;
  const ofBudget = bytes => bytes === null ? "no budget" : `budget ${formatBytes(bytes)}`;
  const tiles = [
    ["s / step", summary.steps > 0 ? summary.step_seconds.toFixed(2) : "–", `${formatCount(summary.steps)} of ${formatCount(header.steps)} steps, ${summary.outcome}`, "step_seconds", summary.step_seconds],
    ["s / block", summary.block_seconds > 0 ? summary.block_seconds.toPrecision(3) : "–", `median, ${header.blocks} blocks a step`, "block_seconds", summary.block_seconds],
    ["device peak", formatBytes(peak[0]), `planned ${formatBytes(header.planned_bytes.device)}, ${ofBudget(header.device_budget_bytes)}`, "device_peak", peak[0]],
    ["pinned + host peak", formatBytes(peak[1] + peak[2]), `planned ${formatBytes(header.planned_bytes.pinned + header.planned_bytes.host)}, ${ofBudget(header.ram_budget_bytes)}`, "ram_peak", peak[1] + peak[2]],
    ["RSS anonymous", formatBytes(summary.rss_anon_bytes), `at most; of mapped files ${formatBytes(summary.rss_file_bytes)}`, "rss_anon", summary.rss_anon_bytes],
    ["plan", summary.within_plan ? "held" : "BROKEN", "measured ≤ planned ≤ budget", "within_plan", summary.within_plan],
  ];
  for (const [name, value, more, key, raw] of tiles) {
    const tile = element(document.getElementById("tiles"), "div", {class: key === "within_plan" ? (raw ? "good" : "bad") : ""});
    element(tile, "dt", {}, name);
    element(tile, "dd", {"data-tile": key, "data-value": raw}, value);
    element(tile, "dd", {class: "more"}, more);
  }
}

function drawWords() {
  const {header} = ledger;
  const model = header.model.split("/").at(-1);
  document.title = `${model} – h3stream ledger`;
  document.getElementById("title").textContent = model;
  document.getElementById("subtitle").textContent =
    `${formatCount(header.tokens)} tokens · ${header.blocks} blocks · ${header.steps} steps · ${header.plan} · ${header.backend}`;
  document.getElementById("memory-note").textContent = ledger.onGpu
    ? "Held: by the engine's books, when the host enqueued the phase. RSS: memory of the process without a file, and pages of mapped files."
    : "On the CPU, device, pinned and host memory are ordinary memory, and part of RSS anonymous; weights used where the file is mapped are RSS file.";
  document.getElementById("about").textContent =
    `Started ${header.started} · h3stream ${header.h3stream}, ${header.compiler} · ${header.cpus} CPUs, ${formatBytes(header.memory_bytes)}`;
  const remarks = ledger.remarks.map(remark => `Step ${remark.step}, block ${remark.block}: ${remark.text}`);
  if (ledger.truncated) remarks.push("The last line of the ledger was cut off and is left out.");
  if (ledger.rows_left_out > 0) remarks.push(`${formatCount(ledger.rows_left_out)} later rows are in the JSONL file only.`);
  for (const text of remarks) element(document.getElementById("remarks"), "li", {}, text);
}

const COLUMNS = [
  ["step", "step", String], ["block", "block", v => v ?? ""], ["phase", "phase", String], ["visits", "visits", formatCount],
  ["device_ms", "time", formatMs], ["begin_ms", "begins", formatMs], ["end_ms", "ends", formatMs],
  ["planned_device_bytes", "planned", formatBytes], ["device_bytes", "device", formatBytes],
  ["device_peak_bytes", "peak", formatBytes], ["pinned_bytes", "pinned", formatBytes], ["host_bytes", "host", formatBytes],
  ["rss_anon_bytes", "RSS anon.", formatBytes], ["rss_file_bytes", "RSS file", formatBytes],
];

function drawTable() {
  const table = document.getElementById("table");
  table.replaceChildren();
  const rows = ledger.rows.filter(row => selection.covers(row));
  const head = element(element(table, "thead"), "tr");
  for (const [, name] of COLUMNS) element(head, "th", {scope: "col"}, name);
  const body = element(table, "tbody");
  for (const row of rows.slice(0, MOST_TABLE_ROWS)) {
    const line = element(body, "tr");
    for (const [key, , text] of COLUMNS) element(line, "td", {"data-column": key, "data-value": row[key]}, text(row[key]));
  }
  const left = rows.length - MOST_TABLE_ROWS;
  document.getElementById("table-note").textContent =
    `${formatCount(Math.min(rows.length, MOST_TABLE_ROWS))} lines` + (left > 0 ? `; ${formatCount(left)} more: choose a step or a block` : "");
}

function fillSelect(id, values, word, onChange) {
  const select = document.getElementById(id);
  element(select, "option", {value: ""}, "all");
  for (const value of values) element(select, "option", {value}, value);
  select.addEventListener("change", () => onChange(select.value === "" ? null : Number(select.value)));
}

function select(step, block) {
  selection.step = step;
  selection.block = block;
  document.getElementById("step").value = step ?? "";
  document.getElementById("block").value = block ?? "";
  const hash = [["step", step], ["block", block]].filter(([, v]) => v !== null).map(([k, v]) => `${k}=${v}`).join("&");
  history.replaceState(null, "", hash === "" ? location.pathname + location.search : `#${hash}`);
  draw();
}

function draw() {
  timeline.draw();
  shares.draw();
  phaseBars.draw();
  drawTable();
}

// A link may name a step and a block that are there.
function selectionOfHash(steps, blocks) {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const pick = (name, known) => known.includes(Number(wanted.get(name) ?? NaN)) ? Number(wanted.get(name)) : null;
  return [pick("step", steps), pick("block", blocks)];
}

function setUpTheme() {
  const button = document.getElementById("theme"), root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();
}

function start() {
  const steps = [...new Set(ledger.rows.map(row => row.step))].filter(step => step > 0);
  const blocks = [...new Set(ledger.rows.map(row => row.block))].filter(block => block !== null);
  setUpTheme();
  drawTiles();
  drawWords();
  fillSelect("step", steps, "step", step => select(step, selection.block));
  fillSelect("block", blocks, "block", block => select(selection.step, block));
  select(...selectionOfHash(steps, blocks));
  let pending = 0;
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(draw); });
}

start();

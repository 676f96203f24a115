"use strict";
// The ledger's numbers as the page uses them, and how numbers are written.

const ledger = JSON.parse(document.getElementById("data").textContent);

// Rows as objects, named by the columns.
ledger.rows = ledger.rows.map(values =>
  Object.fromEntries(ledger.columns.map((name, i) => [name, values[i]])));
ledger.onGpu = ledger.header.device_total_bytes !== null;

const PHASES = ["text", "embed", "kv", "attn", "mlp", "final"];
const PHASE_WORDS = {
  text: "text refiner", embed: "embedding", kv: "q, k, v projection", attn: "attention",
  mlp: "out projection, MLP", final: "output heads",
};

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit + 1 < units.length) { value /= 1024; ++unit; }
  return unit === 0 ? `${bytes} B` : `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}

function formatMs(ms) {
  if (ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 1000) return `${ms.toFixed(ms < 10 ? 2 : 1)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(2)} s`;
  const seconds = Math.round(ms / 1000), two = n => String(n).padStart(2, "0");
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)} min`;
}

const formatCount = n => n.toLocaleString("en-US");
const formatShare = share => `${(100 * share).toFixed(1)} %`;

function whereText(row) {
  const step = row.step === 0 ? "before the steps" : `step ${row.step}`;
  return row.block === null ? `${step}, ${PHASE_WORDS[row.phase]}`
                            : `${step}, block ${row.block}, ${PHASE_WORDS[row.phase]}`;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length === 0 ? 0 : sorted[Math.floor(sorted.length / 2)];
}

// What is looked at: null is all.
const selection = {
  step: null,
  block: null,
  covers(row) {
    return (this.step === null || row.step === this.step) && (this.block === null || row.block === this.block);
  },
};

"use strict";
// Device time by phase: shares of the whole run, and a bar for each block or, of one block, for each step.

const BLOCK_PHASES = ["kv", "attn", "mlp"];

const shares = {
  draw() {
    const figure = document.getElementById("shares-figure");
    figure.replaceChildren();
    const total = {};
    for (const row of ledger.rows) total[row.phase] = (total[row.phase] ?? 0) + row.device_ms;
    const used = PHASES.filter(phase => total[phase] > 0);
    const sum = used.reduce((all, phase) => all + total[phase], 0);
    const values = legend(figure, "All phases", used.map(phase => ({name: phase, css: phase})));
    const bar = element(figure, "div", {class: "shares", "aria-hidden": "true"});
    for (const phase of used) {
      const share = total[phase] / sum;
      const part = element(bar, "span", {class: `fill ${phase}`, style: `flex-grow:${share}`});
      part.title = `${PHASE_WORDS[phase]}: ${formatMs(total[phase])}, ${formatShare(share)}`;
      values[phase].textContent = `${formatShare(share)}`;
      values[phase].dataset.value = total[phase];
      values[phase].title = formatMs(total[phase]);
    }
  },
};

// Bars of the selection: {label, block, step, ms: {kv, attn, mlp}}.
function barsOfSelection() {
  const byStep = selection.block !== null && selection.step === null;
  const groups = new Map();
  for (const row of ledger.rows) {
    if (row.block === null || (selection.step !== null && row.step !== selection.step)) continue;
    if (byStep && row.block !== selection.block) continue;
    const key = byStep ? row.step : row.block;
    if (!groups.has(key)) groups.set(key, {kv: [], attn: [], mlp: []});
    groups.get(key)[row.phase].push(row.device_ms);
  }
  return [...groups].sort(([a], [b]) => a - b).map(([key, times]) => ({
    label: key, byStep,
    ms: Object.fromEntries(BLOCK_PHASES.map(phase => [phase, median(times[phase])])),
  }));
}

// Neighbours together where there are more bars than can be seen.
function thinned(bars, most) {
  const size = Math.ceil(bars.length / most);
  if (size <= 1) return bars;
  const out = [];
  for (let i = 0; i < bars.length; i += size) {
    const part = bars.slice(i, i + size);
    out.push({label: `${part[0].label} to ${part.at(-1).label}`, byStep: part[0].byStep,
              ms: Object.fromEntries(BLOCK_PHASES.map(phase => [phase, median(part.map(bar => bar.ms[phase]))]))});
  }
  return out;
}

const phaseBars = {
  draw() {
    const figure = document.getElementById("bars-figure");
    figure.replaceChildren();
    const byStep = selection.block !== null && selection.step === null;
    const what = byStep ? `Block ${selection.block}, each step`
      : selection.step === null ? "Each block, median of the steps" : `Each block of step ${selection.step}`;
    this.values = legend(figure, what, BLOCK_PHASES.map(phase => ({name: phase, css: phase})));
    const bars = thinned(barsOfSelection(), Math.floor(Math.max(320, figure.clientWidth) / 4));
    const total = bar => BLOCK_PHASES.reduce((all, phase) => all + bar.ms[phase], 0);
    const plot = new Plot(figure, {
      height: 220, label: `${what}: time of each phase, arrow keys move the cursor`, x0: 0, x1: Math.max(1, bars.length),
      yMost: 1.05 * Math.max(0, ...bars.map(total)), yText: formatMs, yBase: 10,
    });
    const gap = bars.length > 120 ? 0 : 0.15;
    bars.forEach((bar, i) => {
      let sum = 0;
      const chosen = !byStep && selection.block !== null && bar.label === selection.block;
      const group = element(plot.svg, "g", {class: chosen || byStep || selection.block === null ? "" : "faded"});
      for (const phase of BLOCK_PHASES) {
        const top = plot.y(sum + bar.ms[phase]);
        element(group, "rect", {class: `fill ${phase}`, x: plot.x(i + gap / 2), width: plot.x(i + 1 - gap / 2) - plot.x(i + gap / 2),
                                y: top, height: Math.max(0, plot.y(sum) - top)});
        sum += bar.ms[phase];
      }
    });
    const every = Math.max(1, Math.ceil(bars.length / 16));
    bars.forEach((bar, i) => { if (i % every === 0) plot.xLabel(i + 0.5, bar.label); });
    this.listen(plot, bars);
    this.show(bars, bars.findIndex(bar => !byStep && bar.label === selection.block));
  },
  show(bars, index) {
    if (bars.length === 0) return;
    this.at = Math.min(Math.max(index, 0), bars.length - 1);
    const bar = bars[this.at];
    let sum = 0;
    for (const phase of BLOCK_PHASES) {
      this.values[phase].textContent = formatMs(bar.ms[phase]);
      this.values[phase].dataset.value = bar.ms[phase];
      sum += bar.ms[phase];
    }
    document.getElementById("bar-readout").textContent = `${bar.byStep ? "Step" : "Block"} ${bar.label}: ${formatMs(sum)}`;
  },
  listen(plot, bars) {
    plot.svg.addEventListener("pointermove", event => this.show(bars, Math.floor(plot.xAt(event.clientX))));
    plot.svg.addEventListener("click", () => {
      const {label, byStep} = bars[this.at];
      if (typeof label === "number") byStep ? select(label, selection.block) : select(selection.step, label);
    });
    plot.svg.addEventListener("keydown", event => {
      const to = {ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: bars.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.show(bars, to);
    });
  },
};

"use strict";
// What the charts share: elements, scales, axes, legends.

function element(parent, name, attributes = {}, text = null) {
  const svg = name === "svg" || parent instanceof SVGElement;
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.append(node);
  return node;
}

// About `count` round values from 0 to `most`: 1, 2 or 5 times a power of `base` (1024 for bytes, 10 for times).
function ticks(most, count, base) {
  if (!(most > 0)) return [0];
  const unit = base ** Math.floor(Math.log(most / count) / Math.log(base));
  const steps = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  const step = unit * (steps.find(s => unit * s * count >= most) ?? steps.at(-1));
  return Array.from({length: Math.floor(most / step) + 1}, (_, i) => i * step);
}

// The same for times in milliseconds: whole seconds, minutes and hours above a few seconds.
function timeTicks(most, count) {
  const second = 1000, minute = 60 * second, hour = 60 * minute;
  if (most < 10 * second) return ticks(most, count, 10);
  const steps = [2, 5, 10, 15, 30].map(n => n * second)
    .concat([1, 2, 5, 10, 15, 30].map(n => n * minute), [1, 2, 5, 10, 20, 50, 100].map(n => n * hour));
  const step = steps.find(s => s * count >= most) ?? steps.at(-1);
  return Array.from({length: Math.floor(most / step) + 1}, (_, i) => i * step);
}

// "20.00 s" is "20 s" on an axis, and nothing has no unit.
function tickText(value, format) {
  return value === 0 ? "0" : format(value).replace(/\.0+ /, " ").replace(/(\.\d*?)0+ /, "$1 ");
}

const MARGIN = {left: 70, right: 16, top: 22, bottom: 26};

// An SVG as wide as its figure, with a labelled plot area: x from x0 to x1, y from 0 to yMost.
class Plot {
  constructor(figure, {height, label, x0, x1, yMost, yText, yBase}) {
    this.width = Math.max(320, figure.clientWidth);
    this.height = height;
    this.x0 = x0;
    this.x1 = Math.max(x1, x0 + 1e-6);
    this.yMost = Math.max(yMost, 1e-9);
    this.left = MARGIN.left;
    this.right = this.width - MARGIN.right;
    this.top = MARGIN.top;
    this.bottom = height - MARGIN.bottom;
    this.svg = element(figure, "svg", {
      width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, role: "img", "aria-label": label, tabindex: 0,
    });
    for (const value of ticks(this.yMost, 4, yBase)) {
      const y = this.y(value);
      element(this.svg, "line", {class: "grid", x1: this.left, x2: this.right, y1: y, y2: y});
      element(this.svg, "text", {class: "axis", x: this.left - 8, y: y + 4, "text-anchor": "end"}, tickText(value, yText));
    }
  }
  x(value) { return this.left + (value - this.x0) / (this.x1 - this.x0) * (this.right - this.left); }
  y(value) { return this.bottom - value / this.yMost * (this.bottom - this.top); }
  xAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const x = (clientX - box.left) * this.width / box.width;
    return this.x0 + (x - this.left) / (this.right - this.left) * (this.x1 - this.x0);
  }
  xLabel(value, text, anchor = "middle") {
    element(this.svg, "text", {class: "axis", x: this.x(value), y: this.bottom + 18, "text-anchor": anchor}, text);
  }
}

// Names of series with a swatch and a place for a number each; returns name -> that place.
function legend(figure, title, series) {
  const caption = element(figure, "figcaption");
  element(caption, "strong", {}, title);
  const values = {};
  for (const {name, css, line} of series) {
    const item = element(caption, "span", {class: "key"});
    element(item, "i", {class: `swatch ${css} ${line ? "line" : ""}`, "aria-hidden": "true"});
    element(item, "span", {}, name);
    values[name] = element(item, "b", {"data-series": name});
  }
  return values;
}

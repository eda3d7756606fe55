// Numbers and names as people read them, and elements by the short way.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const inSvg = ["svg", "g", "path", "line", "text", "rect", "circle", "title"].includes(name);
  const made = inSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const number = (value, digits) => `${+value.toPrecision(digits)}`.replace("-", "−");
const score = (value, digits = 2) => (data.percent ? `${(100 * value).toFixed(digits)} %` : number(value, 4));

function difference(value) {
  const size = Math.abs(value) < 1e-6 ? 0 : Math.abs(value);
  const sign = !size ? "±" : value > 0 ? "+" : "−";
  return data.percent ? `${sign}${(100 * size).toFixed(2)} points` : `${sign}${number(size, 3)}`;
}

function short(value) {
  for (const [unit, sign] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= unit) return `${+(value / unit).toPrecision(3)}${sign}`;
  }
  return `${+value.toPrecision(3)}`;
}

const whole = (value) => value.toLocaleString("en");
const mixText = (point) => (point.mix === null ? "" : data.mixes[point.mix].text);

// The axis that networks are placed by, and a network's place on it; null where it is not known.
const axisOf = (key) => data.axes.find((axis) => axis.key === key) ?? data.axes[0];
const ratio = (value, axis) => `${(value / axis.single).toFixed(2)}×`;
const sized = (value, axis) => (axis.counts ? `${whole(value)} (${ratio(value, axis)})` : ratio(value, axis));

// How a fused network's size was asked for: an alpha or a budget.
const stepText = (point) => (point.budget !== null ? `budget ${point.budget}` : point.alpha === null ? "" : `${point.alpha}`);

function called(point) {
  if (point.kind === "parent") return point.method;
  const alpha = point.budget !== null ? `, budget ${point.budget}` : point.alpha === null ? "" : `, alpha ${point.alpha}`;
  const mix = data.mixes.length > 1 ? `, mix ${mixText(point)}` : "";
  return `${point.method}${alpha}${mix}`;
}

// How many decimals the ticks need so that none of them is rounded.
function decimals(values) {
  for (let digits = 0; digits < 4; digits++) {
    if (values.every((value) => Math.abs(value - +value.toFixed(digits)) < 1e-9 * Math.max(1, Math.abs(value)))) return digits;
  }
  return 4;
}

// About `count` round numbers between two.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
  return found;
}

// Every method has a colour and a shape, so that neither is needed to tell them apart; parents and ensemble are ink. The
// colours of the models, which bars show, are others.
const methods = [...new Set(data.points.filter((p) => p.kind === "fused").map((p) => p.method))];
const shapes = {
  circle: "M6,0A6,6 0 1 1 -6,0A6,6 0 1 1 6,0Z", up: "M0,-7L6.6,5H-6.6Z", down: "M0,7L6.6,-5H-6.6Z",
  square: "M-5.4,-5.4H5.4V5.4H-5.4Z", diamond: "M0,-7.6L7.6,0L0,7.6L-7.6,0Z", cross: "M-2.4,-6.6H2.4V-2.4H6.6V2.4H2.4V6.6H-2.4V2.4H-6.6V-2.4H-2.4Z",
  star: "M0,-9L2.3,-3L8.6,-2.8L3.6,1.2L5.3,7.3L0,3.8L-5.3,7.3L-3.6,1.2L-8.6,-2.8L-2.3,-3Z", right: "M7,0L-5,6.6V-6.6Z",
};
const order = ["circle", "up", "square", "down", "cross", "right"];

function look(point) {
  if (point.kind === "parent") return { shape: shapes.diamond, colour: "var(--ink)" };
  if (point.kind === "ensemble") return { shape: shapes.star, colour: "var(--ink)" };
  const at = methods.indexOf(point.method);
  return { shape: shapes[order[at % order.length]], colour: `var(--m${at % 8})` };
}

function swatch({ shape, colour }) {
  const svg = element("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true" });
  svg.append(element("path", { d: shape, style: `fill:${colour}` }));
  return svg;
}

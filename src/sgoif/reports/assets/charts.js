// Pictures of numbers, drawn as SVG; beside each stands a table with the same numbers.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 420;
const HEIGHT = 250;
const BOX = { left: 46, right: 396, top: 12, bottom: 212 };
const PANELS = [
  { title: "Solver residual and tolerance τ", series: [["residual_median", "residual_mean", "residual"], ["tau"]] },
  { title: "Trust in the held-out examples", series: [["confidence_mean", "confidence"], ["pass_share"]], unit: true },
  { title: "Loss", series: [["train_loss"], ["anchor_loss"]] },
];
const SERIES_NAMES = {
  residual_median: "median residual", residual_mean: "mean residual", residual: "residual", tau: "tolerance τ",
  confidence_mean: "mean confidence", confidence: "confidence", pass_share: "share believed",
  train_loss: "training loss", anchor_loss: "held-out loss",
};

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A straight map from [low, high] to [from, to]. */
function scale(low, high, from, to) {
  const span = high > low ? high - low : 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 10000 || (size > 0 && size < 0.001)) return value.toExponential(0).replace("e+", "e");
  return size >= 1000 ? grouped(value) : String(Number(value.toPrecision(3)));
}

/** Round marks that cover [low, high]. */
function ticks(low, high, wanted = 5) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const marks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) marks.push(i * step);
  return marks;
}

/** Powers of ten inside [low, high], or just the ends where there is none. */
function logTicks(low, high) {
  const marks = [];
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const stride = Math.max(1, Math.ceil((last - first) / 5));
  for (let i = first; i <= last; i += stride) marks.push(10 ** i);
  return marks.length > 1 ? marks : [low, high];
}

function frame(label, x, y, xMarks, yMarks, xText) {
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, class: "chart" });
  for (const mark of yMarks) {
    svg.append(draw("line", { x1: BOX.left, x2: BOX.right, y1: y(mark), y2: y(mark), class: "grid" }));
    svg.append(draw("text", { x: BOX.left - 6, y: y(mark) + 4, "text-anchor": "end" }, shortNumber(mark)));
  }
  for (const mark of xMarks) {
    svg.append(draw("text", { x: x(mark), y: BOX.bottom + 17, "text-anchor": "middle" }, shortNumber(mark)));
  }
  svg.append(draw("line", { x1: BOX.left, x2: BOX.right, y1: BOX.bottom, y2: BOX.bottom, class: "axis" }));
  svg.append(draw("text", { x: (BOX.left + BOX.right) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xText));
  return svg;
}

function numbersTable(heads, rows) {
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((text) => make("td", {}, text))));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  return make("details", { class: "numbers" }, make("summary", {}, "The numbers"), make("div", { class: "scroll" }, table));
}

function showCurves() {
  const target = byId("training-body");
  const history = report.history;
  const anyKey = Object.keys(history).find((key) => key !== "step");
  const steps = history.step || (anyKey ? history[anyKey].map((_, i) => i) : []);
  let drawn = 0;
  for (const panel of PANELS) {
    const keys = panel.series.map((names) => names.find((name) => name in history)).filter(Boolean);
    if (keys.length === 0) continue;
    target.append(...curvePanel(panel, keys, steps, history));
    drawn += 1;
  }
  if (drawn === 0) {
    byId("training").hidden = true;
    byId("training-link").hidden = true;
    return;
  }
  const keys = Object.keys(history).filter((key) => key !== "step");
  const rows = steps.map((step, i) => [step, ...keys.map((key) => history[key][i])].map((v) => (v === null ? "–" : shortNumber(v))));
  target.append(numbersTable(["step", ...keys.map((key) => SERIES_NAMES[key] || key)], rows));
}

function curvePanel(panel, keys, steps, history) {
  const values = keys.flatMap((key) => history[key]).filter((value) => value !== null);
  let low = Math.min(...values);
  let high = Math.max(...values);
  const log = !panel.unit && low > 0 && high / low > 30;
  if (panel.unit && low >= 0 && high <= 1) [low, high] = [0, 1];
  else if (!log && low > 0) low = 0;
  if (high === low) high = low + 1;
  const bend = log ? Math.log10 : (value) => value;
  const straight = scale(bend(low), bend(high), BOX.bottom, BOX.top);
  const y = (value) => straight(bend(value));
  const known = steps.filter((step) => step !== null);
  const x = scale(Math.min(...known), Math.max(...known), BOX.left, BOX.right - 8);
  const names = keys.map((key) => SERIES_NAMES[key]);
  const label = `${panel.title} over the training steps: ${names.join(", ")}`;
  const marks = log ? logTicks(low, high) : ticks(low, high);
  const svg = frame(label, x, y, ticks(Math.min(...known), Math.max(...known), 4), marks, "training step");
  keys.forEach((key, number) => {
    const points = steps.map((step, i) => [step, history[key][i]]).filter(([step, value]) => step !== null && value !== null);
    const path = points.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    svg.append(draw("path", { d: path, class: `curve curve-${number}` }));
    if (points.length === 1) svg.append(draw("circle", { cx: x(points[0][0]), cy: y(points[0][1]), r: 3, class: `point-${number}` }));
  });
  const legend = names.map((name, number) => {
    const sample = draw("svg", { viewBox: "0 0 28 8", class: "sample", "aria-hidden": "true" });
    sample.append(draw("path", { d: "M1 4L27 4", class: `curve curve-${number}` }));
    return make("li", {}, sample, name);
  });
  return [make("h3", {}, panel.title), make("ul", { class: "legend" }, ...legend), svg];
}

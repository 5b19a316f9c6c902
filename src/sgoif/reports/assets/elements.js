// What every page with a script uses: elements, texts and numbers as they are shown.

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; text is only ever set as text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Text from the data, fit to be seen: control characters and line separators get a visible sign. */
function shown(text) {
  return text.replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u2028\u2029]/g, "\u2424");
}

/** A text from the data that keeps its direction to itself. */
function isolated(text, attributes = {}) {
  return make("bdi", { dir: "auto", ...attributes }, shown(text) || "(no name)");
}

const groupedFormat = new Intl.NumberFormat("en");
const grouped = (number) => groupedFormat.format(Math.round(number));

function percent(share) {
  if (share === null || Number.isNaN(share)) return "unknown";
  const value = 100 * share;
  // Rounding must not turn "almost" into "certainly".
  if (value >= 99.95 && value < 100) return ">99.9%";
  if (value > 0 && value <= 0.05) return "<0.1%";
  if (value > 99 && value < 100) return `${value.toFixed(1)}%`;
  if (value > 0.05 && value < 9.95) return `${value.toFixed(1)}%`;
  return `${Math.round(value)}%`;
}

function signed(number) {
  return Number.isNaN(number) ? "not observed" : `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;
}

function plural(count, one, many) {
  return `${grouped(count)} ${count === 1 ? one : many}`;
}

/** A one-in-so-many phrase for a rate, or a percentage where none fits. */
function oneIn(rate) {
  const every = Math.round(1 / rate);
  return rate > 0 && Math.abs(1 / every - rate) < 0.005 ? `1 in ${every}` : percent(rate);
}

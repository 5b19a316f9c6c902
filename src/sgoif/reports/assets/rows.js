// The data of the page: columns as typed arrays, pictures on demand.

const report = JSON.parse(document.getElementById("report").textContent);
const TYPES = { u8: Uint8Array, u16: Uint16Array, i32: Int32Array, f32: Float32Array };
const column = Object.fromEntries(Object.entries(report.columns).map(([name, packed]) => [name, unpack(packed)]));
const total = report.names.length;
const hasPictures = column.slot !== undefined;
const selectedTotal = column.selected.reduce((sum, value) => sum + value, 0);

function unpack({ type, data }) {
  if (Uint8Array.fromBase64) return new TYPES[type](Uint8Array.fromBase64(data).buffer);
  const binary = atob(data);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new TYPES[type](bytes.buffer);
}

// Groups of rows that show the same picture, or nearly the same. One may have thousands: others are listed on demand.
const groupsOf = new Map();
for (const rows of report.copies) {
  const group = { rows, mixed: rows.some((row) => column.given[row] !== column.given[rows[0]]) };
  for (const row of rows) groupsOf.set(row, [...(groupsOf.get(row) ?? []), group]);
}
const copiesOf = (row) => [...new Set((groupsOf.get(row) ?? []).flatMap((group) => group.rows))].filter((other) => other !== row);
const contradicted = (row) => (groupsOf.get(row) ?? []).some((group) => group.mixed);

const className = (number) => report.classes[number];

// Images that only findings are about follow the rows of the table: [name, name of the class or null, whether it can be
// decided about]. A class that only they have has no number.
const further = report.found?.further ?? [];
const splits = report.found?.splits ?? [];
const nameOf = (row) => (row < total ? report.names[row] : further[row - total][0]);
const givenName = (row) => (row < total ? className(column.given[row]) : further[row - total][1] ?? "");
const givenOf = (row) => (row < total ? column.given[row] : report.classes.indexOf(givenName(row)));
const labelled = (row) => row < total || further[row - total][1] !== null;
const decidable = (row) => row < total || further[row - total][2];
// The first folder that is called like a split.
const splitOf = (row) => splits.indexOf(nameOf(row).split("/").slice(0, -1).find((part) => splits.includes(part)));

// Pictures: elements with one base64 text per line, read when needed and kept for a while.
const KINDS = [["/9j/", "jpeg"], ["iVBOR", "png"], ["UklGR", "webp"], ["R0lGOD", "gif"]];
const KEPT_CHUNKS = 24;
const chunks = new Map();
const waiting = new Map();

function chunkLines(number) {
  if (chunks.has(number)) return chunks.get(number);
  const element = byId(`pictures-${number}`);
  const loading = document.readyState === "loading";
  // While the file is still being read, an element without a successor may lack its end.
  if (loading && (element === null || element.nextElementSibling === null)) return null;
  const lines = element === null ? [] : element.textContent.split("\n");
  chunks.set(number, lines);
  if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
  return lines;
}

/** Fill `frame` with the picture of a row, now or when it has been loaded. */
function showPicture(frame, row, alternative) {
  const slot = column.slot[row];
  const lines = chunkLines(Math.floor(slot / report.chunk));
  if (lines === null) {
    waiting.set(frame, [row, alternative]);
    return;
  }
  const line = lines[slot % report.chunk];
  const kind = line ? KINDS.find(([start]) => line.startsWith(start)) : undefined;
  if (kind === undefined) {
    const reason = line === "" ? "picture could not be read" : "picture not stored in this file";
    frame.classList.add("empty");
    frame.title = reason;
    frame.replaceChildren(make("span", {}, reason));
    return;
  }
  frame.replaceChildren(
    make("img", { src: `data:image/${kind[1]};base64,${line}`, alt: alternative, decoding: "async", draggable: "false" }),
  );
}

function showWaitingPictures() {
  const frames = [...waiting];
  waiting.clear();
  for (const [frame, [row, alternative]] of frames) if (frame.isConnected) showPicture(frame, row, alternative);
}

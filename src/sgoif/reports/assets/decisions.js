// Decisions: what was decided about which row, kept in the browser, written to and read from decisions.csv.

const MOVE = "move"; // to another split
const KINDS_OF_DECISION = ["keep", "relabel", "drop", ...(splits.length ? [MOVE] : [])];
const SKIP = "skip"; // somebody looked and cannot tell: kept like a decision, and counted as none
const CSV_COLUMNS = ["path", "decision", "given_label", "new_label", "source",
  ...(splits.length ? ["new_split"] : []), ...(report.found ? ["finding"] : [])];
const STORE = `sgoif-report-${report.digest}`;
// row -> { kind, label, about }: label = number of the class of relabel, of the split of move, else -1; about = the kind
// of finding that it is about, "" where the label was looked at. One to an image: the last one holds.
const decisions = new Map();
const undoStack = []; // each entry: [[row, decision before or undefined], ...]
let storable = true;
// Kept by the place in the order of names, which stays when the rows are ranked anew.
const placeOfRow = new Uint32Array(total);
column.nameOrder.forEach((row, place) => { placeOfRow[row] = place; });

function loadDecisions() {
  try {
    const text = localStorage.getItem(STORE);
    // A write shows now, and not after an hour of work, that the browser refuses to store.
    localStorage.setItem(STORE, text === null ? "[]" : text);
    decisions.clear();
    const others = new Map(further.map(([name], place) => [name, total + place]));
    for (const [place, kind, label, about] of JSON.parse(text === null ? "[]" : text)) {
      const row = typeof place === "string" ? others.get(place) : column.nameOrder[place];
      if (row !== undefined && isDecision(row, kind, label)) decisions.set(row, { kind, label, about: String(about ?? "") });
    }
  } catch {
    storable = false;
  }
}

function isDecision(row, kind, label) {
  if (!decidable(row) || (!labelled(row) && [MOVE, "relabel"].includes(kind))) return false;
  if (kind === "relabel") return Number.isInteger(label) && label in report.classes && label !== givenOf(row);
  if (kind === MOVE) return Number.isInteger(label) && label in splits && label !== splitOf(row);
  return kind === SKIP || KINDS_OF_DECISION.includes(kind);
}

function storeDecisions() {
  try {
    localStorage.setItem(STORE, JSON.stringify([...decisions].map(([row, { kind, label, about }]) =>
      [row < total ? placeOfRow[row] : nameOf(row), kind, label, ...(about ? [about] : [])])));
    storable = true;
  } catch {
    storable = false;
  }
}

/** Set or clear (null) decisions of several rows as one step that can be undone. */
function decideRows(changes) {
  if (changes.length === 0) return;
  undoStack.push(changes.map(([row]) => [row, decisions.get(row)]));
  for (const [row, decision] of changes) setDecision(row, decision);
  storeDecisions();
}

function setDecision(row, decision) {
  if (decision) decisions.set(row, decision);
  else decisions.delete(row);
}

/** Take back the last step; the rows it changed. */
function undoLast() {
  const step = undoStack.pop();
  if (step === undefined) return [];
  for (const [row, decision] of step) setDecision(row, decision);
  storeDecisions();
  return step.map(([row]) => row);
}

function tallyDecisions() {
  const tally = { keep: 0, relabel: 0, drop: 0, move: 0, skip: 0, decided: 0, selected: 0 };
  for (const [row, { kind }] of decisions) {
    tally[kind] += 1;
    if (kind === SKIP) continue;
    tally.decided += 1;
    tally.selected += column.selected[row] ?? 0;
  }
  return tally;
}

// A spreadsheet would run a cell that starts like a formula, and may split cells at semicolons and others; an apostrophe
// marks such a start as text, and itself likewise. The tables do the same (score_table.py).
const toCell = (text) => (/^[\t\r\n]/.test(text) ? "'" : "") + text.replace(/(^|[;,\t\r\n"])(?= *['=+\-@\uff1d\uff0b\uff0d\uff20])/g, "$1'");
function fromCell(text) {
  const plain = text.replace(/(^|[;,\t\r\n"])'/g, "$1");
  return toCell(plain) === text ? plain : text;
}
const quoted = (text) => (/[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function decisionsCsv() {
  const lines = [CSV_COLUMNS];
  for (const row of [...decisions.keys()].sort((a, b) => a - b)) {
    const { kind, label, about } = decisions.get(row);
    const changed = kind === "relabel" ? className(label) : "";
    const cells = { new_split: kind === MOVE ? splits[label] : "", finding: about };
    lines.push([nameOf(row), kind, givenName(row), changed, report.source, ...CSV_COLUMNS.slice(5).map((name) => cells[name])]);
  }
  return lines.map((cells) => `${cells.map((cell) => quoted(toCell(cell))).join(",")}\r\n`).join("");
}

/** UTF-8, with bytes of file names that are not UTF-8 written back as those bytes. */
function toBlob(text) {
  const parts = text.split(/([\udc80-\udcff])/u).map((part) =>
    /^[\udc80-\udcff]$/u.test(part) ? new Uint8Array([part.charCodeAt(0) - 0xdc00]) : part,
  );
  return new Blob(parts, { type: "text/csv;charset=utf-8" });
}

function fromBytes(buffer) {
  const strict = new TextDecoder("utf-8", { fatal: true });
  try {
    return strict.decode(buffer);
  } catch {
    const binary = [...new Uint8Array(buffer)].map((byte) => String.fromCharCode(byte)).join("");
    const sequence = /[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|[\x80-\xff]/g;
    return binary.replace(sequence, (found) => {
      try {
        return strict.decode(Uint8Array.from(found, (c) => c.charCodeAt(0)));
      } catch {
        return [...found].map((c) => String.fromCharCode(0xdc00 + c.charCodeAt(0))).join("");
      }
    });
  }
}

/** Rows of cells; quoted cells may hold commas, quotes and line ends. */
function parseCsv(text) {
  const rows = [];
  let cells = [];
  const cell = /(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n]*))(,|\r\n|\n|\r|$)/y;
  while (cell.lastIndex < text.length) {
    const line = rows.length + 1;
    const found = cell.exec(text);
    if (found === null) throw new Error(`row ${line} is not CSV: a quote is not closed or stands inside a cell`);
    cells.push(found[1] === undefined ? found[2] : found[1].replaceAll('""', '"'));
    if (found[3] === ",") {
      if (cell.lastIndex === text.length) cells.push("");
      else continue;
    }
    rows.push(cells);
    cells = [];
  }
  if (cells.length) rows.push(cells);
  return rows.filter((row) => row.length > 1 || row[0] !== "");
}

/** Take decisions from the text of a decisions.csv; a sentence on what was done. */
function importDecisions(text) {
  const [header, ...rows] = parseCsv(text.replace(/^\ufeff/, ""));
  const places = CSV_COLUMNS.map((name) => (header || []).indexOf(name));
  if (places.slice(0, 4).some((place) => place < 0)) {
    throw new Error(`the file needs the columns ${CSV_COLUMNS.slice(0, 4).join(", ")} in its first line`);
  }
  const rowsByName = new Map();
  report.names.forEach((name, row) => rowsByName.set(name, [...(rowsByName.get(name) || []), row]));
  further.forEach(([name], place) => rowsByName.set(name, [total + place]));
  const numbers = new Map(report.classes.map((name, number) => [name, number]));
  const changes = new Map();
  const problems = { unknown: 0, changed: 0, invalid: 0 };
  for (const cells of rows) {
    const cell = (name) => fromCell(cells[(header || []).indexOf(name)] || "");
    const [path, kind, given, label, split, about] = [...CSV_COLUMNS.slice(0, 4), "new_split", "finding"].map(cell);
    const found = rowsByName.get(path);
    const matching = (found || []).filter((row) => givenName(row) === given);
    const number = kind === "relabel" ? numbers.get(label) : kind === MOVE ? splits.indexOf(split) : -1;
    if (found === undefined) problems.unknown += 1;
    else if (matching.length === 0) problems.changed += 1;
    else if (number === undefined || !isDecision(matching[0], kind, number)) problems.invalid += 1;
    else for (const row of matching) changes.set(row, { kind, label: number, about });
  }
  decideRows([...changes]);
  const left = [
    [problems.unknown, "not in this report"],
    [problems.changed, "with another given label here"],
    [problems.invalid, "with an unknown decision or class"],
  ].filter(([count]) => count > 0).map(([count, why]) => `${grouped(count)} ${why}`);
  const done = `${plural(changes.size, "decision", "decisions")} imported`;
  return left.length ? `${done}; left out: ${left.join(", ")}.` : `${done}.`;
}

// The page as a whole: summary, filters, pages of cards, keyboard, and the bar with the decisions.

const view = { rows: [], page: 0, size: 24, active: -1 }; // rows that pass the filters; active = place in rows, -1 = none
const orders = new Map();
let lowerNames = null;

/** All rows in the order of a sort key; unknown values last, ties in the default order. */
function orderBy(key) {
  if (orders.has(key)) return orders.get(key);
  let order;
  if (key === "name") order = Uint32Array.from(column.nameOrder);
  else {
    order = Uint32Array.from({ length: total }, (_, row) => row);
    if (key !== "probability") {
      const values = Float64Array.from(column[key], (value) => (Number.isNaN(value) ? -Infinity : value));
      order.sort((a, b) => (values[b] > values[a] ? 1 : values[b] < values[a] ? -1 : a - b));
    }
  }
  orders.set(key, order);
  return order;
}

function passesState(row, state) {
  const decision = decisions.get(row);
  if (state === "open") return decision === undefined;
  if (state === "decided") return decision !== undefined && decision.kind !== SKIP;
  return decision !== undefined && decision.kind === state;
}

function applyFilters() {
  if (looking.on) {
    setLooking(false);
    showLooks();
  }
  const text = byId("search").value.trim().toLowerCase();
  const given = Number(byId("given").value);
  const suggested = Number(byId("suggested").value);
  const least = Number(byId("least").value);
  const state = byId("state").value;
  const onlySelected = byId("only-selected").checked;
  const onlyCopies = byId("only-copies").checked;
  if (text && lowerNames === null) lowerNames = report.names.map((name) => name.toLowerCase());
  view.rows = orderBy(byId("sort").value).filter((row) =>
    (given < 0 || column.given[row] === given)
    && (suggested < 0 || column.suggested[row] === suggested)
    && (least === 0 || column.probability[row] >= Math.fround(least))
    && (!onlySelected || column.selected[row] === 1)
    && (!onlyCopies || contradicted(row))
    && (state === "any" || passesState(row, state))
    && (!text || lowerNames[row].includes(text)),
  );
  view.active = -1;
  showPage(0);
}

function pageCount() {
  return Math.max(1, Math.ceil(view.rows.length / view.size));
}

function showPage(page) {
  view.page = Math.min(Math.max(page, 0), pageCount() - 1);
  const start = view.page * view.size;
  const rows = [...view.rows.subarray(start, start + view.size)];
  const handlers = { decide: (row, kind, label) => decide(row, kind, label, looking.on), activate };
  const items = rows.map((row, i) => make("li", {}, makeCard(row, start + i + 1, handlers)));
  byId("cards").start = start + 1;
  byId("cards").replaceChildren(...items);
  const first = byId("cards").querySelector(".card");
  if (first) first.tabIndex = 0;
  const none = rows.length === 0;
  byId("nothing").hidden = !none;
  byId("pager").hidden = none || (pageCount() === 1 && view.rows.length <= 24);
  byId("previous").disabled = view.page === 0;
  byId("next").disabled = view.page >= pageCount() - 1;
  byId("page-text").textContent = pageText();
  const range = none ? "" : `, showing ${grouped(start + 1)} to ${grouped(start + rows.length)}`;
  byId("count").textContent = `${grouped(view.rows.length)} of ${plural(total, "example", "examples")}${range}`;
  showBulk();
}

function pageText() {
  return `${looking.on ? "Look" : "Page"} ${grouped(view.page + 1)} of ${grouped(pageCount())}`;
}

function turnPage(by) {
  if (looking.on) {
    goTo(view.page + by);
    return;
  }
  showPage(view.page + by);
  view.active = -1;
  byId("review").scrollIntoView();
  byId("review").focus({ preventScroll: true });
}

function cardOf(row) {
  return byId("cards").querySelector(`[data-row="${row}"]`);
}

function activate(row) {
  const card = cardOf(row);
  if (card === null) return;
  for (const other of byId("cards").querySelectorAll('.card[tabindex="0"]')) other.tabIndex = -1;
  card.tabIndex = 0;
  const start = view.page * view.size;
  view.active = start + view.rows.subarray(start, start + view.size).indexOf(row);
}

/** Go to a place in the filtered list, turning pages on the way. */
function goTo(place) {
  if (view.rows.length === 0) return;
  const target = Math.min(Math.max(place, 0), view.rows.length - 1);
  const page = Math.floor(target / view.size);
  if (page !== view.page) showPage(page);
  const card = cardOf(view.rows[target]);
  activate(view.rows[target]);
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" });
}

function step(by) {
  goTo(view.active < 0 ? view.page * view.size : view.active + by);
}

function cardsPerLine() {
  const cards = [...byId("cards").children];
  return Math.max(1, cards.filter((card) => card.offsetTop === cards[0].offsetTop).length);
}

const sameDecision = (one, other) => one !== undefined && ["kind", "label", "about"].every((part) => one[part] === other[part]);

function decide(row, kind, label, moveOn) {
  const name = shown(nameOf(row));
  if (kind === "relabel" && label < 0) {
    const select = cardOf(row).querySelector("select");
    select.focus();
    say(`No other class is suggested for ${name}: choose one.`);
    return;
  }
  const before = decisions.get(row);
  const decision = { kind, label: kind === "relabel" ? label : -1, about: "" };
  const same = sameDecision(before, decision);
  // A second click takes a decision back; a second key press does not, since it comes with moving on.
  if (!same || !moveOn) decideRows([[row, same ? null : decision]]);
  const what = kind === "relabel" ? `relabel as ${shown(className(label))}` : kind === SKIP ? "cannot tell" : kind;
  say(same && !moveOn ? `${name}: not decided any more` : `${name}: ${what}`);
  refresh([row]);
  if (looking.on) nextLook();
  else if (moveOn) step(1);
}

function refresh(rows) {
  if (rows.length > view.size) for (const card of byId("cards").querySelectorAll(".card")) updateCard(card, Number(card.dataset.row));
  else for (const row of rows) if (cardOf(row)) updateCard(cardOf(row), row);
  refreshFindings();
  showTally();
  showBulk();
  showLooks();
}

function undo() {
  const rows = undoLast();
  if (rows.length === 0) {
    say("There is nothing to undo.");
    return;
  }
  for (const row of rows) chosenClass.delete(row);
  refresh(rows);
  say(rows.length === 1 ? `Undone: ${shown(nameOf(rows[0]))}` : `Undone: ${plural(rows.length, "decision", "decisions")}`);
  const place = rows.length === 1 && tabs.open === null ? view.rows.indexOf(rows[0]) : -1;
  if (place >= 0) goTo(place);
}

function openRows() {
  return [...view.rows].filter((row) => !decisions.has(row));
}

function showBulk() {
  if (!byId("bulk").open) return;
  byId("bulk-text").textContent = `For the ${plural(openRows().length, "example", "examples")} of this list that are not decided yet. One undo takes it back.`;
}

function decideMany(kind) {
  const rows = openRows().filter((row) => kind !== "relabel" || column.suggested[row] !== column.given[row]);
  decideRows(rows.map((row) => [row, { kind, label: kind === "relabel" ? column.suggested[row] : -1, about: "" }]));
  refresh(rows);
  say(`${plural(rows.length, "example", "examples")}: ${kind === "relabel" ? "relabel as suggested" : kind}`);
}

function say(text) {
  byId("message").textContent = text;
}

function showTally() {
  const tally = tallyDecisions();
  const target = selectedTotal ? `${grouped(tally.selected)} of ${grouped(selectedTotal)} selected decided` : `${grouped(tally.decided)} decided`;
  const kinds = KINDS_OF_DECISION.filter((kind) => kind !== MOVE || tally.move).map((kind) => `${kind} ${grouped(tally[kind])}`).join(" · ")
    + (tally.skip ? ` · cannot tell ${grouped(tally.skip)}` : "");
  const saved = storable ? "" : " · not saved: this browser refuses to store, so export before you leave";
  byId("tally").replaceChildren(make("strong", {}, target), ` · ${kinds}${saved}`);
  byId("bar").classList.toggle("unsaved", !storable);
  byId("undo").disabled = undoStack.length === 0;
  byId("export").disabled = decisions.size === 0;
}

function exportDecisions() {
  const address = URL.createObjectURL(toBlob(decisionsCsv()));
  make("a", { href: address, download: "decisions.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  say(`${plural(tallyDecisions().decided, "decision", "decisions")} exported. Next: sgoif apply decisions.csv --to CLEAN/`);
}

async function importFile() {
  const [file] = byId("import").files;
  byId("import").value = "";
  if (file === undefined) return;
  try {
    say(importDecisions(fromBytes(await file.arrayBuffer())));
  } catch (error) {
    say(`${shown(file.name)} was not imported: ${error.message}. Nothing was changed.`);
  }
  refresh([...decisions.keys()]);
}

function resetFilters() {
  byId("filter-form").reset();
  byId("only-selected").checked = false;
  applyFilters();
}

function choosePair(given, suggested) {
  resetFilters();
  byId("given").value = String(given);
  byId("suggested").value = String(suggested);
  applyFilters();
  byId("review").scrollIntoView();
  byId("review").focus({ preventScroll: true });
}

// The findings of one kind: groups side by side, single images in a grid, or text with examples. Only one page of them is
// in the document, and of a large group the first images.

const FOUND_AT_ONCE = 24;
const SIDE_BY_SIDE = 8;
const MORE_IMAGES = 48;
const CLASS_EXAMPLES = 3;
const SEVERITIES = ["error", "warning", "note"];
const tabs = { open: null, page: 0, active: null }; // open = the kind whose tab is shown, null = the list of labels

/** A finding with names for its parts. */
function findingOf([severity, message, advice, rows, keep, classes, evidence]) {
  const text = (number) => report.found.texts[number];
  const pairs = evidence.flatMap((key, i) => (i % 2 ? [] : [[text(key), evidence[i + 1]]]));
  return { severity: SEVERITIES[severity], message: text(message), advice: text(advice), rows, keep, classes: classes.map(text), evidence: pairs };
}

const asSentence = (text) => (text === "" ? "" : `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`);
const inWords = (key) => key.replaceAll("_", " ");

function valueText(value) {
  if (value === null) return "unknown";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return value;
  return Number.isInteger(value) ? grouped(value) : String(Number(value.toPrecision(3)));
}

function severityBadge(severity) {
  return make("span", { class: `badge severity ${severity}` }, severity);
}

/** What was found, how it is known and what to do, in words. */
function findingText(finding, number) {
  const box = make("div", { class: "finding-text" },
    make("p", { class: "card-top" }, severityBadge(finding.severity), make("span", {}, `#${grouped(number)}`)),
    make("p", { class: "finding-message" }, isolated(asSentence(finding.message))));
  if (finding.evidence.length) {
    const parts = finding.evidence.map(([key, value]) => `${inWords(key)}: ${valueText(value)}`);
    box.append(make("p", { class: "muted" }, isolated(parts.join(" · "))));
  }
  if (finding.advice) box.append(make("p", {}, isolated(asSentence(finding.advice))));
  return box;
}

/** An image of a finding with its decision. */
function foundImage(row, finding, kind) {
  const card = make("article", { class: "card found-image", tabindex: "-1", "aria-label": `${shown(nameOf(row))}, ${labelled(row) ? shown(givenName(row)) : "no label"}` });
  card.dataset.row = row;
  const top = make("p", { class: "card-top" }, row === finding.keep ? make("span", { class: "badge" }, "best to keep") : null, make("span", { class: "mark" }));
  card.append(top);
  if (hasPictures) {
    const frame = make("div", { class: "picture" });
    showPicture(frame, row, `Picture of ${shown(nameOf(row))}`);
    card.append(frame);
  }
  const label = labelled(row) ? isolated(givenName(row)) : make("span", { class: "muted" }, "no label");
  card.append(make("p", { class: "labels" }, label), make("p", { class: "name", title: shown(nameOf(row)) }, isolated(nameOf(row))));
  if (decidable(row)) card.append(foundActions(row, finding, kind));
  else card.append(make("p", { class: "muted" }, "nothing to decide here"));
  card.addEventListener("focusin", () => activateFound(card));
  updateFound(card);
  return card;
}

function foundActions(row, finding, kind) {
  const group = actions(row, { decide: (at, decision, label) => decideFound(at, decision, label, kind.kind) });
  if (kind.form === "group") {
    const only = make("button", { type: "button", class: "only" }, "Keep only this one");
    only.addEventListener("click", () => keepOnly(finding, row, kind));
    group.append(only);
  }
  if (splits.length > 1 && labelled(row)) {
    const options = splits.map((name, number) => [name, number]).filter(([, number]) => number !== splitOf(row))
      .map(([name, number]) => make("option", { value: String(number) }, shown(name)));
    const select = make("select", { class: "split", "aria-label": `Split to move ${shown(nameOf(row))} to` }, make("option", { value: "" }, "move to …"), ...options);
    select.addEventListener("change", () => decideFound(row, select.value === "" ? null : MOVE, Number(select.value), kind.kind));
    group.append(select);
  }
  return group;
}

function updateFound(card) {
  const row = Number(card.dataset.row);
  if (!decidable(row)) return;
  updateCard(card, row);
  const decision = decisions.get(row);
  const select = card.querySelector("select.split");
  if (select) select.value = decision?.kind === MOVE ? String(decision.label) : "";
}

function refreshFindings() {
  for (const card of byId("found-list").querySelectorAll(".found-image")) updateFound(card);
}

/** Take a decision about an image, or back if it was the same; a new label is a judgement of the label. */
function decideFound(row, kind, label, about) {
  const name = shown(nameOf(row));
  if (kind === "relabel" && label < 0) {
    byId("found-list").querySelector(`[data-row="${row}"] select`).focus();
    say(`No other class is suggested for ${name}: choose one.`);
    return;
  }
  const decision = kind && { kind, label: kind === "relabel" || kind === MOVE ? label : -1, about: kind === "relabel" ? "" : about };
  const none = !kind || sameDecision(decisions.get(row), decision);
  decideRows([[row, none ? null : decision]]);
  const text = none ? "not decided any more" : kind === "relabel" ? `relabel as ${shown(className(label))}`
    : kind === MOVE ? `move to ${shown(splits[label])}` : kind === SKIP ? "cannot tell" : kind;
  say(`${name}: ${text}`);
  refresh([row]);
}

/** What keeping one of a group means: the others go, and it stays, with the label or split it was to get. */
function changesToKeep(finding, row, about) {
  const others = finding.rows.filter((other) => other !== row && decidable(other));
  const stays = ["relabel", MOVE, "keep"].includes(decisions.get(row)?.kind) || !decidable(row) ? [] : [[row, { kind: "keep", label: -1, about }]];
  return [...stays, ...others.map((other) => [other, { kind: "drop", label: -1, about }])];
}

function keepOnly(finding, row, kind) {
  const changes = changesToKeep(finding, row, kind.kind);
  decideRows(changes);
  refresh(changes.map(([at]) => at));
  say(`${shown(nameOf(row))}: the only one of its group to be kept`);
}

/** In all groups without a decision, keep the one that is best to keep; of single images, drop all without one. */
function decideAll() {
  const kind = tabs.open;
  const changes = new Map();
  for (const entry of kind.findings) {
    const finding = findingOf(entry);
    if (finding.rows.some((row) => decisions.has(row) || changes.has(row))) continue;
    if (kind.form === "image") for (const row of finding.rows.filter(decidable)) changes.set(row, { kind: "drop", label: -1, about: kind.kind });
    else if (finding.keep >= 0) for (const [row, decision] of changesToKeep(finding, finding.keep, kind.kind)) changes.set(row, decision);
  }
  decideRows([...changes]);
  refresh([...changes.keys()]);
  const dropped = [...changes.values()].filter((decision) => decision.kind === "drop").length;
  say(`${plural(dropped, "image", "images")} to be dropped`);
}

/** The images of a finding side by side; of a large group as many as are asked for. */
function imagesOf(finding, kind) {
  const list = make("ul", { class: "group" });
  const more = make("button", { type: "button", class: "more-images" });
  let count = 0;
  const grow = (by) => {
    const rows = finding.rows.slice(count, count + by);
    count += rows.length;
    list.append(...rows.map((row) => make("li", {}, foundImage(row, finding, kind))));
    more.textContent = `Show more of ${grouped(finding.rows.length)} images`;
    if (count >= finding.rows.length) more.remove();
  };
  const box = make("div", {}, list, more);
  grow(SIDE_BY_SIDE);
  more.addEventListener("click", () => grow(MORE_IMAGES));
  return box;
}

/** Rows that show what a finding about classes or the whole set is about. */
function exampleRows(finding) {
  if (finding.rows.length) return finding.rows.slice(0, SIDE_BY_SIDE);
  return finding.classes.flatMap((name) => {
    const number = report.classes.indexOf(name);
    const rows = [];
    for (let row = 0; number >= 0 && row < total && rows.length < CLASS_EXAMPLES; row++) if (column.given[row] === number) rows.push(row);
    return rows;
  });
}

function findingItem(entry, number) {
  const kind = tabs.open;
  const finding = findingOf(entry);
  const item = make("li", { class: `finding ${kind.form}` }, findingText(finding, number));
  if (kind.form !== "text") {
    item.append(imagesOf(finding, kind));
    return item;
  }
  const rows = exampleRows(finding);
  if (rows.length && hasPictures) item.append(pictureStrip(rows, "examples", "Examples"));
  return item;
}

function showFindings(page) {
  const { title, form, findings } = tabs.open;
  const pages = Math.max(1, Math.ceil(findings.length / FOUND_AT_ONCE));
  tabs.page = Math.min(Math.max(page, 0), pages - 1);
  const start = tabs.page * FOUND_AT_ONCE;
  const some = findings.slice(start, start + FOUND_AT_ONCE);
  byId("found-heading").textContent = shown(title);
  byId("found-count").textContent = `${plural(findings.length, "finding", "findings")}, showing ${grouped(start + 1)} to ${grouped(start + some.length)}`;
  byId("found-all").hidden = form === "text" || (form === "group" && findings.every((entry) => entry[4] < 0));
  byId("found-all").textContent = form === "group" ? "In groups not decided: keep the best, drop the others" : "Drop all not decided";
  byId("found-list").start = start + 1;
  byId("found-list").className = `found ${form}s`;
  byId("found-list").replaceChildren(...some.map((entry, i) => findingItem(entry, start + i + 1)));
  const first = byId("found-list").querySelector(".found-image");
  if (first) first.tabIndex = 0;
  tabs.active = null;
  byId("found-pager").hidden = pages === 1;
  byId("found-previous").disabled = tabs.page === 0;
  byId("found-next").disabled = tabs.page === pages - 1;
  byId("found-page").textContent = `Page ${grouped(tabs.page + 1)} of ${grouped(pages)}`;
}

function activateFound(card) {
  for (const other of byId("found-list").querySelectorAll('.found-image[tabindex="0"]')) other.tabIndex = -1;
  card.tabIndex = 0;
  tabs.active = card;
}

/** To the next image of the tab, turning the page at its end. */
function stepFound(by) {
  const cards = [...byId("found-list").querySelectorAll(".found-image")];
  const active = cards.indexOf(tabs.active);
  const next = active < 0 ? 0 : active + by;
  const page = tabs.page;
  if (next < 0 || next >= cards.length) showFindings(page + Math.sign(by));
  const now = [...byId("found-list").querySelectorAll(".found-image")];
  const card = tabs.page === page ? cards[Math.min(Math.max(next, 0), cards.length - 1)] : now.at(by < 0 ? -1 : 0);
  card?.focus({ preventScroll: true });
  card?.scrollIntoView({ block: "nearest" });
}

const FOUND_MOVES = { n: 1, j: 1, p: -1, ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const FOUND_DECISIONS = { 1: "keep", k: "keep", 2: "relabel", r: "relabel", 3: "drop", d: "drop" };
const FOUND_CONTROLS = { g: ".only", m: "select.split", c: "select:not(.split)" };

/** As in the list of labels: a key moves on, and takes no decision back. */
function decideFoundByKey(button) {
  if (!button) stepFound(tabs.active ? 1 : 0);
  else {
    if (button.getAttribute("aria-pressed") !== "true") button.click();
    if (document.activeElement.tagName !== "SELECT") stepFound(1);
  }
}

/** A key on the tab of a kind; whether it meant something there. */
function findingsKey(event, target) {
  if (tabs.open === null) return false;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const card = tabs.active;
  if (key.startsWith("Arrow") ? target.closest(".found-image") === null : !byId("shortcuts").checked) return false;
  if (Object.hasOwn(FOUND_MOVES, key)) stepFound(FOUND_MOVES[key]);
  else if (Object.hasOwn(FOUND_DECISIONS, key)) decideFoundByKey(card?.querySelector(`[data-kind="${FOUND_DECISIONS[key]}"]`));
  else if (Object.hasOwn(FOUND_CONTROLS, key)) {
    const control = card?.querySelector(FOUND_CONTROLS[key]);
    if (key === "g") control?.click();
    else control?.focus();
  } else if (key === "/" || key === "l") {
    openTab(null);
    return false;
  } else return ["4", "s"].includes(key);
  return true;
}

// What happens when the page opens: summary, lists of classes, handlers, first cards.

function showSummary() {
  const [rate, low, high] = report.noise;
  const figure = (label, value, note) => make("div", { class: "figure" }, make("p", { class: "figure-label" }, label),
    make("p", { class: "figure-value" }, value), make("p", { class: "muted" }, note));
  const span = low === null || high === null ? "" : `between ${grouped(low * total)} and ${grouped(high * total)}, `;
  const wrong = rate === null
    ? figure("Likely wrong", "unknown", `${span}the share of wrong labels among ${plural(total, "example", "examples")} could not be estimated`)
    : figure("Likely wrong", `about ${grouped(rate * total)}`, `${span}that is ${percent(rate)} of ${plural(total, "label", "labels")}`);
  const selected = figure("Selected for review", grouped(selectedTotal),
    selectedTotal ? `at a false discovery rate of ${percent(report.fdr)}: about ${oneIn(report.fdr)} should turn out right`
      : `no label is suspicious enough at a false discovery rate of ${percent(report.fdr)}`);
  const known = report.precision.filter(([, value]) => value !== null);
  const list = make("ul", { class: "precision" }, ...known.map(([count, value]) =>
    make("li", {}, make("span", {}, `top ${grouped(count)}`), make("strong", {}, percent(value)))));
  const precision = make("div", { class: "figure" }, make("p", { class: "figure-label" }, "Expected share of wrong labels"), list);
  byId("figures").append(wrong, selected, ...(known.length ? [precision] : []));
  const nothing = rate === null
    ? "What to do: train longer, on more images, or start from a model that knows such images (--weights), and audit again; this one has learned too little to judge labels."
    : rate * total >= 0.5
      ? `What to do: about ${grouped(rate * total)} may be wrong, but no label stands out enough to be selected; look at the first few examples below, the most suspicious of all.`
      : "What to do: nothing needs your attention; if you want to be sure, look at the first few examples below, the most suspicious of all.";
  byId("verdict").hidden = !report.summary;
  byId("verdict").textContent = shown(report.summary);
  byId("advice").textContent = selectedTotal
    ? `What to do: look through the ${grouped(selectedTotal)} selected below, most suspicious first, keep, relabel or drop each, then export decisions.csv and run “sgoif apply decisions.csv --to CLEAN/”.`
    : nothing;
}

function showNotes(extra) {
  const notes = [...report.notes, ...extra];
  if (notes.length === 0) return;
  const box = byId("notes");
  box.hidden = false;
  box.open = notes.length <= 3;
  box.querySelector("summary").textContent = plural(notes.length, "note", "notes");
  box.querySelector("ul").replaceChildren(...notes.map((note) => make("li", {}, isolated(note))));
}

function missingPictures() {
  const end = byId("pictures-end");
  if (end === null) return [];
  const { dropped, unreadable } = JSON.parse(end.textContent);
  const notes = [];
  if (dropped) notes.push(`${plural(dropped, "picture is", "pictures are")} not stored in this file, to limit its size: those of the least suspicious examples.`);
  if (unreadable) notes.push(`${plural(unreadable, "picture", "pictures")} could not be read.`);
  return notes;
}

function fillFilters() {
  for (const [id, numbers] of [["given", column.given], ["suggested", column.suggested]]) {
    const counts = new Uint32Array(report.classes.length);
    for (const number of numbers) counts[number] += 1;
    const options = [...counts.keys()].filter((number) => counts[number] > 0).map((number) =>
      make("option", { value: String(number) }, `${shown(className(number))} (${grouped(counts[number])})`));
    byId(id).replaceChildren(make("option", { value: "-1" }, "any"), ...options);
  }
  byId("only-selected").checked = selectedTotal > 0;
  byId("only-selected").disabled = selectedTotal === 0;
  byId("only-copies-label").hidden = ![...groupsOf.keys()].some(contradicted);
  if (matchMedia("(max-width: 700px)").matches) byId("filters").open = false;
}

const KEYS = {
  n: () => step(1), N: () => step(1), j: () => step(1), p: () => step(-1), P: () => step(-1), u: undo, U: undo,
  "?": () => byId("help").showModal(),
  "/": () => { byId("filters").open = true; byId("search").focus(); },
  1: () => decideActive("keep"), k: () => decideActive("keep"), K: () => decideActive("keep"),
  2: () => decideActive("relabel"), r: () => decideActive("relabel"), R: () => decideActive("relabel"),
  4: () => decideActive(SKIP), s: () => decideActive(SKIP), S: () => decideActive(SKIP),
  3: () => decideActive("drop"), d: () => decideActive("drop"), D: () => decideActive("drop"),
  c: chooseClass, C: chooseClass, l: toggleLooking, L: toggleLooking, t: () => nextTab(1), T: () => nextTab(-1),
};
const ARROWS = { ArrowRight: () => 1, ArrowLeft: () => -1, ArrowDown: cardsPerLine, ArrowUp: () => -cardsPerLine() };

function decideActive(kind) {
  if (view.rows.length === 0) return;
  if (view.active < 0) {
    step(0);
    say("First example: now decide with 1, 2 or 3.");
    return;
  }
  const row = view.rows[view.active];
  decide(row, kind, targetClass(row), true);
}

function chooseClass() {
  if (view.active >= 0) cardOf(view.rows[view.active]).querySelector("select").focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || byId("help").open) return;
  const target = event.target;
  const card = target.closest(".card");
  if (target.matches("input:not([type=checkbox]):not([type=file]), select, textarea")) {
    if (event.key === "Escape" && card) card.focus();
    return;
  }
  if (findingsKey(event, target)) {
    event.preventDefault();
  } else if (event.key in ARROWS && card) {
    event.preventDefault();
    goTo(view.active + ARROWS[event.key]());
  } else if (event.key === "Enter" && target === card) {
    const details = card.querySelector("details");
    details.open = !details.open;
  } else if (Object.hasOwn(KEYS, event.key) && byId("shortcuts").checked) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

function listen() {
  let typing = 0;
  byId("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(applyFilters, 120);
  });
  // Copies that contradict each other are worth a look whether they are selected or not.
  byId("only-copies").addEventListener("change", () => { if (byId("only-copies").checked) byId("only-selected").checked = false; });
  for (const id of ["given", "suggested", "least", "state", "sort", "only-selected", "only-copies"]) byId(id).addEventListener("change", applyFilters);
  byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
  byId("reset-filters").addEventListener("click", resetFilters);
  byId("reset-empty").addEventListener("click", resetFilters);
  byId("previous").addEventListener("click", () => turnPage(-1));
  byId("next").addEventListener("click", () => turnPage(1));
  byId("size").addEventListener("change", () => {
    const first = view.page * view.size;
    view.size = Number(byId("size").value);
    showPage(Math.floor(first / view.size));
  });
  byId("start").addEventListener("click", () => {
    openTab(null);
    byId("review").scrollIntoView();
    step(0);
  });
  byId("bulk").addEventListener("toggle", showBulk);
  for (const button of document.querySelectorAll("[data-bulk]")) button.addEventListener("click", () => decideMany(button.dataset.bulk));
  byId("undo").addEventListener("click", undo);
  byId("export").addEventListener("click", exportDecisions);
  byId("import").addEventListener("change", importFile);
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("help-close").addEventListener("click", () => byId("help").close());
  document.addEventListener("keydown", onKey);
  addEventListener("storage", (event) => {
    if (event.key !== STORE) return;
    // Another window of the same report has decided something; its store is the newer one.
    loadDecisions();
    undoStack.length = 0;
    refresh([...report.names.keys()]);
  });
  addEventListener("beforeunload", (event) => {
    if (!storable && decisions.size) event.preventDefault();
  });
}

byId("title").textContent = shown(report.title) || "(no name)";
loadDecisions();
showSummary();
showNotes([]);
fillFilters();
applyFilters();
showTally();
listen();
openLooks();
openFindings();
// The charts stand below the first screen: the cards come first.
setTimeout(() => {
  showPairs(choosePair);
  showCurves();
  byId("facts").append(...report.facts.flatMap(([key, value]) => [make("dt", {}, isolated(key)), make("dd", {}, isolated(value))]));
  document.documentElement.dataset.ready = "yes";
}, 0);

function whenLoaded() {
  showWaitingPictures();
  showNotes(missingPictures());
}
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", whenLoaded);
else whenLoaded();

// One card per example: picture, given and suggested label, figures, and the decisions.

const MANY_CLASSES = 30;
const COPIES_SHOWN = 4;
const LISTED = 20;
const MARKS = { keep: "✓ keep", drop: "✕ drop", skip: "? cannot tell" };
const DECISION_TEXT = { keep: "✓ Keep", relabel: "→ Relabel", drop: "✕ Drop", skip: "? Cannot tell" };
const chosenClass = new Map(); // row -> class picked in the card but not (or no longer) decided

/** The class a relabel would give: what was picked, else what is suggested; -1 where the suggestion is the given label. */
function targetClass(row) {
  const decision = decisions.get(row);
  if (decision && decision.kind === "relabel") return decision.label;
  if (chosenClass.has(row)) return chosenClass.get(row);
  return column.suggested[row] === column.given[row] ? -1 : column.suggested[row] ?? -1;
}

/** `decide(row, kind, label)` and `activate(row)` are called on the user's behalf. */
function makeCard(row, rank, handlers) {
  const name = report.names[row];
  const probability = column.probability[row];
  const label = `Number ${rank}: ${shown(name)}, given ${shown(className(column.given[row]))}, `
    + `suggested ${shown(className(column.suggested[row]))}, `
    + `${percent(probability)} probability of a wrong label`;
  const card = make("article", { class: "card", tabindex: "-1", "aria-label": label });
  card.dataset.row = row;

  const body = make("div", { class: "card-body" });
  body.append(
    labelsLine(row),
    probabilityLine(row),
    figuresLine(row),
    make("p", { class: "name", title: shown(name) }, isolated(name)),
  );
  const badge = column.selected[row] ? make("span", { class: "badge" }, "selected") : null;
  const copies = copiesOf(row);
  const twice = copies.length ? make("span", { class: "badge twice" }, contradicted(row) ? "a copy has another label" : "has copies") : null;
  const top = make("p", { class: "card-top" }, make("span", { class: "rank" }, `#${grouped(rank)}`), badge, twice, make("span", { class: "mark" }));
  const main = make("div", { class: "card-main" });
  if (hasPictures) {
    const frame = make("div", { class: "picture" });
    showPicture(frame, row, `Picture of ${shown(name)}`);
    main.append(frame);
  }
  main.append(body);
  card.append(top, main);
  const hurt = harmedRows(row);
  if (copies.length && hasPictures) card.append(pictureStrip(copies.slice(0, COPIES_SHOWN), "copies", "Pictures that are the same or nearly so"));
  if (hurt.length && hasPictures) card.append(pictureStrip(hurt, "hurts", "Held-out examples it hurts most"));
  card.append(figures(row, copies, hurt), actions(row, handlers));
  card.addEventListener("focusin", () => handlers.activate(row));
  card.addEventListener("click", () => handlers.activate(row));
  updateCard(card, row);
  return card;
}

function labelsLine(row) {
  const given = className(column.given[row]);
  if (column.suggested[row] === column.given[row]) {
    return make("p", { class: "labels" }, isolated(given), make("span", { class: "muted" }, " no other label suggested"));
  }
  const arrow = [make("span", { class: "arrow", "aria-hidden": "true" }, " → "), make("span", { class: "hidden" }, "suggested: ")];
  return make("p", { class: "labels" }, isolated(given, { class: "given" }), ...arrow, isolated(className(column.suggested[row]), { class: "suggested" }));
}

function probabilityLine(row) {
  const probability = column.probability[row];
  const known = Number.isNaN(probability) ? 0 : probability;
  const bar = make("span", { class: "meter", "aria-hidden": "true" }, make("span", { class: "fill" }));
  bar.firstChild.style.width = `${100 * known}%`;
  const text = make("span", {}, make("strong", {}, percent(probability)), Number.isNaN(probability) ? " probability" : " likely wrong");
  return make("p", { class: "probability" }, bar, text);
}

function figuresLine(row) {
  const [influence, low, high] = [column.influence[row], column.low[row], column.high[row]];
  if (Number.isNaN(influence)) return make("p", { class: "muted" }, "never observed in training: no influence known");
  const interval = Number.isNaN(low) || Number.isNaN(high) ? "" : ` (${signed(low)} to ${signed(high)})`;
  const confidence = Number.isNaN(column.confidence[row]) ? "unknown" : column.confidence[row].toFixed(2);
  const times = plural(column.observations[row], "observation", "observations");
  return make("p", { class: "muted" }, `influence ${signed(influence)}${interval}, confidence ${confidence}, ${times}`);
}

function harmedRows(row) {
  const width = report.harmedWidth;
  return [...column.harmed.subarray(row * width, (row + 1) * width)].filter((other) => other >= 0);
}

function pictureStrip(rows, word, meaning) {
  const strip = make("ul", { class: "strip", "aria-label": meaning });
  for (const row of rows) {
    const caption = `${shown(nameOf(row))}, ${labelled(row) ? `labelled ${shown(givenName(row))}` : "without a label"}`;
    const frame = make("li", { class: "picture small", title: caption });
    showPicture(frame, row, caption);
    strip.append(frame);
  }
  return make("div", { class: "hurts" }, make("span", { class: "muted" }, word), strip);
}

/** What has no room on a card, made when it is first opened. */
function figures(row, copies, hurt) {
  const details = make("details", { class: "more" }, make("summary", {}, "More"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const influence = column.influence[row];
    const unsure = column.low[row] <= 0 && column.high[row] >= 0;
    const effect = unsure ? "the interval contains zero: this run cannot tell harm from help"
      : influence > 0 ? "harmful: training on it raises the loss of held-out examples" : "helpful to held-out examples";
    const rows = [["name", isolated(report.names[row])]];
    if (!Number.isNaN(influence)) rows.push(["influence", effect]);
    const listed = (others) => make("ul", {}, ...others.slice(0, LISTED).map((other) =>
      make("li", {}, isolated(className(column.given[other])), ": ", isolated(report.names[other]))),
    ...(others.length > LISTED ? [make("li", {}, `and ${grouped(others.length - LISTED)} more`)] : []));
    if (copies.length) rows.push(["the same picture, or nearly", listed(copies)]);
    if (hurt.length) rows.push(["hurts most", listed(hurt)]);
    details.append(make("dl", {}, ...rows.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, value)])));
  });
  return details;
}

function actions(row, handlers) {
  const group = make("div", { class: "actions", role: "group", "aria-label": "Decision" });
  const button = (kind) => {
    const made = make("button", { type: "button", "data-kind": kind, "aria-pressed": "false" }, DECISION_TEXT[kind]);
    made.addEventListener("click", () => handlers.decide(row, kind, targetClass(row)));
    return made;
  };
  group.append(...["keep", "drop"].map(button));
  if (!labelled(row)) return group;
  group.append(button("relabel"));
  const select = make("select", { "aria-label": `Class to relabel ${shown(nameOf(row))} as` });
  const fill = () => fillClasses(select, row);
  if (report.classes.length <= MANY_CLASSES) fill();
  // With hundreds of classes, a page of full lists would be slow; each is filled when it is about to be used.
  select.addEventListener("pointerdown", fill);
  select.addEventListener("focus", fill);
  select.addEventListener("change", () => {
    if (select.value === "") return;
    chosenClass.set(row, Number(select.value));
    handlers.decide(row, "relabel", Number(select.value));
  });
  group.append(select);
  if (looking.on) group.append(button(SKIP));
  return group;
}

function classOption(number) {
  return make("option", { value: String(number) }, shown(className(number)));
}

function fillClasses(select, row) {
  if (select.dataset.full) return;
  select.dataset.full = "yes";
  const target = targetClass(row);
  const options = report.classes.map((_, number) => number).filter((number) => number !== givenOf(row)).map(classOption);
  select.replaceChildren(make("option", { value: "" }, "choose a class"), ...options);
  select.value = target < 0 ? "" : String(target);
}

/** Bring a card up to date with the decision about its row. */
function updateCard(card, row) {
  const decision = decisions.get(row);
  card.dataset.decision = decision ? decision.kind : "";
  for (const button of card.querySelectorAll("[data-kind]")) {
    button.setAttribute("aria-pressed", String(Boolean(decision) && decision.kind === button.dataset.kind));
  }
  const target = targetClass(row);
  const select = card.querySelector("select");
  if (select && !select.dataset.full) select.replaceChildren(target < 0 ? make("option", { value: "" }, "choose a class") : classOption(target));
  if (select) select.value = target < 0 ? "" : String(target);
  const mark = card.querySelector(".mark");
  if (!decision) mark.replaceChildren();
  else if (decision.kind === "relabel") mark.replaceChildren("→ relabel as ", isolated(className(decision.label)));
  else if (decision.kind === MOVE) mark.replaceChildren("⇢ move to ", isolated(splits[decision.label]));
  else mark.replaceChildren(MARKS[decision.kind]);
}

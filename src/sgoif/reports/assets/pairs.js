// Which classes are mixed up: a matrix of given against true class and a list of pairs; a click filters the review.

const FIRST_PAIRS = 10;

/** `choose(given, suggested)` is called with class numbers. */
function showPairs(choose) {
  const { classes, cells } = report.matrix;
  const partial = classes.length < report.classes.length;
  if (report.noise[0] === null) {
    byId("pairs-text").textContent = "This could not be estimated, since the share of wrong labels is unknown.";
    return;
  }
  byId("pairs-text").textContent = "Estimated numbers of examples by given label and true class. Choose a cell or a pair to see its examples."
    + (partial ? ` The matrix shows the ${classes.length} of ${report.classes.length} classes with most wrong labels.` : "");
  byId("pairs-body").append(matrixTable(classes, cells, choose), pairList(choose));
}

function cellText(value) {
  if (value === null || value < 0.05) return "·";
  return value < 9.5 ? String(Number(value.toFixed(1))) : grouped(value);
}

function pairLabel(given, truth, value) {
  const about = `about ${cellText(value) === "·" ? "0" : cellText(value)} ${value < 1.5 && value >= 0.5 ? "example" : "examples"}`;
  if (given === truth) return `given ${shown(className(given))} and right: ${about}`;
  return `given ${shown(className(given))}, truly ${shown(className(truth))}: ${about}`;
}

function matrixTable(classes, cells, choose) {
  const largest = Math.max(1, ...cells.flatMap((row, i) => row.filter((_, j) => i !== j)));
  const heads = classes.map((number) => make("th", { scope: "col" }, isolated(className(number), { title: shown(className(number)) })));
  const rows = cells.map((row, i) => {
    const buttons = row.map((value, j) => {
      const label = pairLabel(classes[i], classes[j], value);
      const button = make("button", { type: "button", tabindex: "-1", "aria-label": label, title: label }, cellText(value));
      button.dataset.place = `${i},${j}`;
      if (i === j) button.classList.add("diagonal");
      else button.style.setProperty("--share", `${Math.round(45 * Math.sqrt(value / largest))}%`);
      button.addEventListener("click", () => choose(classes[i], classes[j]));
      return make("td", {}, button);
    });
    return make("tr", {}, make("th", { scope: "row" }, isolated(className(classes[i]), { title: shown(className(classes[i])) })), ...buttons);
  });
  const corner = make("th", { scope: "col", class: "corner" }, "given ↓ true →");
  const table = make("table", { class: "matrix" }, make("thead", {}, make("tr", {}, corner, ...heads)), make("tbody", {}, ...rows));
  table.style.maxWidth = `${9 + 4.5 * classes.length}rem`;
  table.addEventListener("keydown", (event) => moveInMatrix(event, table, classes.length));
  // One stop for the tab key; arrows move inside.
  table.querySelector("button").tabIndex = 0;
  return make("div", { class: "scroll matrix-frame", role: "group", "aria-label": "Matrix of given and true classes" }, table);
}

function moveInMatrix(event, table, size) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const move = moves[event.key];
  if (move === undefined || event.target.dataset.place === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  const [row, place] = event.target.dataset.place.split(",").map(Number);
  const clamp = (value) => Math.min(size - 1, Math.max(0, value));
  const next = table.querySelector(`[data-place="${clamp(row + move[0])},${clamp(place + move[1])}"]`);
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function pairList(choose) {
  if (report.pairs.length === 0) return make("p", { class: "muted" }, "No pair of classes is estimated to be mixed up.");
  const largest = report.pairs[0][2];
  const items = report.pairs.map(([given, truth, value], i) => {
    const button = make("button", { type: "button", class: "pair", "aria-label": pairLabel(given, truth, value) },
      make("span", { class: "pair-name" }, isolated(className(given)), " → ", isolated(className(truth))),
      make("span", { class: "pair-count" }, `about ${cellText(value)}`));
    button.style.setProperty("--share", `${Math.round((100 * value) / largest)}%`);
    button.addEventListener("click", () => choose(given, truth));
    return make("li", { hidden: i >= FIRST_PAIRS }, button);
  });
  const list = make("ol", { class: "pair-list", "aria-label": "Most frequent pairs, given → true" }, ...items);
  const box = make("div", {}, make("h3", {}, "Most frequent pairs, given → true"), list);
  if (items.length > FIRST_PAIRS) {
    const more = make("button", { type: "button" }, `Show all ${items.length} pairs`);
    more.addEventListener("click", () => {
      for (const item of items) item.hidden = false;
      items[FIRST_PAIRS].firstElementChild.focus();
      more.remove();
    });
    box.append(more);
  }
  return box;
}

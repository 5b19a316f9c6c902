// Drawn looks, one after another, and the sentence that follows from what was decided so far.

const LOOKS = 40;
const LOOKS_STORE = `${STORE}-looks`;
const plan = report.review;
const looking = { on: false, count: LOOKS }; // count = how many were asked for
const soon = globalThis.requestIdleCallback ?? setTimeout;
let sentenceDue = false;
let drawOrder = null;
let oddsOfPlan = null;

const rowAt = (position) => (column.planned === undefined ? position : column.planned[position]);
const positions = new Map(Array.from(column.planned ?? [], (row, position) => [row, position]));

/** The positions of the plan, ready to be drawn; worked out once. */
function ordersOfPlan() {
  drawOrder ??= drawOrders(plan);
  return drawOrder;
}

/** Every decision by its position in the list, and the positions that nobody can decide about. */
function verdicts() {
  const verdict = new Int8Array(plan.size).fill(UNKNOWN);
  const skipped = new Set();
  for (const [row, { kind, about }] of decisions) {
    if (row >= total) continue;
    const position = positions.get(row) ?? row;
    // Whoever drops a copy has not judged its label.
    if (kind === SKIP || kind === MOVE || (about && kind !== "relabel")) skipped.add(position);
    else verdict[position] = kind === "keep" ? RIGHT : WRONG;
  }
  return [verdict, skipped];
}

/** Rows to look at, in the order of the draw. */
function rowsToLookAt() {
  return firstDrawn(ordersOfPlan(), verdicts()[1], looking.count).map(rowAt);
}

const isOpen = (row) => !decisions.has(row);

/** Bring the panel up to date; the sentence follows when there is time. */
function showLooks() {
  if (!plan) return;
  const rows = rowsToLookAt();
  const open = rows.filter(isOpen).length;
  const all = open === 0 && rows.length < looking.count;
  const fresh = open === rows.length && !looking.on;
  const what = hasPictures ? "images" : "examples";
  byId("looks-go").textContent = open === 0 ? `${LOOKS} more` : fresh ? `Look at ${grouped(rows.length)} drawn ${what}` : "Go on looking";
  byId("looks-go").hidden = all || (looking.on && open > 0);
  byId("looks-end").hidden = !looking.on;
  byId("looks-progress").textContent = fresh ? "" : `${grouped(rows.length - open)} of ${plural(rows.length, "look", "looks")}`;
  if (!sentenceDue) {
    sentenceDue = true;
    soon(showSentence, { timeout: 500 });
  }
  if (looking.on) keepUpWithDraw(rows);
}

function showSentence() {
  sentenceDue = false;
  oddsOfPlan ??= logOdds(column.prior ?? column.probability);
  const [verdict, skipped] = verdicts();
  const text = reviewSentence(reviewEstimate(plan, ordersOfPlan(), verdict, skipped, oddsOfPlan));
  if (byId("looks-sentence").textContent !== text) byId("looks-sentence").textContent = text;
}

/** A skipped example makes room for the next of its stratum. */
function keepUpWithDraw(rows) {
  const before = view.rows[view.page];
  view.rows = Uint32Array.from(rows);
  if (view.rows[view.page] !== before) showPage(view.page);
  else byId("page-text").textContent = pageText();
}

/** Show drawn examples one at a time, from the first that is not decided; 40 more if all are. */
function goOnLooking() {
  if (!rowsToLookAt().some(isOpen)) looking.count += LOOKS;
  startLooking();
}

function startLooking() {
  setLooking(true);
  view.rows = Uint32Array.from(rowsToLookAt());
  view.active = -1;
  showPage(0);
  showLooks();
  nextLook();
}

function stopLooking() {
  applyFilters();
  byId("looks-go").hidden ? byId("review").focus() : byId("looks-go").focus();
}

function setLooking(on) {
  looking.on = on;
  view.size = on ? 1 : Number(byId("size").value);
  byId("review").classList.toggle("looking", on);
  try {
    localStorage.setItem(LOOKS_STORE, JSON.stringify(looking));
  } catch {
    storable = false;
  }
}

/** Go to the next look that is not decided, round the end. */
function nextLook() {
  const rows = [...view.rows];
  const from = Math.max(view.active, 0);
  const after = rows.findIndex((row, place) => place >= from && isOpen(row));
  const place = after < 0 ? rows.findIndex(isOpen) : after;
  if (place >= 0) goTo(place);
  else {
    goTo(view.active < 0 ? rows.length - 1 : view.active);
    say(`All ${plural(rows.length, "look is", "looks are")} done.`);
  }
}

/** Come back to where a reload, or a closed browser, left the review. */
function openLooks() {
  if (!plan) return;
  byId("looks").hidden = false;
  byId("looks-go").addEventListener("click", goOnLooking);
  byId("looks-end").addEventListener("click", stopLooking);
  try {
    const kept = JSON.parse(localStorage.getItem(LOOKS_STORE));
    if (Number.isInteger(kept?.count) && kept.count >= LOOKS) looking.count = kept.count;
    looking.on = kept?.on === true;
  } catch {
    looking.on = false;
  }
  if (looking.on) startLooking();
  else showLooks();
}

function toggleLooking() {
  if (looking.on) stopLooking();
  else if (plan) goOnLooking();
}

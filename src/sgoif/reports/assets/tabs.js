// The first screen, which says what is wrong and what to do first, and a tab for each kind of finding.

const FIRST_LINES = 5;

const tabList = () => [...byId("tabs").children];
const kindOfTab = (tab) => (tab.dataset.kind === "" ? null : report.found.kinds[Number(tab.dataset.kind)]);

/** Show a kind, or with null the list of labels. */
function openTab(kind) {
  if (!report.found) return;
  tabs.open = kind;
  for (const tab of tabList()) {
    const chosen = kindOfTab(tab) === kind;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) byId("found").setAttribute("aria-labelledby", tab.id);
  }
  byId("found").hidden = kind === null;
  for (const id of ["review", "pairs"]) byId(id).hidden = kind !== null;
  if (kind !== null) showFindings(0);
  else for (const card of byId("cards").querySelectorAll(".card")) updateCard(card, Number(card.dataset.row));
}

function nextTab(by) {
  const list = tabList();
  if (list.length === 0) return;
  const tab = list[(list.findIndex((one) => kindOfTab(one) === tabs.open) + by + list.length) % list.length];
  openTab(kindOfTab(tab));
  tab.focus();
}

function onTabKey(event) {
  const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  if (event.key in moves) nextTab(moves[event.key]);
  else if (event.key === "Home" || event.key === "End") {
    const tab = tabList().at(event.key === "Home" ? 0 : -1);
    openTab(kindOfTab(tab));
    tab.focus();
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

function makeTab(number, title, count) {
  const tab = make("button", { type: "button", role: "tab", id: `tab-${number}`, "aria-controls": number === "" ? "review" : "found" },
    isolated(title), make("span", { class: "count" }, grouped(count)));
  tab.dataset.kind = number;
  tab.addEventListener("click", () => openTab(kindOfTab(tab)));
  return tab;
}

/** One line for each kind, the gravest and most frequent first; of equal gravity wrong labels come before all others. */
function firstLines() {
  const lines = report.found.kinds.map((kind) => {
    const worst = findingOf(kind.findings[0]);
    return { kind, severity: SEVERITIES.indexOf(worst.severity), title: kind.title, count: kind.findings.length, advice: worst.advice };
  });
  const labels = { kind: null, severity: 0, title: "Wrong labels", count: selectedTotal, advice: "Look through the selected labels; keep, relabel or drop each." };
  lines.sort((a, b) => a.severity - b.severity || b.count - a.count);
  return [...(selectedTotal ? [labels] : []), ...lines].slice(0, FIRST_LINES);
}

function firstLine({ kind, severity, title, count, advice }) {
  const open = make("button", { type: "button" }, isolated(title), `: ${grouped(count)}`);
  open.addEventListener("click", () => {
    openTab(kind);
    const target = byId(kind === null ? "review" : "found");
    target.scrollIntoView();
    target.focus({ preventScroll: true });
  });
  return make("li", {}, severityBadge(SEVERITIES[severity]), open, advice ? isolated(asSentence(advice), { title: shown(advice) }) : null);
}

function openFindings() {
  for (const row of document.querySelectorAll(".of-findings")) row.hidden = !report.found;
  if (!report.found) return;
  const { kinds, nothing, notLooked } = report.found;
  const lines = firstLines();
  byId("first").hidden = false;
  byId("first").append(...(lines.length ? lines.map(firstLine) : [make("li", {}, "Nothing was found that has to be looked at.")]));
  byId("not-looked").hidden = notLooked.length === 0;
  byId("not-looked").querySelector("summary").textContent = `Not looked for: ${plural(notLooked.length, "kind", "kinds")}`;
  byId("not-looked").querySelector("ul").append(...notLooked.map(([title, why]) => make("li", {}, isolated(title), ": ", isolated(why))));
  byId("nothing-found").hidden = nothing.length === 0;
  byId("nothing-found").append("Looked for, and not found: ", ...nothing.flatMap((title, i) => [i ? ", " : "", isolated(title)]), ".");
  if (splits.length) byId("state").append(make("option", { value: MOVE }, MOVE));
  byId("tabs").hidden = false;
  byId("tabs").append(makeTab("", "Wrong labels", selectedTotal), ...kinds.map((kind, i) => makeTab(String(i), kind.title, kind.findings.length)));
  byId("tabs").addEventListener("keydown", onTabKey);
  byId("review").setAttribute("role", "tabpanel");
  // A link to what the list of labels shows must not lead to something hidden.
  for (const link of document.querySelectorAll('a[href="#review"], a[href="#pairs"]')) link.addEventListener("click", () => openTab(null));
  byId("found-all").addEventListener("click", decideAll);
  for (const [id, by] of [["found-previous", -1], ["found-next", 1]]) {
    byId(id).addEventListener("click", () => {
      showFindings(tabs.page + by);
      byId("found").scrollIntoView();
      byId("found").focus({ preventScroll: true });
    });
  }
  openTab(null);
}

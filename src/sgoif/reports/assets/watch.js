// A running audit: asks for its state every two seconds and shows what has changed.

const EVERY = 2000;
const STATES = {
  waiting: "no network is being trained yet",
  training: "training",
  judging: "training is over; labels are being judged",
  finished: "finished: open report.html in the run directory",
  stopped: "stopped; the run can be resumed",
};
let seen = "";
let drawnHistory = "";
let drawnWorst = "";

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "unknown";
  return seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function number(value) {
  return value === null ? "unknown" : shortNumber(value);
}

function figure(label, value, note) {
  return make("div", { class: "figure" }, make("p", { class: "figure-label" }, label),
    make("p", { class: "figure-value" }, value), make("p", { class: "muted" }, note));
}

function showFigures(live) {
  const left = live.step > 0 && live.state === "training" ? (live.seconds / live.step) * (live.steps - live.step) : null;
  const estimate = live.estimate;
  const last = (name) => live.history[name].at(-1) ?? null;
  byId("figures").replaceChildren(
    figure("steps", `${grouped(live.step)} of ${grouped(live.steps)}`,
      `epoch ${live.epoch} of ${live.epochs}${left === null ? "" : `, about ${duration(left)} left`}`),
    figure("training loss", number(live.loss), `held-out loss ${number(last("anchor_loss"))}`),
    figure("trust in the held-out images", percent(last("confidence_mean")),
      `residual ${number(last("residual_median"))}, tolerance τ ${number(last("tau"))}`),
    figure("labels that look wrong", estimate === null ? "not judged yet" : percent(estimate.noise_rate),
      estimate === null ? "" : `${percent(estimate.low)} to ${percent(estimate.high)}, after step ${grouped(estimate.step)}`),
    figure("quality of the ranking", estimate === null ? "not judged yet" : percent(estimate.aupr),
      estimate === null ? "" : "area under precision and recall, estimated without knowing the truth"),
  );
  const bar = byId("progress");
  bar.max = live.steps;
  bar.value = live.step;
}

function showWork(live) {
  byId("figures").replaceChildren(figure("done", `${grouped(live.done)} of ${grouped(live.total)}`, ""));
  const bar = byId("progress");
  bar.max = live.total;
  bar.value = live.done;
}

function showAlarms(alarms) {
  const box = byId("alarms");
  box.hidden = alarms.length === 0;
  box.querySelector("ul").replaceChildren(...alarms.map((text) => make("li", {}, text)));
}

function card(row, rank) {
  const picture = make("div", { class: "picture" },
    make("img", { src: `/thumb/${row.row}`, alt: `Picture of ${shown(row.name)}`, loading: "lazy", decoding: "async" }));
  const body = make("div", { class: "card-body" },
    make("p", { class: "labels" }, isolated(row.label), make("span", { class: "muted" }, " hurts "), isolated(row.harmed)),
    make("p", { class: "probability" }, make("strong", {}, `influence ${signed(row.influence)}`)),
    make("p", { class: "muted" }, `between ${signed(row.low ?? NaN)} and ${signed(row.high ?? NaN)}`),
    make("p", { class: "name", title: shown(row.name) }, isolated(row.name)));
  return make("li", {}, make("article", { class: "card" }, make("p", { class: "card-top" }, make("span", {}, `#${rank}`)),
    make("div", { class: "card-main" }, picture, body)));
}

function showWorst(live) {
  const text = JSON.stringify(live.worst);
  if (live.worst_step === null || text === drawnWorst) return;
  drawnWorst = text;
  byId("worst-note").textContent = `after step ${grouped(live.worst_step)}, most harmful first`;
  byId("cards").replaceChildren(...live.worst.map((row, place) => card(row, place + 1)));
}

function showHistory(history) {
  const text = JSON.stringify(history);
  if (text === drawnHistory || history.step.length === 0) return;
  drawnHistory = text;
  const panels = PANELS.flatMap((panel) => {
    const keys = panel.series.map((names) => names.find((name) => name in history)).filter(Boolean);
    const some = keys.some((key) => history[key].some((value) => value !== null));
    return some ? curvePanel(panel, keys, history.step, history) : [];
  });
  byId("curves").replaceChildren(...panels);
}

function show(live) {
  const known = STATES[live.state] || live.state;
  if (known !== seen) {
    byId("state").textContent = known;  // only when it changes: it is read aloud
    seen = known;
  }
  if (live.total) showWork(live);
  if (live.step === undefined) return;
  showFigures(live);
  showAlarms(live.alarms);
  showWorst(live);
  showHistory(live.history);
}

async function look() {
  try {
    const answer = await fetch("/live.json", { cache: "no-store" });
    show(answer.status === 403 ? { state: "open the link that sgoif watch printed" } : await answer.json());
  } catch {
    show({ state: "the server is gone: run sgoif watch again" });
  }
  document.documentElement.dataset.ready = "yes";
  setTimeout(look, EVERY);
}

look();

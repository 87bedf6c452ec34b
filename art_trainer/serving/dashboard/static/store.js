// What the page knows, and who wants to hear of it.

const RUN_COLOURS = 8;
const SHOWN_AT_FIRST = 8;

const store = {
  runs: null, // null: nothing heard yet
  status: null,
  line: "waiting", // to the server: waiting, live, or lost
  metrics: new Map(), // by run: { cursor, columns, rows }
  events: new Map(), // by run: { warnings, list }
  evaluations: new Map(), // by run: { key, list }
  heard: new Map(), // by run: when something was written last, in milliseconds
  hidden: new Set(),
  zoom: null,
  ended: null, // the folder of a run that ended with its server
};

const listeners = new Map();

/** Calls a function whenever something of that name has changed. */
function on(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

function tell(name, detail) {
  for (const listener of listeners.get(name) ?? []) listener(detail);
}

const DEFAULTS = { theme: "auto", smoothing: 0.6, log: false, axis: "step", charts: null, shading: true };

/** What the reader has chosen; kept in this browser. */
const prefs = { ...DEFAULTS, ...readPrefs() };

function readPrefs() {
  try {
    const found = JSON.parse(localStorage.getItem("art-dashboard") ?? "{}");
    return Object.fromEntries(Object.entries(found).filter(([name]) => name in DEFAULTS));
  } catch {
    return {};
  }
}

function setPref(name, value) {
  prefs[name] = value;
  try {
    localStorage.setItem("art-dashboard", JSON.stringify(prefs));
  } catch {
    // A browser that keeps nothing forgets the choice with the page.
  }
  tell("prefs", name);
}

/** Runs whose curves are drawn. */
function shownRuns() {
  return (store.runs ?? []).filter((run) => !store.hidden.has(run.id));
}

function runColour(id) {
  return `--run-${id % RUN_COLOURS}`;
}

/** Takes a list of runs, and asks for what is new in those that are shown. */
function takeRuns(runs) {
  const before = new Map((store.runs ?? []).map((run) => [run.id, run]));
  for (const run of runs) {
    const known = before.get(run.id);
    if (run.quiet_seconds !== null) store.heard.set(run.id, Date.now() - 1000 * run.quiet_seconds);
    else if (known && (known.step !== run.step || known.episodes !== run.episodes)) store.heard.set(run.id, Date.now());
    if (!known && run.id >= SHOWN_AT_FIRST) store.hidden.add(run.id);
  }
  store.runs = runs;
  tell("runs");
  const recorded = runs.some((run) => before.get(run.id)?.episodes !== run.episodes);
  if (recorded) tell("episodes");
  refreshShown();
}

/** Takes the last words of a training server, which answers no more. */
function takeEnd({ shown, runs, folders }) {
  store.ended = folders[0];
  store.status = null;
  runs.forEach((run, i) => {
    store.metrics.set(run.id, { ...joined(undefined, shown[i].metrics), cursor: run.metrics });
    store.events.set(run.id, { warnings: run.warnings, list: shown[i].events });
    store.evaluations.set(run.id, { key: run.evaluations, list: shown[i].evaluations });
  });
  takeRuns(runs);
  for (const name of ["metrics", "events", "evaluations", "status"]) tell(name);
}

let refreshing = null; // the runs that are still to be asked for

/** Asks for what is new in the runs that are shown, one after the other: so the first curves come soon. */
async function refreshShown() {
  const idle = refreshing === null;
  refreshing = shownRuns().map((run) => run.id);
  if (!idle) return;
  try {
    while (refreshing.length) {
      const id = refreshing.shift();
      const run = shownRuns().find((one) => one.id === id);
      if (run) await Promise.all([refreshMetrics(run), refreshEvents(run), refreshEvaluations(run)]);
    }
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    tell("fault", error);
  } finally {
    refreshing = null;
  }
}

async function refreshMetrics(run) {
  const known = store.metrics.get(run.id);
  if (known && known.cursor === run.metrics) return;
  const answer = await ask(`runs/${run.id}/metrics?${queryOf({ after: known?.cursor })}`);
  store.metrics.set(run.id, joined(answer.reset ? undefined : known, answer));
  tell("metrics", run.id);
}

/** Columns with the rows of an answer behind them. */
function joined(known, answer) {
  const before = known?.rows ?? 0;
  const columns = { ...known?.columns };
  for (const [name, values] of Object.entries(answer.columns)) {
    columns[name] = (columns[name] ?? new Array(before).fill(null)).concat(values);
  }
  return { cursor: answer.cursor, rows: before + answer.rows, columns };
}

async function refreshEvents(run) {
  if ((store.events.get(run.id)?.warnings ?? 0) === run.warnings) return;
  const list = await ask(`runs/${run.id}/events`);
  store.events.set(run.id, { warnings: run.warnings, list });
  tell("events", run.id);
}

async function refreshEvaluations(run) {
  if (store.evaluations.get(run.id)?.key === run.evaluations || run.evaluations.startsWith("0-")) return;
  const list = await ask(`runs/${run.id}/evaluations`);
  store.evaluations.set(run.id, { key: run.evaluations, list });
  tell("evaluations", run.id);
}

/** Shows or hides a run's curves. */
function toggleRun(id) {
  if (store.hidden.has(id)) store.hidden.delete(id);
  else store.hidden.add(id);
  tell("runs");
  tell("metrics", id);
  refreshShown();
}

/** Shows the curves of these runs and of no others. */
function showOnly(ids) {
  store.hidden = new Set(store.runs.map((run) => run.id).filter((id) => !ids.includes(id)));
  tell("runs");
  tell("metrics");
  refreshShown();
}

/** Shows one run's curves alone, or all again. */
function soloRun(id) {
  const alone = shownRuns().length === 1 && shownRuns()[0].id === id;
  showOnly(alone ? store.runs.map((run) => run.id) : [id]);
}

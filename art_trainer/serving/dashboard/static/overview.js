// The overview: state, curves, warnings and evaluations of each run.

const STATE_WORDS = { starting: "starting", running: "running", quiet: "quiet", stopped: "stopped", finished: "finished", ended: "ended early" };
const STATE_KINDS = { running: "good", finished: "done", ended: "warn", quiet: "warn", stopped: "warn", starting: "" };
const TILES = ["reward", "success", "eval_success", "eval_reward", "kl", "entropy", "loss", "tokens_per_second"];

const overview = { built: false };

function buildOverview(page) {
  overview.head = h("div", { class: "head" });
  overview.server = h("div", { class: "server" });
  overview.grid = h("div", { class: "plots" });
  overview.under = h("div", { class: "under" });
  overview.tools = plotTools();
  overview.curves = h("section", { "aria-label": "Curves" }, overview.tools, overview.grid);
  overview.find = runFinder();
  put(page, overview.find, overview.head, overview.server, overview.curves, overview.under);
  overview.built = true;
  on("runs", drawHead);
  on("status", drawHead);
  on("metrics", () => {
    later(drawHead);
    later(drawCurves);
  });
  on("runs", () => later(drawCurves));
  on("events", () => later(drawCurves));
  on("events", drawUnder);
  on("evaluations", drawUnder);
  on("runs", drawUnder);
  on("zoom", () => byId("zoom-out").toggleAttribute("hidden", !store.zoom));
  on("prefs", (name) => {
    if (name === "theme") redrawPlots();
    else later(drawCurves);
  });
  setInterval(drawHead, 5000);
}

const waiting = new Set();

/** Calls a function at most once per frame. */
function later(work) {
  if (waiting.has(work)) return;
  waiting.add(work);
  requestAnimationFrame(() => {
    waiting.delete(work);
    work();
  });
}

function drawHead() {
  const { runs } = store;
  overview.curves.hidden = !runs || runs.length === 0;
  overview.under.hidden = overview.curves.hidden;
  if (runs === null) {
    putIfNew(overview.head, ["waiting"], () => h("div", { class: "card skeleton calm" }, "Reading the runs…"));
    return;
  }
  if (runs.length === 0) {
    putIfNew(overview.head, ["none"], () =>
      emptyState("No run here yet", "New runs in this folder appear here automatically.", "art-trainer train"),
    );
    return;
  }
  const facts = runs.map((run) => factsOf(run));
  const key = [runs, facts.map(({ left, age, state }) => [left, age, state]), [...store.hidden]];
  key.push(runs.length === 1 ? store.metrics.get(runs[0].id)?.cursor : runs.map((run) => store.metrics.get(run.id)?.rows));
  key.push(listing);
  overview.find.hidden = runs.length <= SHOWN_AT_FIRST;
  putIfNew(overview.head, key, () => (runs.length === 1 ? hero(facts[0]) : runTable(facts)));
  drawServerStrip(overview.server);
}

/** State of a run; of the training server if it is the run in training. */
function factsOf(run) {
  const own = store.status && (store.runs.length === 1 || store.status.run === run.name) ? store.status : null;
  const state = own ? own.state : store.ended && run.state !== "finished" ? "ended" : run.state;
  const heard = store.heard.get(run.id);
  const quiet = heard === undefined ? null : (Date.now() - heard) / 1000;
  const ago = quiet === null ? null : quiet < 5 ? "just now" : `${duration(Math.round(quiet / 5) * 5)} ago`;
  const left = own ? own.seconds_left : store.ended ? null : run.seconds_left;
  return {
    run,
    state,
    kind: own ? SERVER_KINDS[state] : STATE_KINDS[state],
    word: own ? state : STATE_WORDS[state],
    step: own ? own.step : run.step,
    wanted: own ? own.max_steps : run.max_steps,
    left: state === "starved" ? "waiting for a worker" : left === null ? null : `${duration(left)} left`,
    ago,
    age: ago && (quiet < 5 ? "written just now" : `last written ${ago}`),
  };
}

/** A badge of a run that cannot learn. */
function stallChip(run) {
  return run.stall ? chip(run.stall.title, "bad", { title: run.stall.message }) : null;
}

function progressBar(step, wanted, label) {
  const bar = h("progress", { max: wanted ?? 1, value: wanted ? Math.min(step, wanted) : 0, "aria-label": label });
  return bar;
}

function hero(facts) {
  const { run } = facts;
  const table = store.metrics.get(run.id);
  return [
    h(
      "div",
      { class: "hero card" },
      h(
        "div",
        { class: "title" },
        h("h1", {}, run.name),
        h("p", { class: "soft" }, [run.model, run.env].filter(Boolean).join(" on ") || "an environment"),
      ),
      h(
        "div",
        { class: "progress" },
        h(
          "div",
          { class: "line" },
          chip(facts.word, facts.kind),
          stallChip(run),
          h("b", {}, `step ${count(facts.step)}`, facts.wanted ? h("span", { class: "soft" }, ` of ${count(facts.wanted)}`) : null),
          h("span", { class: "grow" }),
          h("span", { class: "soft" }, facts.left ?? facts.age ?? ""),
        ),
        progressBar(facts.step, facts.wanted, `Progress of ${run.name}`),
        run.stall ? h("p", { class: "notice" }, `${run.stall.message[0].toUpperCase()}${run.stall.message.slice(1)}`) : null,
      ),
    ),
    table && table.rows
      ? h("div", { class: "tiles" }, TILES.filter((name) => table.columns[name]).slice(0, 6).map((name) => tile(name, table.columns[name])))
      : emptyState("Waiting for the first step", "Curves appear when the first numbers are written.", null, "small"),
  ];
}

function tile(name, column) {
  const known = column.filter((value) => value !== null);
  const [first, last] = [known[0], known[known.length - 1]];
  return h(
    "div",
    { class: "tile card" },
    h("span", { class: "soft" }, labelOf(name)[0]),
    known.length > 1 ? h("span", { class: "soft from" }, `from ${valueOf(name, first)}`) : null,
    h("b", {}, valueOf(name, last)),
    sparkline(known.slice(-400)),
  );
}

// How the list of runs is searched, sorted and grouped.
const listing = { text: "", column: "", descending: false, group: "" };
const GROUPS = { env: ({ run }) => run.env, model: ({ run }) => run.model, state: ({ word }) => word };
const RUN_COLUMNS = {
  Run: ({ run }) => run.name,
  State: ({ word }) => word,
  Steps: ({ step }) => step,
  Reward: ({ run }) => run.latest.reward,
  Success: ({ run }) => run.latest.success,
  Time: ({ run }) => store.heard.get(run.id),
};

function runFinder() {
  const set = (name) => (event) => {
    listing[name] = event.target.value;
    drawHead();
  };
  return h(
    "div",
    { class: "tools find", hidden: true },
    h("input", { type: "search", placeholder: "Find runs", "aria-label": "Find runs by name, model, environment or state", oninput: set("text") }),
    h("select", { "aria-label": "Group the runs", onchange: set("group") }, h("option", { value: "" }, "not grouped"),
      Object.keys(GROUPS).map((name) => h("option", { value: name }, `by ${name === "env" ? "environment" : name}`))),
    h("button", { type: "button", onclick: () => showOnly(listed(store.runs.map(factsOf)).map(({ run }) => run.id)) }, "Show the curves of these"),
  );
}

/** The runs that are searched for, in the order of a column; what is unknown comes last. */
function listed(facts) {
  const words = listing.text.toLowerCase().split(/\s+/);
  const found = facts.filter(({ run, word }) => words.every((part) => `${run.name} ${run.model} ${run.env} ${word}`.toLowerCase().includes(part)));
  const sorted = (key, way) => (a, b) => {
    const [x, y] = [key(a) ?? null, key(b) ?? null];
    if (x === null || y === null) return (x === null) - (y === null);
    return way * (typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
  };
  if (listing.column) found.sort(sorted(RUN_COLUMNS[listing.column], listing.descending ? -1 : 1));
  if (listing.group) found.sort(sorted(GROUPS[listing.group], 1));
  return found;
}

function sortRuns(column) {
  listing.descending = listing.column === column ? !listing.descending : column !== "Run" && column !== "State";
  listing.column = column;
  drawHead();
}

function columnHead(name) {
  const order = listing.column === name ? (listing.descending ? "descending" : "ascending") : null;
  return h("th", { scope: "col", "aria-sort": order }, h("button", { type: "button", class: "plain sorts", "data-key": `sort-${name}`, onclick: () => sortRuns(name) }, name));
}

/** Rows, with a line above each group. */
function runRows(facts, successes) {
  let last;
  return listed(facts).flatMap((fact) => {
    const group = listing.group ? GROUPS[listing.group](fact) ?? "unknown" : undefined;
    const line = group === last ? [] : [h("tr", { class: "group" }, h("th", { scope: "rowgroup", colspan: 6 }, group))];
    last = group;
    return [...line, runRow(fact, successes)];
  });
}

function runTable(facts) {
  const successes = facts.some(({ run }) => run.latest.success !== undefined);
  return h(
    "div",
    { class: `card scroll${facts.length > SHOWN_AT_FIRST ? " many" : ""}` },
    h(
      "table",
      { class: "runs stack" },
      h("caption", {}, listing.text ? `Runs: ${listed(facts).length} of ${facts.length}` : "Runs"),
      h(
        "thead",
        {},
        h("tr", {}, ["Run", "State", "Steps", "Reward", ...(successes ? ["Success"] : []), "Time"].map(columnHead)),
      ),
      h("tbody", {}, runRows(facts, successes)),
    ),
  );
}

function runRow({ run, word, kind, step, wanted, left, ago }, successes) {
  const shown = !store.hidden.has(run.id);
  const rewards = (store.metrics.get(run.id)?.columns.reward ?? []).filter((value) => value !== null);
  return h(
    "tr",
    { class: shown ? "" : "off" },
    h(
      "th",
      { scope: "row" },
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", checked: shown, "data-key": `show-${run.id}`, "aria-label": `Show the curves of ${run.name}`, onchange: () => toggleRun(run.id) }),
        h("i", { class: `dot run-${run.id % RUN_COLOURS}` }),
      ),
      h("button", { type: "button", class: "plain", "data-key": `solo-${run.id}`, title: "Show only this run, or all", onclick: () => soloRun(run.id) }, run.name),
      h("span", { class: "soft about" }, [run.model, run.env].filter(Boolean).join(" on ")),
    ),
    h("td", {}, chip(word, kind), " ", stallChip(run)),
    h("td", { class: "steps" }, progressBar(step, wanted, `Progress of ${run.name}`), h("span", {}, wanted ? `${count(step)} / ${count(wanted)}` : count(step))),
    h("td", { class: "num", "data-label": "Reward" }, h("span", { class: `line-${run.id % RUN_COLOURS}` }, sparkline(rewards.slice(-200), 72, 20)), h("b", {}, short(run.latest.reward))),
    successes ? h("td", { class: "num", "data-label": "Success" }, percent(run.latest.success, 1)) : null,
    h("td", { class: "soft", title: left ? null : "when it was last written" }, left ?? ago ?? ""),
  );
}

function plotTools() {
  const smooth = h("input", {
    type: "range", min: 0, max: 0.98, step: 0.02, value: prefs.smoothing, "aria-label": "Smoothing",
    oninput: (event) => setPref("smoothing", Number(event.target.value)),
  });
  const log = h("button", { type: "button", id: "log", class: "toggle", "aria-pressed": String(prefs.log), onclick: () => setPref("log", !prefs.log) }, "Log scale");
  const axis = h(
    "select",
    { "aria-label": "Axis of the curves", onchange: (event) => { store.zoom = null; tell("zoom"); setPref("axis", event.target.value); } },
    h("option", { value: "step" }, "by step"),
    h("option", { value: "time" }, "by hours"),
  );
  axis.value = prefs.axis;
  on("prefs", () => log.setAttribute("aria-pressed", String(prefs.log)));
  return h(
    "div",
    { class: "tools" },
    h("h2", {}, "Curves"),
    h("span", { class: "grow" }),
    h("button", { type: "button", id: "zoom-out", hidden: true, onclick: () => zoomTo(null) }, "Zoom out"),
    h("label", { class: "slide" }, "Smoothing", smooth),
    axis,
    log,
    metricChooser(),
  );
}

/** Names of metrics with a box each, in a panel that opens. */
function metricChooser() {
  const list = h("div", { class: "options" });
  const search = h("input", { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric", oninput: () => fillOptions() });
  const fillOptions = () => {
    const names = metricNames(shownRuns().map((run) => store.metrics.get(run.id)).filter(Boolean));
    const chosen = chosenCharts(names);
    const wanted = names.filter((name) => `${name} ${labelOf(name)[0]}`.toLowerCase().includes(search.value.toLowerCase()));
    put(list, wanted.map((name) =>
      h(
        "label",
        {},
        h("input", {
          type: "checkbox",
          checked: chosen.includes(name),
          onchange: (event) => {
            const now = chosenCharts(names).filter((other) => other !== name);
            setPref("charts", event.target.checked ? [...now, name] : now);
          },
        }),
        labelOf(name)[0],
        KNOWN[name] ? h("code", {}, name) : null,
      ),
    ));
    if (!wanted.length) put(list, h("p", { class: "soft" }, names.length ? "No metric has this name." : "No metrics yet."));
  };
  const usual = h("button", { type: "button", onclick: () => { setPref("charts", null); fillOptions(); } }, "Default metrics");
  return h(
    "details",
    { class: "chooser", ontoggle: (event) => event.target.open && fillOptions() },
    h("summary", {}, "Metrics"),
    h("div", { class: "panel card" }, search, list, usual),
  );
}

function chosenCharts(names) {
  return prefs.charts === null ? usualCharts(names) : names.filter((name) => prefs.charts.includes(name));
}

function drawCurves() {
  if (!store.runs?.length) return;
  const tables = shownRuns().map((run) => store.metrics.get(run.id)).filter(Boolean);
  const names = metricNames(tables);
  overview.tools.hidden = names.length === 0 && shownRuns().length > 0;
  drawPlots(overview.grid, chosenCharts(names));
  overview.grid.toggleAttribute("data-none", overview.grid.children.length === 0);
}

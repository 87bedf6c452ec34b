// Below the curves: warnings and evaluations of the runs that are shown.

const MANY_WARNINGS = 40;

function drawUnder() {
  const runs = shownRuns();
  const warnings = runs.flatMap((run) => (store.events.get(run.id)?.list ?? []).map((event) => ({ run, event })));
  warnings.sort((a, b) => a.event.step - b.event.step);
  const evaluated = runs.filter((run) => store.evaluations.get(run.id)?.list.length);
  const key = [warnings.length, runs.map((run) => [run.id, store.events.get(run.id)?.warnings, store.evaluations.get(run.id)?.key])];
  putIfNew(overview.under, key, () => [
    h(
      "section",
      { "aria-labelledby": "warnings-title" },
      h("h2", { id: "warnings-title" }, "Warnings"),
      warnings.length
        ? h("ol", { class: "card warnings" }, warnings.slice(-MANY_WARNINGS).reverse().map((one) => warningItem(one, runs.length > 1)))
        : h("p", { class: "card calm" }, "None: all values are within their thresholds."),
      warnings.length > MANY_WARNINGS ? h("p", { class: "soft" }, `The last ${MANY_WARNINGS} of ${count(warnings.length)}.`) : null,
    ),
    evaluated.length
      ? h("section", { "aria-labelledby": "evaluations-title" }, h("h2", { id: "evaluations-title" }, "Evaluations"), evaluationTable(evaluated, runs.length > 1))
      : null,
  ]);
}

function warningItem({ run, event }, several) {
  // The words begin with the step, which stands in front of them here.
  const words = String(event.message ?? event.words ?? event.kind ?? "").replace(/^step \d+: /, "");
  const metric = labelOf(String(event.name ?? ""))[0];
  return h(
    "li",
    {},
    h(
      "p",
      { class: "line" },
      several ? h("i", { class: `dot run-${run.id % RUN_COLOURS}` }) : null,
      h("b", {}, `Step ${event.step ?? "?"}`),
      metric ? chip(metric, "warn") : null,
      several ? h("span", { class: "soft" }, run.name) : null,
    ),
    h("p", {}, words),
  );
}

function evaluationTable(runs, several) {
  const rows = runs.flatMap((run) => store.evaluations.get(run.id).list.map((one) => ({ run, one })));
  const measure = rows.some(({ one }) => one.success) ? "success" : "reward";
  const bounds = rows.map(({ one }) => one[measure]).filter(Boolean).flatMap(({ low, high }) => [low, high]);
  const [low, high] = measure === "success" ? [0, 1] : [Math.min(...bounds), Math.max(...bounds)];
  return h(
    "div",
    { class: "card scroll" },
    h(
      "table",
      { class: "evaluations stack" },
      h("caption", { class: "off" }, "Evaluations"),
      h("thead", {}, h("tr", {}, ["Policy", labelOf(measure)[0], "95% interval", "Episodes"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => evaluationRow(row, several, measure, low, high))),
    ),
  );
}

function evaluationRow({ run, one }, several, measure, low, high) {
  const name = h(
    "th",
    { scope: "row" },
    several ? h("i", { class: `dot run-${run.id % RUN_COLOURS}` }) : null,
    several ? h("span", { class: "soft" }, `${run.name} `) : null,
    one.baseline ? one.name : `${one.name} training`,
    one.baseline ? chip("baseline") : null,
  );
  if (one.fault) return h("tr", {}, name, h("td", { colspan: 3, class: "wrong words" }, one.fault));
  const range = one[measure];
  if (!range) return h("tr", {}, name, h("td", { colspan: 3, class: "soft" }, "nothing was measured"));
  return h(
    "tr",
    { class: one.name === "after" ? "after" : "" },
    name,
    h("td", { class: "num", "data-label": labelOf(measure)[0] }, h("b", {}, valueOf(measure, range.value))),
    h("td", {}, interval(range, low, high), h("span", { class: "soft" }, `${valueOf(measure, range.low)} to ${valueOf(measure, range.high)}`)),
    h("td", { class: "num soft", "data-label": "Episodes" }, count(one.episodes), one.faults ? ` + ${plural(one.faults, "fault")}` : ""),
  );
}

/** A value with its interval, on a line from `low` to `high`. */
function interval(range, low, high) {
  const place = (value) => (2 + (116 * (value - low)) / (high - low || 1)).toFixed(1);
  return svg(
    "svg",
    { class: "interval", viewBox: "0 0 120 12", width: 120, height: 12, "aria-hidden": "true" },
    svg("line", { class: "track", x1: 2, x2: 118, y1: 6, y2: 6 }),
    svg("line", { class: "range", x1: place(range.low), x2: place(range.high), y1: 6, y2: 6 }),
    svg("circle", { cx: place(range.value), cy: 6, r: 4 }),
  );
}

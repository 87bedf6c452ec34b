// Curves: one card a metric, drawn by uPlot; all share the cursor, and the zoom (see zoom.js).

const HEIGHT = 188;
const MANY_RUNS = 3; // beyond, values are shown where the cursor is, and only then
const DASHES = [[], [7, 4], [2, 3]];
const FEW = 30; // values of which each is shown as a dot

const plots = new Map(); // by metric: { card, plot, legend, key }

function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Draws the metrics that are chosen into a grid of cards; what is drawn already only gets new data. */
function drawPlots(grid, metrics) {
  for (const [metric, drawn] of plots) {
    if (metrics.includes(metric)) continue;
    drawn.plot?.destroy();
    drawn.card.remove();
    plots.delete(metric);
  }
  for (const metric of metrics) {
    if (!plots.has(metric)) plots.set(metric, plotCard(metric));
    const { card } = plots.get(metric);
    if (grid.children[metrics.indexOf(metric)] !== card) grid.insertBefore(card, grid.children[metrics.indexOf(metric)] ?? null);
    drawPlot(metric);
  }
}

function plotCard(metric) {
  const [label, unit] = labelOf(metric);
  const legend = h("div", { class: "legend" });
  const stage = h("div", { class: "stage" });
  const card = h(
    "figure",
    { class: "card plot", "data-metric": metric },
    h("figcaption", {}, h("b", {}, label), unit ? h("span", {}, unit) : null, legend),
    stage,
  );
  new ResizeObserver(() => {
    const drawn = plots.get(metric);
    if (drawn?.plot && stage.clientWidth) drawn.plot.setSize({ width: stage.clientWidth, height: HEIGHT });
  }).observe(stage);
  return { card, stage, legend, plot: null, key: "" };
}

function drawPlot(metric) {
  const drawn = plots.get(metric);
  const runs = shownRuns().filter((run) => store.metrics.get(run.id)?.columns[metric]);
  const points = runs.map((run) => pointsOf(store.metrics.get(run.id), metric, prefs));
  const known = points.some(({ xs }) => xs.length);
  const key = JSON.stringify([runs.map((run) => run.id), prefs.log, prefs.axis, prefs.smoothing > 0, themeNow(), known, areFew(points)]);
  drawn.runs = runs;
  if (!known) {
    drawn.plot?.destroy();
    drawn.plot = null;
    drawn.key = key;
    put(drawn.stage, h("p", { class: "soft none" }, prefs.log ? "No value above zero to show on a log scale." : "No values yet."));
    put(drawn.legend);
    return;
  }
  const data = tableOf(points);
  if (drawn.key !== key) {
    drawn.plot?.destroy();
    put(drawn.stage);
    drawn.plot = new uPlot(optionsOf(metric, drawn, points), data, drawn.stage);
    listenForFingers(drawn.plot);
    drawn.key = key;
    if (store.zoom) drawn.plot.setScale("x", store.zoom);
  } else {
    drawn.plot.setData(data, !store.zoom);
    if (store.zoom) drawn.plot.setScale("x", store.zoom);
  }
  describe(metric, drawn);
}

/** Whether each value is shown as a dot. */
function areFew(points) {
  return points.every(({ xs }) => xs.length <= FEW);
}

function optionsOf(metric, drawn, points) {
  const soft = colourOf("--soft");
  const line = colourOf("--line");
  const grid = { stroke: line, width: 1 };
  const axis = { stroke: soft, grid, ticks: { show: false }, font: `11px ${colourOf("--sans")}` };
  const few = areFew(points);
  const series = drawn.runs.flatMap((run) => {
    const stroke = colourOf(runColour(run.id));
    const dash = DASHES[Math.floor(run.id / RUN_COLOURS) % DASHES.length]; // of the runs that share a colour
    const faint = prefs.smoothing > 0;
    return [
      { stroke, dash, alpha: 0.28, width: 1, spanGaps: true, show: faint, points: { show: false } },
      { stroke, dash, width: 1.8, spanGaps: true, points: { show: few, size: 5, fill: stroke } },
    ];
  });
  return {
    width: Math.max(drawn.stage.clientWidth, 200),
    height: HEIGHT,
    padding: [10, 14, 0, 0],
    legend: { show: false },
    scales: { x: { time: false }, y: { distr: prefs.log ? 3 : 1, range: prefs.log ? roomyLog : roomy } },
    axes: [
      { ...axis, size: 26, values: (_, marks) => marks.map((mark) => (prefs.axis === "time" ? `${short(mark)} h` : Number.isInteger(mark) ? short(mark) : "")) },
      { ...axis, ...(prefs.log ? { splits: (_, side, low, high) => logMarks(low, high), filter: (_, marks) => marks } : {}), size: 52, values: (_, marks) => marks.map((mark) => (mark === null ? "" : valueOf(metric, mark).replace(/\.0%$/, "%"))) },
    ],
    series: [{}, ...series],
    cursor: {
      sync: { key: "art" },
      // Of each run the smoothed curve alone gets a dot; series 0 is the axis.
      points: { show: (_, series) => (series % 2 === 0 ? h("div") : null) },
      drag: { x: true, y: false, setScale: false },
      bind: { dblclick: () => () => zoomTo(null) },
    },
    hooks: {
      setSelect: [(plot) => selected(plot)],
      setCursor: [() => describe(metric, drawn)],
      draw: [(plot) => drawWarnings(plot, metric, drawn.runs)],
    },
  };
}

/** A range with some room, which is not zero for a metric that does not change. */
function roomy(_, low, high) {
  if (low === null) return [0, 1];
  const room = isFlat(low, high) ? Math.abs(high) * 0.05 || 1 : (high - low) * 0.06;
  return [low - (low >= 0 && low - room < 0 ? low : room), high + room];
}

/** Marks the warnings about this metric. */
function drawWarnings(plot, metric, runs) {
  const { ctx } = plot;
  const table = (run) => store.metrics.get(run.id);
  ctx.save();
  ctx.fillStyle = colourOf("--warn");
  const unit = devicePixelRatio;
  for (const run of runs) {
    for (const event of store.events.get(run.id)?.list ?? []) {
      if (event.name !== metric && !(event.name === "sampling_kl" && metric === "kl")) continue;
      const row = (table(run).columns.step ?? []).indexOf(event.step);
      if (row < 0) continue;
      const x = Math.round(plot.valToPos(axisOf(table(run), prefs.axis)[row], "x", true));
      if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
      ctx.globalAlpha = 0.22;
      ctx.fillRect(x, plot.bbox.top, unit, plot.bbox.height);
      ctx.globalAlpha = 1;
      ctx.fillRect(x - unit, plot.bbox.top, 3 * unit, 8 * unit);
    }
  }
  ctx.restore();
}

/** Writes into a card's legend what is under the cursor, or else the newest values. */
function describe(metric, drawn) {
  const { plot, runs, legend, card } = drawn;
  if (!plot) return;
  const at = plot.cursor.idx;
  const several = runs.length > 1;
  const hovering = at !== null && at !== undefined && plot.cursor.left >= 0;
  const items = runs.map((run, i) => {
    const values = plot.data[2 * i + 1];
    const place = hovering ? knownAt(values, at) : lastOf(values);
    return { run, value: place < 0 ? null : values[place], place };
  });
  legend.classList.toggle("over", runs.length > MANY_RUNS);
  legend.classList.toggle("hovering", hovering);
  legend.classList.toggle("left", plot.cursor.left > plot.over.clientWidth / 2);
  const words = items.map(({ run, value }) => [run.name, valueOf(metric, value)]);
  const where = hovering ? `${prefs.axis === "time" ? `${short(plot.data[0][at])} h` : `step ${short(plot.data[0][at])}`}` : "";
  putIfNew(legend, [words, where, runs.map((run) => run.id)], () => [
    where ? h("span", { class: "where" }, where) : null,
    items.map(({ run, value }) =>
      h(
        "span",
        { class: "item" },
        several ? h("i", { class: `dot run-${run.id % RUN_COLOURS}` }) : null,
        several ? h("span", { class: "name" }, run.name) : null,
        h("b", {}, valueOf(metric, value)),
      ),
    ),
  ]);
  const label = `${labelOf(metric)[0]}: ${words.map(([name, value]) => `${name} ${value}`).join(", ")}`;
  if (card.getAttribute("aria-label") !== label) card.setAttribute("aria-label", label);
}

function lastOf(values) {
  let place = values.length - 1;
  while (place >= 0 && (values[place] === null || values[place] === undefined)) place--;
  return place;
}

/** The index of the newest value up to `at`; -1 if there is none, or no later one. */
function knownAt(values, at) {
  if (at > lastOf(values)) return -1;
  return lastOf(values.slice(0, at + 1));
}

/** Drops all plots, to draw them with other colours or scales. */
function redrawPlots() {
  for (const metric of plots.keys()) drawPlot(metric);
}

// Zoom: one stretch of the axis for all curves, chosen with the mouse, with fingers, or with keys.

const LEAST_DRAG = 6; // pixels
const LEAST_SHARE = 1 / 2000; // of the whole axis
const DOUBLE_TAP = 350; // milliseconds

/** Shows a stretch of the axis in all curves; `null`, or one that is all there is, shows all. */
function zoomTo(range) {
  store.zoom = fitted(range);
  later(applyZoom);
  tell("zoom");
}

function applyZoom() {
  for (const { plot } of plots.values()) {
    if (!plot) continue;
    if (store.zoom) plot.setScale("x", store.zoom);
    else plot.setData(plot.data, true);
  }
}

/** From where to where any curve goes. */
function wholeRange() {
  const drawn = [...plots.values()].filter(({ plot }) => plot).map(({ plot }) => plot.data[0]);
  return { min: Math.min(...drawn.map((xs) => xs[0])), max: Math.max(...drawn.map((xs) => xs[xs.length - 1])) };
}

/** A stretch moved and cut to what there is. */
function fitted(range) {
  if (!range) return null;
  const whole = wholeRange();
  const size = Math.max(range.max - range.min, (whole.max - whole.min) * LEAST_SHARE);
  if (!(size < whole.max - whole.min)) return null;
  const min = Math.min(Math.max(range.min, whole.min), whole.max - size);
  return { min, max: min + size };
}

/** Makes what is shown smaller or larger around its middle, or moves it by a share of itself. */
function zoomBy(factor, move = 0) {
  const { min, max } = store.zoom ?? wholeRange();
  if (!(max > min)) return;
  const middle = (min + max) / 2 + move * (max - min);
  const half = (factor * (max - min)) / 2;
  zoomTo({ min: middle - half, max: middle + half });
}

/** The end of dragging across a curve: what was marked is what is shown. */
function selected(plot) {
  const { left, width } = plot.select;
  if (width < LEAST_DRAG) return;
  unmark(plot);
  zoomTo({ min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") });
}

function unmark(plot) {
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
}

/**
 * Fingers on a curve: one marks the steps to zoom in on, or moves what is zoomed in on already; two pinch; a
 * double tap shows all. Up and down stays the page's own scrolling, as the styles say.
 */
function listenForFingers(plot) {
  const { over } = plot;
  const fingers = new Map(); // by pointer: where it is, in pixels from the left of the curve
  let start = null;
  let tapped = 0;
  const place = (event) => event.clientX - over.getBoundingClientRect().left;
  const begin = (kind) => {
    const { min, max } = plot.scales.x;
    start = { at: [...fingers.values()], min, unit: (max - min) / over.clientWidth, kind };
  };
  over.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch" || fingers.size === 2) return;
    fingers.set(event.pointerId, place(event));
    unmark(plot);
    begin(fingers.size === 2 ? "pinch" : store.zoom ? "move" : "mark");
  });
  over.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, place(event));
    follow(plot, start, [...fingers.values()]);
  });
  const end = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    const moved = Math.abs(place(event) - start.at[0]) >= LEAST_DRAG;
    if (event.type === "pointercancel") unmark(plot);
    else if (start.kind === "mark") selected(plot);
    if (fingers.size) begin("move");
    else if (event.type === "pointerup" && !moved && start.kind !== "pinch") {
      if (event.timeStamp - tapped < DOUBLE_TAP) zoomTo(null);
      tapped = event.timeStamp;
    }
  };
  over.addEventListener("pointerup", end);
  over.addEventListener("pointercancel", end);
}

/** What fingers do that were at `start.at` and are at `now`. */
function follow(plot, start, now) {
  const { kind, at, min, unit } = start;
  const width = plot.over.clientWidth;
  if (kind === "mark") {
    const [from, to] = [at[0], now[0]].map((x) => Math.min(Math.max(x, 0), width)).sort((a, b) => a - b);
    plot.setSelect({ left: from, width: to - from, top: 0, height: plot.over.clientHeight }, false);
  } else if (kind === "move") {
    const moved = min + (at[0] - now[0]) * unit;
    zoomTo({ min: moved, max: moved + width * unit });
  } else {
    const apart = (now[1] - now[0]) / (at[1] - at[0]);
    if (!(apart > 0.02)) return; // the fingers are on top of each other, or have changed sides
    const from = min + at[0] * unit - (now[0] * unit) / apart;
    zoomTo({ min: from, max: from + (width * unit) / apart });
  }
}

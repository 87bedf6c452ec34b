// Elements. What comes from the server is text and stays text: a child that is a string becomes a text node,
// and nothing here or elsewhere reads a string as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element with attributes, listeners (`onclick`), and children. */
function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element. */
function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** The element with an id, which the page has. */
function byId(id) {
  return document.getElementById(id);
}

/** Replaces an element's children. */
function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * The same as `put`, but only where something that the caller compares has changed. What the reader holds,
 * the focus and how far tables are scrolled, stays; elements that can have the focus are told by `data-key`.
 */
function putIfNew(element, key, make) {
  const text = JSON.stringify(key);
  if (element.shownKey === text) return;
  element.shownKey = text;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = [...element.querySelectorAll(".scroll")].map(({ scrollLeft, scrollTop }) => [scrollLeft, scrollTop]);
  put(element, make());
  [...element.querySelectorAll(".scroll")].forEach((box, i) => box.scrollTo(...(scrolled[i] ?? [0, 0])));
  if (focused !== undefined) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

/** A label in a coloured pill. */
function chip(text, kind = "", props = {}) {
  return h("span", { class: `chip ${kind}`.trim(), ...props }, text);
}

/** A placeholder for an empty view. */
function emptyState(title, words, command = null, kind = "") {
  return h(
    "div",
    { class: `empty ${kind}`.trim() },
    svg(
      "svg",
      { viewBox: "0 0 120 56", width: 120, height: 56, "aria-hidden": "true" },
      svg("path", { class: "ghost-axis", d: "M8 4v44h108" }),
      svg("path", { class: "ghost-curve", d: "M12 42c22 0 20-26 42-26s24 10 58-8" }),
    ),
    h("h2", {}, title),
    h("p", {}, words),
    command ? h("code", {}, command) : null,
  );
}

/** A curve without axes. */
function sparkline(values, width = 92, height = 26) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (known.length < 2) return null;
  const [lowest, highest] = [Math.min(...known), Math.max(...known)];
  const flat = isFlat(lowest, highest);
  const points = known.map((value, i) => {
    const x = 1 + (i / (known.length - 1)) * (width - 2);
    return `${x.toFixed(1)},${(height - 2 - (flat ? 0.5 : (value - lowest) / (highest - lowest)) * (height - 4)).toFixed(1)}`;
  });
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polyline", { points: points.join(" ") }),
  );
}

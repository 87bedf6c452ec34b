// The table of episodes: as many rows as there are, of which only those in sight are elements.

const ROW = 38; // pixels, as in the styles
const PAGE = 100; // rows of a question to the server
const KEPT_PAGES = 60;
const MOST_PIXELS = 12_000_000; // browsers draw nothing beyond some more than that

const COLUMNS = [
  ["step", "Step"],
  ["task", "Task"],
  ["outcome", "Outcome"],
  ["reward", "Reward"],
  ["turns", "Turns"],
  ["tokens", "Tokens"],
  ["invalid", "Invalid"],
];

const table = { pages: new Map(), matches: 0, selected: 0, rows: new Map(), last: null, asked: 0, stop: null, fault: null, fresh: new Set(), wantsSearch: false };

function buildTable(page) {
  table.head = h("div", { class: "row head", role: "row" }, COLUMNS.map(headCell), h("span", { role: "columnheader", class: "preview" }, "Last words"));
  table.body = h("div", { class: "rows", role: "rowgroup" });
  table.view = h(
    "div",
    { class: "grid card", role: "grid", "aria-label": "Episodes", tabindex: 0, onscroll: () => later(drawRows) },
    h("div", { role: "rowgroup", class: "heads" }, table.head),
    table.body,
  );
  table.empty = h("div", { hidden: true });
  put(page, filterBar(() => askAnew()), table.view, table.empty);
  new ResizeObserver(() => later(drawRows)).observe(table.view);
  on("episodes", () => isOpen("episodes") && freshen());
  on("runs", () => offerRuns(store.runs));
  on("line", () => store.line === "live" && table.fault !== null && isOpen("episodes") && freshen());
}

function headCell([key, words]) {
  return h(
    "span",
    { role: "columnheader", class: key, "data-sort": key },
    h("button", { type: "button", onclick: () => sortBy(key) }, words),
  );
}

function sortBy(key) {
  filters.descending = filters.sort === key ? !filters.descending : key !== "task";
  filters.sort = key;
  askAnew();
}

/** Forgets what was shown: other filters or another order are wanted. */
function askAnew() {
  table.pages.clear();
  table.fresh.clear();
  table.selected = 0;
  table.last = null;
  table.fault = null;
  table.view.scrollTop = 0;
  for (const cell of table.head.children) {
    const own = cell.dataset.sort === filters.sort;
    if (own) cell.setAttribute("aria-sort", filters.descending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  }
  askPages([0]);
}

/** Asks again for what is in sight: there is something new. What is shown stays until the answer. */
function freshen() {
  table.fresh.clear();
  table.fault = null;
  if (table.last === null) askAnew();
  else askPages(pagesInSight());
}

/** Asks for pages of rows, until the server has read and searched all there is. */
async function askPages(wanted) {
  table.stop?.abort();
  const stop = new AbortController();
  table.stop = stop;
  if (!store.runs?.length) {
    sayFound(null);
    drawRows();
    return;
  }
  try {
    for (const number of wanted) await askPage(number, stop.signal);
    if (table.last && !table.last.complete) {
      await pause(table.last.known < table.last.recorded ? 50 : 10);
      if (!stop.signal.aborted) askPages(pagesInSight());
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ServerError)) throw error;
    table.fault = error.message;
    drawRows();
  }
}

async function askPage(number, signal) {
  const query = queryOf({ ...queryNow(), offset: number * PAGE, limit: PAGE });
  const page = await ask(`runs/${filters.run}/episodes?${query}`, { signal });
  table.last = page;
  table.fault = null;
  table.matches = page.matches;
  table.pages.delete(number);
  table.pages.set(number, page.rows);
  table.fresh.add(number);
  while (table.pages.size > KEPT_PAGES) table.pages.delete(table.pages.keys().next().value);
  sayFound(page);
  drawRows();
}

function pagesInSight() {
  const [from, to] = rowsInSight();
  const pages = [];
  for (let number = Math.floor(from / PAGE); number <= Math.floor(Math.max(to - 1, from) / PAGE); number++) pages.push(number);
  return pages;
}

/** How many pixels of the scrolling stand for one row. */
function pixelsPerRow() {
  return Math.min(ROW, MOST_PIXELS / Math.max(1, table.matches));
}

function rowsInSight() {
  const first = Math.floor(table.view.scrollTop / pixelsPerRow());
  const fit = Math.ceil(table.view.clientHeight / ROW) + 1;
  return [Math.max(0, Math.min(first, table.matches - 1)), Math.min(table.matches, first + fit)];
}

function rowAt(index) {
  return table.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
}

function drawRows() {
  const nothing = table.matches === 0 && (table.last !== null || table.fault !== null || store.runs?.length === 0);
  table.view.hidden = nothing;
  table.empty.hidden = !nothing;
  if (nothing) {
    put(table.empty, whyNothing());
    return;
  }
  table.view.setAttribute("aria-rowcount", table.matches + 1);
  table.body.style.height = `${table.matches * pixelsPerRow()}px`;
  const [from, to] = rowsInSight();
  const top = table.view.scrollTop - (table.view.scrollTop % pixelsPerRow());
  for (const [index, element] of table.rows) {
    if (index < from || index >= to) {
      element.remove();
      table.rows.delete(index);
    }
  }
  for (let index = from; index < to; index++) {
    if (!table.rows.has(index)) {
      const element = h("div", { class: "row", role: "row", id: `row-${index}`, "aria-rowindex": index + 2, onclick: () => openRow(index) });
      table.rows.set(index, element);
      table.body.append(element);
    }
    const element = table.rows.get(index);
    const place = pixelsPerRow() === ROW ? index * ROW : top + (index - from) * ROW;
    element.style.transform = `translateY(${place}px)`;
    const row = rowAt(index);
    element.classList.toggle("selected", index === table.selected);
    element.setAttribute("aria-selected", String(index === table.selected));
    putIfNew(element, row ?? "…", () => (row ? cells(row) : h("span", { class: "skeleton-line" })));
  }
  table.view.setAttribute("aria-activedescendant", `row-${table.selected}`);
  // Without an answer to the last question, the next one waits until the line is there again.
  if (table.fault === null && pagesInSight().some((number) => !table.fresh.has(number))) askSoon();
}

let askTimer = 0;

/** Asks for rows that came into sight, once the scrolling rests for a moment. */
function askSoon() {
  clearTimeout(askTimer);
  askTimer = setTimeout(() => {
    const missing = pagesInSight().filter((number) => !table.fresh.has(number));
    if (missing.length) askPages(missing);
  }, 60);
}

function cells(row) {
  const cell = (name, ...content) => h("span", { role: "gridcell", class: name }, content);
  return [
    cell("step", count(row.step)),
    cell("task", row.task),
    cell("outcome", outcomeChip(row), row.replaced ? chip("replaced") : null),
    cell(`reward ${row.reward > 0 ? "plus" : row.reward < 0 ? "minus" : ""}`, row.reward === null ? "–" : signed(row.reward)),
    cell("turns", row.turns),
    cell("tokens", row.tokens ? count(row.tokens) : "–"),
    cell("invalid", row.invalid ? chip(String(row.invalid), "warn") : h("span", { class: "soft" }, "0")),
    cell("preview", row.preview),
  ];
}

function whyNothing() {
  if (table.fault) {
    return emptyState("The episodes cannot be shown", table.fault, null, "fault");
  }
  if (store.runs?.length === 0) return emptyState("No run here yet", "Episodes appear with the first run.", "art-trainer train");
  if (table.last.fault) return emptyState("The records are damaged", table.last.fault, null, "fault");
  if (isFiltered()) return emptyState("No matching episode", table.last.complete ? "Widen the filters, or clear them." : "Still searching…");
  if (table.last.recorded) return emptyState("Reading the records", "The first rows appear in a moment.");
  return emptyState("No episode is recorded yet", "They appear with the first step; a run with log_episodes: 0 keeps none.");
}

/** Moves the selection and keeps it in sight. */
function moveSelection(by) {
  selectRow(table.selected + by);
}

function selectRow(index) {
  table.selected = Math.max(0, Math.min(index, table.matches - 1));
  const head = table.head.offsetHeight;
  const place = table.selected * pixelsPerRow();
  const { scrollTop, clientHeight } = table.view;
  if (place < scrollTop) table.view.scrollTop = place;
  else if (place + ROW + head > scrollTop + clientHeight) table.view.scrollTop = place + ROW + head - clientHeight;
  drawRows();
}

function openRow(index) {
  const row = rowAt(index);
  if (!row) return;
  table.selected = index;
  go(`#/episodes/${filters.run}/${row.step}/${row.place}`);
}

// Keyboard shortcuts; none while a field has the focus, or with a modifier of the browser.

const KEYS = {
  1: () => go("#/"),
  2: () => go("#/episodes"),
  3: () => store.status && go("#/workers"),
  "/": () => {
    table.wantsSearch = !isOpen("episodes");
    if (table.wantsSearch) go("#/episodes");
    else byId("search").focus();
  },
  j: () => step(1),
  k: () => step(-1),
  Enter: () => isOpen("episodes") && openRow(table.selected),
  c: () => isOpen("episode") && toggleCompare(),
  p: () => setPref("shading", !prefs.shading),
  l: () => setPref("log", !prefs.log),
  r: () => zoomTo(null),
  "+": () => isOpen("overview") && zoomBy(1 / 2),
  "-": () => isOpen("overview") && zoomBy(2),
  t: () => nextTheme(),
  "?": () => byId("help").showModal(),
  Escape: () => leave(),
};

const CURVE_KEYS = {
  ArrowLeft: () => zoomBy(1, -1 / 4),
  ArrowRight: () => zoomBy(1, 1 / 4),
};

const LIST_KEYS = {
  ArrowDown: () => moveSelection(1),
  ArrowUp: () => moveSelection(-1),
  PageDown: () => moveSelection(Math.floor(table.view.clientHeight / ROW) - 2),
  PageUp: () => moveSelection(2 - Math.floor(table.view.clientHeight / ROW)),
  Home: () => selectRow(0),
  End: () => selectRow(table.matches - 1),
};

/** The next or previous episode: in the table its row, in an episode's view the episode itself. */
async function step(by) {
  if (isOpen("episodes")) moveSelection(by);
  if (!isOpen("episode")) return;
  const index = table.selected + by;
  if (index < 0 || index >= table.matches) return;
  if (!rowAt(index)) await askPages([Math.floor(index / PAGE)]);
  openRow(index);
}

function leave() {
  if (isOpen("episode")) go(shown.other === null ? "#/episodes" : addressOf(shown.place, null));
  else if (!isOpen("overview")) go("#/");
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const writing = event.target.closest("input:not([type=checkbox], [type=range]), select");
  if (writing) {
    if (event.key === "Escape") writing.blur();
    if (event.key === "Enter" && writing.id === "search") table.view.focus();
    return;
  }
  const free = !event.target.closest("button, a, summary, input");
  const own = isOpen("episodes") ? LIST_KEYS : isOpen("overview") && store.zoom ? CURVE_KEYS : {};
  const listed = free ? own[event.key] : undefined;
  // Enter on a button or a link is the button's.
  if (event.key === "Enter" && event.target.closest("button, a, summary")) return;
  const work = listed ?? KEYS[event.key];
  if (!work) return;
  event.preventDefault();
  work();
}

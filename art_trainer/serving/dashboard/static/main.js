// Entry point: the open view, the colours and the connection to the server.

const pages = Object.fromEntries([...document.querySelectorAll("[data-page]")].map((page) => [page.dataset.page, page]));

function isOpen(name) {
  return !pages[name].hidden;
}

function openView(name) {
  for (const [other, page] of Object.entries(pages)) page.hidden = other !== name;
  const tab = name === "episode" ? "episodes" : name;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  byId("tip").hidden = true;
}

/** Changes the address and opens what it names, at once: a link does the same a moment later. */
function go(hash) {
  if (location.hash === hash) return;
  history.pushState(null, "", hash);
  route();
}

/** Opens the view that the address names. */
function route() {
  const [view, ...parts] = location.hash.replace(/^#\//, "").split("/");
  if (view === "episodes" && parts.length >= 3) {
    openView("episode");
    openEpisode(pages.episode, parts);
    scrollTo(0, 0);
  } else if (view === "episodes") {
    openView("episodes");
    if (table.last === null) askAnew();
    else freshen();
    drawRows();
    (table.wantsSearch ? byId("search") : table.view).focus({ preventScroll: true });
    table.wantsSearch = false;
  } else if (view === "workers") {
    openView("workers");
    drawWorkers(pages.workers);
  } else {
    openView("overview");
    drawHead();
    later(drawCurves);
  }
}

const THEMES = ["auto", "light", "dark"];
const THEME_SIGNS = { auto: "◐", light: "☀", dark: "☾" };
const darkness = matchMedia("(prefers-color-scheme: dark)");

/** The current colours. */
function themeNow() {
  return prefs.theme === "auto" ? (darkness.matches ? "dark" : "light") : prefs.theme;
}

function nextTheme() {
  setPref("theme", THEMES[(THEMES.indexOf(prefs.theme) + 1) % THEMES.length]);
}

function showTheme() {
  document.documentElement.dataset.theme = themeNow();
  const button = byId("theme");
  const words = prefs.theme === "auto" ? "System colours" : `${prefs.theme} colours`;
  button.textContent = THEME_SIGNS[prefs.theme];
  button.setAttribute("aria-label", words);
  button.title = `${words} (t)`;
}

function showLine(state) {
  if (state === "live") store.ended = null;
  const words = { live: "live", lost: store.ended ? "ended" : "no connection", waiting: "connecting" };
  byId("link").dataset.state = state;
  byId("link").textContent = words[state];
  document.body.classList.toggle("cut-off", state === "lost" && !store.ended);
  byId("lost").hidden = state !== "lost";
  put(byId("lost"), store.ended ? [
    h("b", {}, "The run's server has ended."), " These are its last data. To see them again: ", h("code", {}, `art-trainer dash ${store.ended}`),
  ] : [
    h("b", {}, "The server does not answer."), " These are its last data; the page retries automatically. ",
    h("code", {}, "art-trainer dash FOLDER"), " shows a run's folder without its server.",
  ]);
  if (store.line === state) return;
  store.line = state;
  tell("line");
  // An episode that could not be asked for is asked for again.
  if (state === "live" && isOpen("episode") && pages.episode.querySelector(".empty.fault")) route();
}

function onEvent(name, data) {
  if (name === "runs") takeRuns(data);
  if (name === "end") takeEnd(data);
  if (name === "status") {
    store.status = data;
    document.querySelector('[data-view="workers"]').hidden = false;
    tell("status");
    if (isOpen("workers")) drawWorkers(pages.workers);
  }
}

function showTitle() {
  const run = store.runs?.length === 1 ? store.runs[0] : null;
  document.title = run ? `${run.max_steps ? `${Math.round((100 * run.step) / run.max_steps)}% ` : ""}${run.name} · ART` : "ART";
}

async function begin() {
  showTheme();
  darkness.addEventListener("change", () => tell("prefs", "theme"));
  on("prefs", (name) => name === "theme" && showTheme());
  on("prefs", () => {
    pages.episode.classList.toggle("unshaded", !prefs.shading);
    for (const toggle of pages.episode.querySelectorAll(".tools .toggle")) {
      if (toggle.textContent === "Shade tokens") toggle.setAttribute("aria-pressed", String(prefs.shading));
    }
  });
  on("runs", showTitle);
  on("fault", (error) => console.info(error.message));
  buildOverview(pages.overview);
  buildTable(pages.episodes);
  listenForTokens(pages.episode);
  byId("theme").addEventListener("click", nextTheme);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("help").querySelector("[data-close]").addEventListener("click", () => byId("help").close());
  addEventListener("hashchange", route);
  addEventListener("keydown", onKey);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("content").focus();
  });
  route();
  try {
    takeRuns(await ask("runs"));
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
  }
  if (isOpen("episodes")) askAnew();
  listen(onEvent, showLine);
}

begin();

// Filters of the table of episodes, and its count of matches.

const NO_FILTERS = { text: "", task: "", outcome: "", reward_min: "", reward_max: "", step_min: "", step_max: "" };

const filters = { run: 0, values: { ...NO_FILTERS }, sort: "step", descending: true };
const bar = {};

function filterBar(onChange) {
  let timer = 0;
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(onChange, 200);
  };
  const field = (name, props, words) =>
    h("label", { class: `field ${props.class ?? ""}` }, h("span", {}, words), input(name, props, soon));
  bar.inputs = {};
  bar.run = h("select", { "aria-label": "Run", onchange: (event) => { filters.run = Number(event.target.value); onChange(); } });
  bar.runField = h("label", { class: "field", hidden: true }, h("span", {}, "Run"), bar.run);
  bar.outcome = h(
    "select",
    { onchange: (event) => { filters.values.outcome = event.target.value; onChange(); } },
    h("option", { value: "" }, "any"),
    Object.entries(OUTCOME_WORDS).map(([value, words]) => h("option", { value }, words)),
  );
  bar.clear = h("button", { type: "button", hidden: true, onclick: () => { clearTimeout(timer); clearFilters(); onChange(); } }, "Clear");
  bar.words = h("p", { class: "soft found", role: "status" });
  return h(
    "div",
    { class: "filters" },
    h(
      "form",
      { role: "search", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
      bar.runField,
      field("text", { type: "search", id: "search", placeholder: "words said or shown", title: "Text in tasks, replies, observations, errors and judgements", class: "wide" }, "Search"),
      field("task", { type: "search", placeholder: "part of its name" }, "Task"),
      h("label", { class: "field" }, h("span", {}, "Outcome"), bar.outcome),
      h("fieldset", { class: "range" }, h("legend", {}, "Reward"), range("reward_min", "from", "any", soon), range("reward_max", "to", "any", soon)),
      h("fieldset", { class: "range" }, h("legend", {}, "Steps"), range("step_min", "from", "1", soon), range("step_max", "to", "last", soon)),
      bar.clear,
    ),
    bar.words,
  );
}

function range(name, words, placeholder, soon) {
  const what = name.startsWith("reward") ? "Reward" : "Step";
  return input(name, { type: "number", step: "any", placeholder, "aria-label": `${what} ${words}` }, soon);
}

function input(name, props, soon) {
  const element = h("input", {
    spellcheck: "false", autocomplete: "off", maxlength: 200, ...props, class: null,
    oninput: (event) => { filters.values[name] = event.target.value.trim(); soon(); },
  });
  bar.inputs[name] = element;
  return element;
}

function clearFilters() {
  filters.values = { ...NO_FILTERS };
  for (const element of Object.values(bar.inputs)) element.value = "";
  bar.outcome.value = "";
}

/** The filters and the order as the server's query. */
function queryNow() {
  const { step_min: from, step_max: to, ...others } = filters.values;
  const whole = (text) => (text === "" ? "" : Math.max(0, Math.round(Number(text))));
  return { ...others, step_min: whole(from), step_max: whole(to), sort: filters.sort, descending: filters.descending };
}

function isFiltered() {
  return Object.values(filters.values).some((value) => value !== "");
}

/** Lists the runs if there are several. */
function offerRuns(runs) {
  bar.runField.hidden = runs.length < 2;
  if (bar.run.children.length === runs.length) return;
  put(bar.run, runs.map((run) => h("option", { value: run.id }, run.name)));
  bar.run.value = filters.run;
}

/** Shows how many episodes match, and how many are still to be read. */
function sayFound(page) {
  bar.clear.hidden = !isFiltered();
  if (!page) {
    put(bar.words);
    return;
  }
  const words = [isFiltered() ? `${count(page.matches)} of ${plural(page.recorded, "episode")}` : plural(page.matches, "episode")];
  if (page.known < page.recorded) words.push(`reading the records: ${percent(page.known / page.recorded)}`);
  else if (page.searched < 1) words.push(`searching: ${percent(page.searched)}`);
  put(bar.words, words.join(" · "), page.fault ? h("span", { class: "wrong" }, ` · ${page.fault}`) : null);
}

// One episode as a conversation, alone or beside another attempt of its group.

const LONG = 1200; // characters of an observation that are shown at first
const [HEAD_LINES, TAIL_LINES] = [8, 9]; // and lines

const shown = { run: 0, step: 0, place: 0, other: null, key: "" };
const views = new Map(); // by address: an episode that was asked for
const KEPT_VIEWS = 40;

/** Opens an address: `run/step/place`, or `run/step/place/vs/place`. */
async function openEpisode(page, parts) {
  const [run, step, place] = parts.slice(0, 3).map(Number);
  const other = parts[3] === "vs" && parts.length === 5 ? Number(parts[4]) : null;
  const key = parts.join("/");
  Object.assign(shown, { run, step, place, other, key });
  if (![run, step, place, other ?? 0].every(Number.isInteger)) {
    put(page, back(), emptyState("No such episode", "The address names no episode.", null, "fault"));
    return;
  }
  if (!page.children.length || !page.querySelector(".conversation")) put(page, back(), h("div", { class: "card skeleton" }));
  try {
    const found = await Promise.all([episodeAt(run, step, place), other === null ? null : episodeAt(run, step, other)]);
    if (shown.key !== key) return;
    drawEpisode(page, ...found);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (shown.key === key) put(page, back(), emptyState(error.status === 404 ? "No such episode" : "The episode cannot be shown", error.message, null, "fault"));
  }
}

async function episodeAt(run, step, place) {
  const address = `runs/${run}/episodes/${step}/${place}`;
  // A run that is gone on with does steps again: the number of its episodes tells.
  const key = `${address}-${store.runs?.[run]?.episodes ?? 0}`;
  if (!views.has(key)) views.set(key, await ask(address));
  while (views.size > KEPT_VIEWS) views.delete(views.keys().next().value);
  return views.get(key);
}

function back() {
  return h("a", { class: "back", href: "#/episodes" }, "← Episodes");
}

function drawEpisode(page, episode, other) {
  const sampled = [episode, other].some((one) => one?.turns.some((turn) => turn.logprobs.length));
  const shade = h(
    "button",
    {
      type: "button", class: "toggle", "aria-pressed": String(prefs.shading), disabled: !sampled,
      title: sampled ? null : "This episode was recorded without its tokens", onclick: () => setPref("shading", !prefs.shading),
    },
    "Shade tokens",
  );
  const beside = h("button", { type: "button", class: "toggle", "aria-pressed": String(other !== null), disabled: episode.attempts.length < 2, onclick: () => toggleCompare() }, "Side by side");
  put(
    page,
    h("div", { class: "tools" }, back(), h("span", { class: "grow" }), sampled ? legendOfShades() : null, shade, beside),
    h(
      "div",
      { class: "title line" },
      h("h1", {}, episode.task_id),
      other === null ? outcomeChip(episode) : null,
      h("span", { class: "soft" }, `step ${count(episode.step)} · group ${episode.group + 1}${episode.replaced ? " (replaced)" : ""} · ${episode.env_id}`),
    ),
    attemptBar(episode, other),
    other === null ? h("div", { class: "alone" }, h("div", { class: "conversation" }, taskOf(episode), turnsOf(episode, null)), summary(episode)) : besideEachOther(episode, other),
  );
  page.classList.toggle("unshaded", !prefs.shading);
  page.episode = episode;
}

/** The attempts of the group as buttons; side by side, one of them chooses who stands on the right. */
function attemptBar(episode, other) {
  const attempts = episode.attempts.map((attempt, i) => {
    const here = attempt.place === episode.place;
    const there = other !== null && attempt.place === other.place;
    const kind = attempt.failed ? "fault" : attempt.success === true ? "good" : attempt.success === false ? "bad" : "";
    return h(
      "a",
      {
        class: `attempt ${kind} ${here ? "here" : ""} ${there ? "there" : ""}`,
        href: other !== null && !here ? addressOf(episode.place, attempt.place) : addressOf(attempt.place, null),
        "aria-current": here ? "true" : null,
        "aria-label": `Attempt ${i + 1}, reward ${short(attempt.reward)}`,
      },
      h("span", { class: "soft" }, `${i + 1}`),
      h("b", {}, attempt.reward === null ? "–" : signed(attempt.reward)),
    );
  });
  return h("nav", { class: "attempts", "aria-label": "Attempts of this group" }, h("span", { class: "soft" }, plural(attempts.length, "attempt")), attempts);
}

function addressOf(place, other) {
  return `#/episodes/${shown.run}/${shown.step}/${place}${other === null ? "" : `/vs/${other}`}`;
}

/** Puts another attempt beside this one, the one whose reward is farthest away, or takes it away again. */
function toggleCompare() {
  const { episode } = document.querySelector('[data-page="episode"]');
  if (!episode || episode.step !== shown.step || episode.place !== shown.place) return; // it is on its way
  const distance = (attempt) => Math.abs((attempt.reward ?? 0) - (episode.reward ?? 0));
  const others = episode.attempts.filter((attempt) => attempt.place !== episode.place).sort((a, b) => distance(b) - distance(a));
  if (shown.other !== null) go(addressOf(shown.place, null));
  else if (others.length) go(addressOf(shown.place, others[0].place));
}

function besideEachOther(one, two) {
  const same = (a, b) => a !== undefined && b !== undefined && a.reply === b.reply;
  let parting = 0;
  while (same(one.turns[parting], two.turns[parting])) parting++;
  const column = (episode) =>
    h(
      "div",
      { class: "column" },
      h("h2", {}, `Attempt ${episode.attempts.findIndex(({ place }) => place === episode.place) + 1}`, " ", outcomeChip(episode), h("b", { class: "reward" }, signed(episode.reward))),
      h("div", { class: "conversation" }, turnsOf(episode, parting)),
      summary(episode),
    );
  return h("div", { class: "beside" }, h("div", { class: "whole" }, taskOf(one)), column(one), column(two));
}

function taskOf(episode) {
  return said("task", "Task", [], folded(episode.observation));
}

/** The turns; another attempt differs from turn `parting` on. */
function turnsOf(episode, parting) {
  return [
    episode.turns.map((turn, i) => [
      parting === i ? h("p", { class: "parting" }, i === 0 ? "They differ from the first reply" : "They differ from here") : null,
      said("agent", `Turn ${i + 1}`, turnChips(turn), replyText(turn), turn.error ? h("p", { class: "wrong" }, turn.error.message ?? turn.error.kind) : null),
      turn.observation ? said("world", "Environment", [], folded(turn.observation)) : null,
    ]),
    h("p", { class: "ending" }, ENDING_WORDS[episode.ending] ?? episode.ending, episode.error ? h("span", { class: "wrong" }, `: ${episode.error}`) : null),
  ];
}

function said(who, title, chips, ...words) {
  return h("article", { class: `said ${who}` }, h("header", {}, h("b", {}, title), chips), words);
}

function turnChips(turn) {
  const terms = Object.entries(turn.score_terms).filter(([, value]) => value !== 0);
  return [
    turn.error ? chip(String(turn.error.kind ?? "no call").replaceAll("_", " "), "bad") : turn.call ? chip(turn.call.name) : null,
    turn.cut ? chip("cut at the limit", "warn") : null,
    h("span", { class: "grow" }),
    terms.map(([name, value]) => h("span", { class: "term soft" }, `${name.replaceAll("_", " ")} ${signed(value)}`)),
    turn.logprobs.length ? h("span", { class: "soft mean", title: "of the tokens of this reply" }, `mean log-prob ${short(meanOf(turn.logprobs))}`) : null,
    turn.reward ? h("b", { class: `reward ${turn.reward > 0 ? "plus" : "minus"}` }, signed(turn.reward)) : null,
  ];
}

/** A text; the middle of a long one is collapsed, since a task often ends with its question. */
function folded(text) {
  const [from, to] = middleOf(text);
  if (from === to) return h("div", { class: "words" }, text);
  const hidden = text.slice(from, to);
  const lines = hidden.split("\n").length - 1;
  const show = lines > 1 ? `Show ${count(lines)} lines more` : `Show ${count(hidden.length)} characters more`;
  const middle = h("span", { hidden: true }, hidden);
  const more = h("button", { type: "button", class: "more", "aria-expanded": "false", onclick: () => {
    middle.hidden = !middle.hidden;
    more.setAttribute("aria-expanded", String(!middle.hidden));
    put(more, middle.hidden ? show : "Show less");
  } }, show);
  return h("div", { class: "words" }, text.slice(0, from), middle, more, text.slice(to));
}

/** From where to where a long text is folded, at the ends of lines where they are short enough. */
function middleOf(text) {
  const ends = [...text.matchAll(/\n/g)].map(({ index }) => index + 1);
  const [half, size] = [LONG / 2, text.length];
  const from = ends.slice(0, HEAD_LINES).findLast((end) => end > half / 3 && end <= half) ?? ends[HEAD_LINES - 1] ?? half;
  const to = ends.slice(-TAIL_LINES).find((end) => size - end <= half && size - end > half / 3) ?? ends[ends.length - TAIL_LINES] ?? size - half;
  const head = Math.min(from, half);
  const tail = Math.max(to, size - half);
  const lines = ends.filter((end) => end > head && end <= tail).length;
  return tail - head > LONG / 4 || (tail > head && lines > TAIL_LINES) ? [head, tail] : [0, 0];
}

/** The reward of the episode and its parts. */
function summary(episode) {
  const tokens = episode.turns.reduce((sum, turn) => sum + turn.logprobs.length, 0);
  const all = episode.turns.flatMap((turn) => turn.logprobs);
  const versions = [...new Set(episode.turns.flatMap((turn) => turn.versions))].sort((a, b) => a - b);
  const facts = [
    ["Outcome", outcomeChip(episode)],
    ["Turns", count(episode.turns.length)],
    tokens ? ["Tokens sampled", count(tokens)] : null,
    tokens ? ["Mean log-prob", short(meanOf(all))] : null,
    versions.length ? [`Weights`, `version ${versions.join(", ")}`] : null,
    episode.independent_reward !== null ? ["Environment's reward", signed(episode.independent_reward)] : null,
    ["Seed", String(episode.seed)],
  ].filter(Boolean);
  return h(
    "aside",
    { class: "summary", "aria-label": "Summary" },
    h("div", { class: "card" }, h("span", { class: "soft" }, "Reward"), h("b", { class: "big" }, signed(episode.reward)), pairs(facts)),
    numbersCard("Score terms", episode.score_terms, signed),
    Object.entries(episode.judgements).map(([name, judgement]) => judgementCard(name, judgement)),
    episode.unjudged ? h("div", { class: "card" }, h("h3", {}, "Judge"), h("p", { class: "wrong" }, `No judge could score the group: ${episode.unjudged}`)) : null,
    numbersCard("Metrics", episode.metrics, short),
    jsonCard("Facts for judges", episode.facts),
    jsonCard("Tools", episode.tools),
  );
}

function pairs(entries) {
  return h("dl", { class: "pairs" }, entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function numbersCard(title, numbers, words) {
  const entries = Object.entries(numbers);
  return entries.length ? h("div", { class: "card" }, h("h3", {}, title), pairs(entries.map(([name, value]) => [name.replaceAll("_", " "), words(value)]))) : null;
}

function judgementCard(name, judgement) {
  const parts = Object.entries(judgement.parts ?? {});
  return h(
    "div",
    { class: "card judge" },
    h("h3", {}, `Judge: ${name}`, h("b", {}, short(judgement.score))),
    judgement.explanation ? h("blockquote", {}, judgement.explanation) : h("p", { class: "soft" }, "No explanation."),
    parts.length ? pairs(parts.map(([part, value]) => [part, short(value)])) : null,
  );
}

function jsonCard(title, data) {
  const size = Array.isArray(data) ? data.length : Object.keys(data).length;
  return size ? h("details", { class: "card" }, h("summary", {}, title, h("span", { class: "soft" }, ` ${size}`)), h("pre", {}, JSON.stringify(data, null, 1))) : null;
}

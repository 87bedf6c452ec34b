// Short forms of numbers and times.

const MINUS = "−";

/** A number with about three significant digits. */
function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e6) text = `${trim((size / 1e6).toPrecision(3))}M`;
  else if (size >= 1e4) text = `${trim((size / 1e3).toPrecision(3))}k`;
  else if (size >= 100) text = size.toFixed(0);
  else if (size >= 1e-3) text = trim(size.toPrecision(3));
  else text = size.toExponential(1).replace("e-", "e" + MINUS);
  return (value < 0 ? MINUS : "") + text;
}

function trim(text) {
  return String(Number(text));
}

/** A number with its sign. */
function signed(value) {
  return value > 0 ? `+${short(value)}` : short(value);
}

/** A count with thousands separators. */
function count(value) {
  return value.toLocaleString("en-US");
}

/** A share as a percentage. */
function percent(value, digits = 0) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)}%`;
}

/** A duration in words. */
function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${(1000 * seconds).toFixed(0)} ms`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

/** A word and its count: `1 worker`, `3 workers`. */
function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

const OUTCOME_WORDS = {
  success: "success",
  failure: "no success",
  terminated: "ended",
  truncated: "turn limit",
  context_full: "context full",
  env_error: "environment fault",
  policy_error: "policy fault",
  unjudged: "not judged",
  invalid: "invalid calls",
  replaced: "replaced, not learned from",
};

const ENDING_WORDS = {
  terminated: "The environment ended the episode here.",
  truncated: "The turn limit ended the episode.",
  context_full: "The model's context was full.",
  env_error: "The environment failed here",
  policy_error: "The policy failed here",
};

/** How an episode ended, as a chip. */
function outcomeChip(episode) {
  const fault = ["env_error", "policy_error", "unjudged"].includes(episode.ending);
  if (fault) return chip(OUTCOME_WORDS[episode.ending], "fault");
  if (episode.success === true) return chip("success", "good");
  const words = OUTCOME_WORDS[episode.ending] ?? episode.ending;
  if (episode.success === false) return chip(episode.ending === "terminated" ? "no success" : words, "bad");
  return chip(words);
}

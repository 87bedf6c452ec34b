// Turns columns of metrics into points. Pure functions.

const KNOWN = {
  reward: ["Reward", "mean of sampled episodes"],
  success: ["Success", "share of sampled episodes"],
  eval_success: ["Held-out success", "share of evaluated episodes"],
  eval_reward: ["Held-out reward", "mean of evaluated episodes"],
  independent_reward: ["Environment's reward", "reward without the judge"],
  kl: ["KL", "nats per token"],
  sampling_kl: ["KL from the sampler", "nats per token"],
  entropy: ["Entropy", "nats per token"],
  loss: ["Loss", "training objective"],
  policy_loss: ["Policy loss", ""],
  grad_norm: ["Gradient", "norm"],
  learning_rate: ["Learning rate", ""],
  clip_ratio: ["Clipped", "share of the tokens"],
  invalid_actions: ["Invalid actions", "share of the replies"],
  turns: ["Turns", "replies per episode"],
  tokens_per_second: ["Speed", "sampled tokens per second"],
  num_tokens: ["Tokens", "sampled per step"],
  reward_std: ["Reward standard deviation", "within a group"],
  frac_reward_zero_std: ["Zero-variance groups", "share of the groups"],
  failed_groups: ["Failed groups", "per step"],
  "completions/mean_length": ["Tokens per episode", "sampled, mean"],
  "time/rollout": ["Rollout", "seconds per step"],
  "time/update": ["Update", "seconds per step"],
  "staleness/mean": ["Staleness", "versions, mean"],
  "staleness/max": ["Staleness, maximum", "versions"],
};
const DEFAULT_METRICS = ["reward", "success", "eval_success", "eval_reward", "kl", "entropy", "loss", "invalid_actions", "tokens_per_second"];
const SHARES = /^(success|eval_success|invalid_actions|clip_ratio|frac_reward_zero_std)$/;

function labelOf(metric) {
  return KNOWN[metric] ?? [metric.replaceAll("_", " "), ""];
}

/** Formats a metric's value: shares as percentages. */
function valueOf(metric, value) {
  return SHARES.test(metric) && value !== null && Number.isFinite(value) ? percent(value, 1) : short(value);
}

/** Metrics of some tables, known ones first. */
function metricNames(tables) {
  const names = new Set(tables.flatMap((table) => Object.keys(table.columns)));
  names.delete("step");
  const order = Object.keys(KNOWN);
  const rank = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

/** The default metrics. */
function usualCharts(names) {
  return names.filter((name) => DEFAULT_METRICS.includes(name) || /staleness/.test(name));
}

/** The x value of each row: its step, or hours of training. */
function axisOf(table, axis) {
  const steps = table.columns.step ?? Array.from({ length: table.rows }, (_, i) => i + 1);
  if (axis === "step") return steps;
  const part = (name, i) => table.columns[name]?.[i] ?? 0;
  let sum = 0;
  return steps.map((_, i) => (sum += (part("time/rollout", i) + part("time/update", i)) / 3600));
}

/** One run's points: x, raw values, and smoothed ones; rows without a value are left out. */
function pointsOf(table, metric, { axis, smoothing, log }) {
  const xs = [];
  const raw = [];
  const values = table.columns[metric] ?? [];
  const places = axisOf(table, axis);
  for (let i = 0; i < values.length; i++) {
    if (values[i] === null || places[i] === null || (log && values[i] <= 0)) continue;
    // uPlot wants places that grow; a row that stands beside another replaces it.
    if (xs.length && places[i] <= xs[xs.length - 1]) {
      if (places[i] === xs[xs.length - 1]) raw[raw.length - 1] = values[i];
      continue;
    }
    xs.push(places[i]);
    raw.push(values[i]);
  }
  return { xs, raw, smooth: smoothed(raw, smoothing) };
}

/** Bias-corrected exponential moving average. */
function smoothed(values, weight) {
  if (!(weight > 0)) return values;
  let mean = 0;
  let known = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    known = weight * known + (1 - weight);
    return mean / known;
  });
}

/** Whether values differ by no more than the noise of their sums: a constant. */
function isFlat(low, high) {
  return high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
}

const DECADES = 8; // of a log scale; smaller values, mostly zeros with noise, lie below it
const MOST_MARKS = 6;

/** The range of a log scale, with some room. */
function roomyLog(_, low, high) {
  if (!(high > 0)) return [0.1, 1];
  return [Math.max(low > 0 ? low : 0, high / 10 ** DECADES) / 1.15, high * 1.15];
}

/** Where a log scale has marks: at powers of ten, fewer or more of them as there is room. */
function logMarks(low, high) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const apart = Math.ceil((to - from) / MOST_MARKS);
  const steps = high / low < 20 ? [1, 1.5, 2, 3, 5, 7] : high / low < 1000 ? [1, 3] : [1];
  const marks = [];
  for (let power = from; power <= to; power += apart) marks.push(...steps.map((step) => Number(`${step}e${power}`)));
  return marks.filter((mark) => mark >= low && mark <= high);
}

/** The rows of several runs in one table: places, then raw and smooth of each run. */
function tableOf(points) {
  if (points.length === 1) return [points[0].xs, points[0].raw, points[0].smooth];
  return uPlot.join(points.map(({ xs, raw, smooth }) => [xs, raw, smooth]));
}

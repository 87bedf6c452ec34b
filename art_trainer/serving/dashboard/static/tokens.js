// A reply with its tokens shaded: the less likely a token was when it was sampled, the stronger.

const STEPS = [0.05, 0.36, 0.7, 1.6, 3, 4.6]; // nats: 95%, 70%, 50%, 20%, 5%, 1%

/** How strongly a token is shaded, from 0 to 6. */
function shadeOf(logprob) {
  if (logprob === null) return 6;
  const level = STEPS.findIndex((limit) => -logprob <= limit);
  return level < 0 ? STEPS.length : level;
}

/** The words of a turn's reply; with its tokens as spans where their texts are known. */
function replyText(turn) {
  const reply = h("div", { class: "words reply" });
  const { texts, logprobs } = turn;
  if (!texts || texts.length !== logprobs.length) {
    reply.append(turn.reply || h("i", { class: "soft" }, "(nothing)"));
    return logprobs.length ? [reply, strip(logprobs)] : reply;
  }
  const beyond = behind(texts, turn.reply);
  // A token whose characters end in the next one shares that one's span.
  let open = [];
  texts.forEach((text, i) => {
    open.push(i);
    if (text === "") return;
    reply.append(h("span", { class: `t s${Math.max(...open.map((k) => shadeOf(logprobs[k])))} ${i >= beyond ? "after" : ""}`, "data-tokens": open.join(" ") }, text));
    open = [];
  });
  reply.turn = turn;
  return reply;
}

/** The first token that is not part of the reply's own text, such as the one that ends it. */
function behind(texts, reply) {
  let length = 0;
  for (let i = 0; i < texts.length; i++) {
    if (texts[i] !== "" && length >= reply.trimEnd().length && !reply.startsWith(texts[i], length)) return i;
    length += texts[i].length;
  }
  return texts.length;
}

/** A cell for each token, where nobody knows the tokens' texts. */
function strip(logprobs) {
  const cells = h("div", { class: "strip-of-tokens", role: "img", "aria-label": `${plural(logprobs.length, "token")}, mean log-prob ${short(meanOf(logprobs))}` });
  cells.turn = { logprobs };
  logprobs.slice(0, 4000).forEach((logprob, i) => cells.append(h("span", { class: `t s${shadeOf(logprob)}`, "data-tokens": i })));
  return cells;
}

function meanOf(logprobs) {
  const known = logprobs.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** What the shades mean: how likely the token was when it was sampled. */
function legendOfShades() {
  const chances = STEPS.map((limit) => percent(Math.exp(-limit)));
  const words = (i) => (i === 0 ? `${chances[0]} or more` : i === STEPS.length ? `under ${chances[i - 1]}` : `${chances[i]} to ${chances[i - 1]}`);
  const label = `Shade of a token: its probability when sampled, from ${words(0)} (no shade) to ${words(STEPS.length)}`;
  return h(
    "span",
    { class: "shades soft", role: "img", "aria-label": label, title: label },
    `token probability ${chances[0]}`,
    [...chances, ""].map((_, i) => h("i", { class: `t s${i}`, title: words(i) })),
    chances[STEPS.length - 1],
  );
}

/** Shows a token's numbers beside it while it is pointed at, or tapped. */
function listenForTokens(root) {
  const tip = byId("tip");
  const show = (event) => {
    const token = event.target.closest?.("[data-tokens]");
    tip.hidden = !token || !prefs.shading;
    if (tip.hidden) return;
    const { logprobs } = token.parentElement.turn;
    const lines = token.dataset.tokens.split(" ").map((index) => {
      const logprob = logprobs[index];
      const chance = logprob === null ? "not a finite number" : `log-prob ${short(logprob)}, ${chanceOf(logprob)}`;
      return h("div", {}, chance, h("span", { class: "soft" }, ` · token ${Number(index) + 1} of ${logprobs.length}`));
    });
    put(tip, lines);
    const box = token.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
    const above = box.top - tip.offsetHeight - 6;
    tip.style.transform = `translate(${left}px, ${above < 8 ? box.bottom + 6 : above}px)`;
  };
  root.addEventListener("mouseover", show);
  root.addEventListener("click", show);
  root.addEventListener("mouseleave", () => (tip.hidden = true));
  addEventListener("scroll", () => (tip.hidden = true), { passive: true, capture: true });
}

function chanceOf(logprob) {
  const chance = Math.exp(logprob);
  return chance >= 0.01 ? percent(chance, chance > 0.995 && chance < 1 ? 1 : 0) : `1 in ${count(Math.round(1 / chance))}`;
}

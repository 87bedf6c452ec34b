// The training server's side: workers, what waits for them, what they have in hand.

const SERVER_KINDS = { starting: "", evaluating: "good", training: "good", starved: "fault", draining: "warn", finished: "done", failed: "fault" };
const RESULT_KINDS = { accepted: "good", invalid: "bad", wrong_client: "bad", bad_token: "bad", failed: "bad", unplayable: "bad", rejected: "bad", malformed: "bad", expired: "warn", stale: "warn" };
const FRESH_SECONDS = 15;

function health(client) {
  if (!client.connected) return ["disconnected", "bad"];
  if (client.last_seen_seconds > FRESH_SECONDS) return ["no heartbeat", "warn"];
  return ["connected", "good"];
}

function clientSpeed(status) {
  return status.clients.filter((client) => client.connected).reduce((sum, client) => sum + client.episodes_per_second, 0);
}

/** A line of numbers for the overview. */
function drawServerStrip(place) {
  const { status } = store;
  place.hidden = !status;
  if (!status) return;
  const connected = status.clients.filter((client) => client.connected).length;
  const facts = [
    ["Workers", `${connected} of ${status.clients.length}`],
    ["Episodes per second", short(clientSpeed(status))],
    ["Episodes waiting", count(status.queue.waiting)],
    ["Being played", count(status.queue.leased)],
    ["Weights", `version ${status.policy_version}`],
  ];
  putIfNew(place, [facts, status.state], () => [
    h("a", { class: "strip card", href: "#/workers" }, facts.map(([name, value]) => h("span", {}, h("span", { class: "soft" }, name), h("b", {}, value)))),
    status.state === "starved"
      ? h("p", { class: "notice" }, "Episodes are waiting and no worker is connected: start one with ", h("code", {}, "art-trainer worker --server URL"), ".")
      : null,
  ]);
}

function drawWorkers(page) {
  const { status } = store;
  if (!status) {
    putIfNew(page, ["none"], () => emptyState("No training server", "This page shows run folders. Workers belong to a server.", "art-trainer serve"));
    return;
  }
  putIfNew(page, status, () => [
    h(
      "div",
      { class: "title line" },
      h("h1", {}, "Workers"),
      chip(status.state, SERVER_KINDS[status.state]),
      h("span", { class: "soft" }, `${status.run} on ${status.env}, up for ${duration(status.uptime_seconds)}`),
    ),
    queueTiles(status),
    h("section", { "aria-label": "Workers" }, status.clients.length ? clientTable(status.clients) : noWorkers()),
    h("div", { class: "under" }, leaseSection(status), resultSection(status)),
  ]);
}

function noWorkers() {
  return emptyState("No worker has connected yet", "Workers play episodes with the weights of this server.", "art-trainer worker --server URL --token-file FILE", "small");
}

function queueTiles({ queue, clients, policy_version: version }) {
  const facts = [
    ["Waiting", queue.waiting, "episodes nobody plays yet"],
    ["Being played", queue.leased, "leased to workers"],
    ["Finished", queue.finished, "not yet taken by the trainer"],
    ["Groups open", queue.groups_waiting, "not whole yet"],
    ["Weights", version, "newest version"],
    ["Episodes per second", short(clientSpeed({ clients })), "all workers"],
  ];
  return h(
    "div",
    { class: "tiles" },
    facts.map(([name, value, words]) =>
      h("div", { class: "tile card" }, h("span", { class: "soft" }, name), h("b", {}, typeof value === "number" ? count(value) : value), h("span", { class: "soft note" }, words)),
    ),
  );
}

function clientTable(clients) {
  const names = ["Worker", "Health", "Weights", "Leases", "Episodes", "Episodes / s", "Last seen", "Last error"];
  return h(
    "div",
    { class: "card scroll" },
    h(
      "table",
      { class: "clients stack" },
      h("caption", { class: "off" }, "Workers"),
      h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, clients.map(clientRow)),
    ),
  );
}

function clientRow(client) {
  const [word, kind] = health(client);
  const software = Object.entries(client.software).map(([name, version]) => `${name} ${version}`).join(", ");
  const stale = store.status.policy_version - (client.policy_version ?? 0);
  return h(
    "tr",
    {},
    h("th", { scope: "row", title: software }, client.id),
    h("td", {}, chip(word, kind)),
    h("td", { class: "num", "data-label": "Weights" }, client.policy_version ?? "–", client.policy_version !== null && stale > 0 ? h("span", { class: "soft", title: `${plural(stale, "version")} older than the newest` }, ` (${MINUS}${stale})`) : null),
    h("td", { class: "num", "data-label": "Leases" }, count(client.leases)),
    h("td", { class: "num", "data-label": "Episodes" }, count(client.episodes_played)),
    h("td", { class: "num", "data-label": "Episodes / s" }, client.connected ? short(client.episodes_per_second) : "–"),
    h("td", { class: "num soft", "data-label": "Last seen" }, client.last_seen_seconds < 1.5 ? "now" : `${duration(client.last_seen_seconds)} ago`),
    h("td", { class: client.last_error ? "wrong words" : "soft", "data-label": "Last error" }, client.last_error ?? "none"),
  );
}

/** Leases of one worker on one group in one row, those that run out first in front. */
function leaseRows(leases) {
  const rows = new Map();
  for (const { client, group, attempt, seconds_left: left } of leases) {
    const key = JSON.stringify([client, group, attempt]);
    const row = rows.get(key) ?? { client, group, attempt, episodes: 0, left };
    rows.set(key, { ...row, episodes: row.episodes + 1, left: Math.min(row.left, left) });
  }
  return [...rows.values()].sort((a, b) => a.left - b.left);
}

function leaseRow({ client, group, attempt, episodes, left }) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, client),
    h("td", {}, group),
    h("td", { class: "num" }, count(episodes)),
    h("td", { class: "num" }, attempt, attempt > 1 ? [" ", chip("again", "warn")] : null),
    h("td", { class: `num ${left < 5 ? "wrong" : ""}` }, left > 0 ? duration(left) : "now"),
  );
}

function leaseSection({ leases, queue }) {
  const names = ["Worker", "Group", "Episodes", "Try", "Runs out in"];
  return h(
    "section",
    { "aria-labelledby": "leases-title" },
    h("h2", { id: "leases-title" }, "Leases"),
    leases.length
      ? h(
          "div",
          { class: "card scroll short" },
          h(
            "table",
            { class: "leases" },
            h("caption", { class: "off" }, "Leases"),
            h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
            h("tbody", {}, leaseRows(leases).map(leaseRow)),
          ),
        )
      : h("p", { class: "card calm" }, "No episode is being played."),
    queue.leased > leases.length ? h("p", { class: "soft" }, `The ${count(leases.length)} of ${plural(queue.leased, "episode")} that run out first.`) : null,
  );
}

function resultSection({ results }) {
  const entries = Object.entries(results);
  return h(
    "section",
    { "aria-labelledby": "results-title" },
    h("h2", { id: "results-title" }, "Results"),
    entries.length
      ? h("dl", { class: "card results" }, entries.map(([name, number]) => h("div", {}, h("dt", {}, chip(name.replaceAll("_", " "), RESULT_KINDS[name] ?? "")), h("dd", {}, count(number)))))
      : h("p", { class: "card calm" }, "None yet."),
  );
}

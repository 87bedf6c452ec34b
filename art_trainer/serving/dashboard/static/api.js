// Requests. The token, if there is one, stays in this tab's session storage and is sent in
// the Authorization header alone, never in a URL.

const TOKEN = "art-token";

class ServerError extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

let token = sessionStorage.getItem(TOKEN) ?? "";
let asking = null;

/** Asks for the token, once for all waiting requests. */
function askForToken(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("login");
    const words = byId("login-words");
    if (refused) {
      words.textContent = "The server rejected this token. Use the one that it was started with.";
      words.classList.add("wrong");
    }
    byId("login-form").onsubmit = (event) => {
      event.preventDefault();
      token = byId("login-token").value.trim();
      if (!token) return;
      sessionStorage.setItem(TOKEN, token);
      byId("login-token").value = "";
      dialog.close();
      asking = null;
      resolve();
    };
    dialog.oncancel = (event) => event.preventDefault();
    if (!dialog.open) dialog.showModal();
  });
  return asking;
}

async function request(path, options = {}) {
  for (;;) {
    const used = token;
    const headers = used ? { Authorization: `Bearer ${used}` } : {};
    let response;
    try {
      response = await fetch(path, { headers, cache: "no-store", redirect: "error", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "the server does not answer");
    }
    if (response.status === 401) {
      if (used === token) await askForToken(used !== "");
      continue;
    }
    if (response.status === 429) {
      await pause(1000 * Number(response.headers.get("retry-after") ?? 1));
      continue;
    }
    if (!response.ok) throw new ServerError(response.status, await wordsOf(response));
    return response;
  }
}

async function wordsOf(response) {
  try {
    const { error } = await response.json();
    return error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** Returns the JSON of a response. */
async function ask(path, options = {}) {
  const response = await request(`api/${path}`, options);
  return response.json();
}

/** Returns a query string of the fields that are set. */
function queryOf(values) {
  const set = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return new URLSearchParams(set).toString();
}

const SILENCE = 45_000;

/** Reads the stream while the page is open; reports each event and the state of the connection. */
async function listen(onEvent, onLine) {
  let wait = 1000;
  for (;;) {
    const stop = new AbortController();
    let watchdog = 0;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => stop.abort(), SILENCE);
    };
    try {
      alive();
      const response = await request("api/stream", { signal: stop.signal });
      onLine("live");
      for await (const [name, data] of eventsOf(response.body, alive)) {
        wait = 1000;
        onEvent(name, JSON.parse(data));
      }
    } catch (error) {
      if (!(error instanceof ServerError) && !["AbortError", "TypeError"].includes(error.name)) console.error(error);
    }
    clearTimeout(watchdog);
    onLine("lost");
    await pause(wait);
    wait = Math.min(2 * wait, 15_000);
  }
}

/** Server-sent events of a body. */
async function* eventsOf(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    buffer += value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
      if (field("data").length) yield [field("event")[0] ?? "message", field("data").join("\n")];
    }
  }
}

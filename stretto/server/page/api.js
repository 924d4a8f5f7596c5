// The server's API, for the other files of the page. The key, where one is needed, lives in sessionStorage.

const STORED = "stretto-api-key";

let askKey = null;   // (wasWrong) => Promise of a key
let asking = null;   // one question at a time, whoever asks

export function onKeyNeeded(ask) {
  askKey = ask;
}

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function newKey(wasWrong) {
  asking ??= askKey(wasWrong).finally(() => { asking = null; });
  sessionStorage.setItem(STORED, await asking);
}

// The response; asks for the key until it is right. ServerError for what is not 2xx.
async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(STORED);
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "the server does not answer");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw new ServerError(response.status, await messageOf(response));
    // Another question may have brought a new key meanwhile.
    if (sessionStorage.getItem(STORED) === key) await newKey(key !== null);
  }
}

export async function getJson(path) {
  return (await request(path)).json();
}

// Events of a stream, each a parsed object, until its end or `signal`. A ServerError for an error on the way.
export async function* postStream(path, body, signal) {
  const response = await request(path, {
    method: "POST", signal, headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError(0, "the answer was cut off");
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data.startsWith("[DONE]")) return;
      const json = JSON.parse(data);
      if (json.error) throw new ServerError(json.error.code ?? 500, json.error.message);
      yield json;
    }
  }
}

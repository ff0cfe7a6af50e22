// Requests to the server that the page came from.

const KEPT = "omni-key";
const dialog = document.getElementById("ask-key");
let key = sessionStorage.getItem(KEPT) ?? "";
let asking = null;

export class Refused extends Error {
  /** status: of HTTP; 0 if the error came within a stream. */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The response to a request. Asks for a key as often as the server refuses one. Throws Refused for other errors. */
export async function request(path, options = {}) {
  for (;;) {
    const given = key;
    const headers = { ...options.headers };
    if (given) headers.authorization = `Bearer ${given}`;
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    if (response.status !== 401) throw new Refused(response.status, await problemOf(response));
    // Another request may have asked meanwhile.
    if (given === key) await (asking ??= askKey(given !== ""));
    options.signal?.throwIfAborted();
  }
}

export async function json(path) {
  return (await request(path)).json();
}

/** The server-sent events of a response, as values. Ends at the stream's end. Throws Refused for an error in it. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (left + value).split("\n\n");
      left = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (data === "[DONE]") return;
        if (!data) continue;
        const event = JSON.parse(data);
        if (event.error?.message) throw new Refused(0, event.error.message);
        yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function problemOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

function askKey(refused) {
  document.getElementById("key-wrong").hidden = !refused;
  return new Promise((resolve) => {
    const closed = () => {
      key = document.getElementById("key").value.trim();
      if (!key) return dialog.showModal();
      dialog.removeEventListener("close", closed);
      sessionStorage.setItem(KEPT, key);
      asking = null;
      resolve();
    };
    dialog.addEventListener("close", closed);
    dialog.showModal();
  });
}

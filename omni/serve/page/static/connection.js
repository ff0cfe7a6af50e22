// Follows the server's activity while the page is seen, and comes back to it after it was away.

import { events, json, request } from "./api.js";

const FIRST_WAIT = 500; // ms
const LONGEST_WAIT = 5000;

/** Never ends. model: called with /v1/omni/pipeline at each connection. activity: with each event of /v1/omni/activity.
 * state: with "waiting", "up" or "down" and a text. */
export async function follow({ model, activity, state }) {
  let wait = FIRST_WAIT;
  for (;;) {
    await visible();
    const unseen = new AbortController();
    const hide = () => document.hidden && unseen.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      model(await json("/v1/omni/pipeline"));
      for await (const reading of events(await request("/v1/omni/activity", { signal: unseen.signal }))) {
        wait = FIRST_WAIT;
        if (reading.error) state("down", reading.error);
        else state("up", "connected");
        activity(reading);
      }
    } catch (error) {
      if (!unseen.signal.aborted) console.info("the server is away:", error.message);
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    if (unseen.signal.aborted) continue;
    state("down", "the server is away: reconnecting");
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

// Browsers open few connections to a server: tabs that nobody sees must not hold them.
function visible() {
  if (!document.hidden) return null;
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

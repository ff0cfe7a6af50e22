// Follows what the server does, and comes back to it after it was away.

import { events, json, request } from "./api.js";

const FIRST_WAIT = 500; // ms
const LONGEST_WAIT = 5000;

/** Never ends. model: called with /v1/omni/pipeline at each connection. activity: with each event of /v1/omni/activity.
 * state: with "waiting", "up" or "down" and a text. */
export async function follow({ model, activity, state }) {
  let wait = FIRST_WAIT;
  for (;;) {
    try {
      model(await json("/v1/omni/pipeline"));
      for await (const reading of events(await request("/v1/omni/activity"))) {
        wait = FIRST_WAIT;
        if (reading.error) state("down", reading.error);
        else state("up", "connected");
        activity(reading);
      }
    } catch (error) {
      console.info("the server is away:", error.message);
    }
    state("down", "the server is away: reconnecting");
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

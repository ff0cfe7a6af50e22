// The stages of the model as moving lanes: when each has requests, and how fast it works.

import { color, dark, fresh, still } from "./canvas.js";

const SHOWN = 20; // seconds of a lane
const UNITS = [["decode_tokens", "tokens/s"], ["frames", "frames/s"], ["encoded", "items/s"], ["steps", "steps/s"]];

export class Stages {
  #lanes = new Map();
  #moving = false;
  #behind = 0; // seconds of the page's clock beyond the server's

  constructor(list, stages) {
    list.replaceChildren();
    for (const stage of stages) this.#lanes.set(stage.name, new Lane(list, stage));
    dark.addEventListener("change", () => this.#draw());
  }

  /** activity: an event of /v1/omni/activity. */
  push(activity) {
    this.#behind = performance.now() / 1000 - activity.at;
    for (const [name, lane] of this.#lanes) lane.push(activity.at, activity.stages[name]);
    if (!this.#moving) this.#move();
  }

  // Moves on with each frame while there is something to see; otherwise readings alone draw.
  #move() {
    this.#draw();
    this.#moving = !still.matches && [...this.#lanes.values()].some((lane) => lane.seen);
    if (this.#moving) requestAnimationFrame(() => this.#move());
  }

  #draw() {
    const now = performance.now() / 1000 - this.#behind;
    for (const lane of this.#lanes.values()) lane.draw(now);
  }
}

class Lane {
  #item;
  #now;
  #canvas;
  #readings = [];
  #most = 1;

  constructor(list, stage) {
    this.#item = document.createElement("li");
    this.#item.dataset.stage = stage.name;
    const head = this.#item.appendChild(document.createElement("div"));
    head.className = "head";
    for (const [name, text] of [["name", stage.name], ["kind faint", stage.kind], ["now", "idle"]]) {
      const part = head.appendChild(document.createElement("span"));
      part.className = name;
      part.textContent = text;
    }
    this.#now = head.lastChild;
    this.#canvas = this.#item.appendChild(document.createElement("canvas"));
    this.#canvas.setAttribute("aria-hidden", "true");
    list.append(this.#item);
  }

  /** Whether a reading within sight is not idle. */
  get seen() {
    return this.#readings.some((reading) => reading.busy);
  }

  push(at, stage) {
    const usage = stage?.usage ?? {};
    const rates = stage?.rates ?? {};
    const [name, unit] = UNITS.find(([name]) => name in rates) ?? [null, null];
    const requests = usage.requests ?? 0;
    const prefill = (rates.prefill_tokens ?? 0) > 0;
    const rate = name === null ? requests : rates[name];
    const busy = requests > 0 || rate > 0 || prefill;
    this.#readings.push({ at, rate, busy, prefill });
    while (this.#readings[0].at < at - SHOWN - 1) this.#readings.shift();
    this.#most = Math.max(1, ...this.#readings.map((reading) => reading.rate));
    this.#item.dataset.busy = busy;
    this.#now.textContent = busy ? describe(requests, rate, unit) : "idle";
  }

  draw(now) {
    const { context, width, height } = fresh(this.#canvas);
    const x = (at) => width * (1 - (now - at) / SHOWN);
    const y = (rate) => height - 3 - (rate / this.#most) * (height - 9);
    const readings = this.#readings;
    const [accent, soft] = [color("accent"), color("accent-soft")];
    for (let i = 1; i < readings.length; i++) {
      const [from, to] = [x(readings[i - 1].at), x(readings[i].at)];
      if (readings[i].busy) {
        context.fillStyle = soft;
        context.fillRect(from, 0, to - from + 0.5, height);
      }
      if (readings[i].rate > 0) {
        context.fillStyle = accent;
        context.globalAlpha = 0.85;
        const top = y(readings[i].rate);
        context.fillRect(from, top, Math.max(to - from - 1, 1), height - top);
        context.globalAlpha = 1;
      } else if (readings[i].prefill) {
        context.fillStyle = accent;
        context.fillRect(from, height - 4, to - from, 4);
      }
    }
    context.fillStyle = color("line");
    context.fillRect(0, height - 1, width, 1);
  }
}

function describe(requests, rate, unit) {
  const parts = [];
  if (unit !== null && rate > 0) parts.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} ${unit}`);
  if (requests > 0) parts.push(`${requests} ${requests === 1 ? "request" : "requests"}`);
  return parts.join(" · ") || "prefill";
}

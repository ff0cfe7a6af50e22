// The loudness of sound over time, as bars; those that were played are in color.

import { color, dark, fresh } from "./canvas.js";

const BUCKET = 0.02; // seconds of a peak
const STEP = 4; // pixels from bar to bar
const SHORTEST = 3; // seconds that fill the width at least

export class Waveform {
  seconds = 0;
  #canvas;
  #peaks = [];
  #peak = 0;
  #count = 0;
  #played = Infinity;
  #asked = false;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    dark.addEventListener("change", () => this.draw());
  }

  add(samples, rate) {
    const most = Math.round(rate * BUCKET);
    for (const sample of samples) {
      this.#peak = Math.max(this.#peak, Math.abs(sample));
      if (++this.#count === most) {
        this.#peaks.push(this.#peak);
        this.#peak = this.#count = 0;
      }
    }
    this.seconds += samples.length / rate;
    this.draw();
  }

  /** seconds: how far it was played; Infinity is all. */
  set played(seconds) {
    this.#played = seconds;
    this.draw();
  }

  draw() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#draw();
    });
  }

  #draw() {
    const { context, width, height } = fresh(this.#canvas);
    const bars = Math.floor(width / STEP);
    const shown = Math.max(this.#peaks.length, SHORTEST / BUCKET);
    const loudest = Math.max(0.05, ...this.#peaks.slice(-20000));
    const [done, waiting] = [color("accent"), color("line")];
    for (let bar = 0; bar < bars; bar++) {
      const [from, to] = [Math.floor((bar * shown) / bars), Math.ceil(((bar + 1) * shown) / bars)];
      const peak = Math.max(0, ...this.#peaks.slice(from, to));
      const high = Math.max(2, (peak / loudest) * (height - 6));
      context.fillStyle = from < this.#peaks.length && from * BUCKET < this.#played ? done : waiting;
      context.beginPath();
      context.roundRect(bar * STEP, (height - high) / 2, STEP - 1.5, high, 1.2);
      context.fill();
    }
  }
}

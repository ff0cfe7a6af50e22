// Plays one answer at a time, without a gap while the server is faster than the sound.

import { RATE } from "./pcm.js";

export class Player {
  #context = null;
  #node = null;
  #turn = 0;
  #listener = null;
  #opening = null;
  #replayed = null;

  /** Browsers make sound only after a click or a key: call this in its handler. Does not wait for the device, which may be busy:
   * what comes meanwhile is played when it is there. */
  open() {
    this.#context ??= new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
    this.#context.resume();
    return (this.#opening ??= this.#load());
  }

  /** Begins an answer; the one that still plays stops. listener: gets {played, ready, least} in seconds, {underruns, playing, finished}. */
  begin(listener) {
    this.stop();
    this.#listener = listener;
    return this.#turn;
  }

  push(turn, samples) {
    if (turn === this.#turn) this.#node.port.postMessage({ turn, samples });
  }

  /** No more samples come; those that wait are still played. */
  end(turn) {
    if (turn === this.#turn) this.#node.port.postMessage({ turn, end: true });
  }

  /** Silence, at once. */
  stop() {
    this.#turn += 1;
    this.#listener = null;
    this.#replayed?.stop();
    this.#replayed = null;
    this.#node?.port.postMessage({ turn: this.#turn });
  }

  /** Plays whole sound again. listener: gets its position in seconds, null at the end. */
  async replay(samples, rate, listener) {
    await this.open();
    this.stop();
    const source = this.#context.createBufferSource();
    source.buffer = this.#context.createBuffer(1, samples.length, rate);
    source.buffer.copyToChannel(samples, 0);
    source.connect(this.#context.destination);
    const began = this.#context.currentTime;
    const timer = setInterval(() => listener(this.#context.currentTime - began), 40);
    source.onended = () => {
      clearInterval(timer);
      listener(null);
    };
    source.start();
    this.#replayed = source;
  }

  async #load() {
    await this.#context.audioWorklet.addModule("/page/player-worklet.js");
    this.#node = new AudioWorkletNode(this.#context, "omni-player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.#node.port.onmessage = ({ data }) => {
      if (data.turn === this.#turn) this.#listener?.(data);
    };
    this.#node.port.postMessage({ turn: this.#turn });
    this.#node.connect(this.#context.destination);
  }
}

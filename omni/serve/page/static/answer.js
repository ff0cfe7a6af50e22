// One answer: the request, and its events as they come.

import { events, request } from "./api.js";
import { joined, PcmReader, RATE } from "./pcm.js";

export class Answer {
  text = "";
  firstText = null; // ms
  firstAudio = null; // ms
  rtf = null;
  tokens = null;
  sound = { least: null, underruns: 0, played: 0, finished: true };
  #controller = new AbortController();
  #chunks = [];
  #seconds = 0;

  /** body: of a chat. turn: an AnswerTurn. player: open, if sound is asked for. changed: called when a figure may have changed. */
  constructor(body, turn, player, changed) {
    this.body = body;
    this.turn = turn;
    this.player = player;
    this.changed = changed;
  }

  /** Ends the request, which frees it on the server, and the sound. */
  stop() {
    this.#controller.abort();
    this.player.stop();
  }

  get stopped() {
    return this.#controller.signal.aborted;
  }

  /** Ends when the whole answer came; its sound may still play. Throws the request's errors. */
  async run() {
    const speaks = this.body.modalities.includes("audio");
    const began = performance.now();
    const pcm = new PcmReader();
    const play = speaks ? this.player.begin((sound) => this.#heard(sound)) : null;
    try {
      const response = await request("/v1/chat/completions", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(this.body),
        signal: this.#controller.signal,
      });
      for await (const chunk of events(response)) this.#take(chunk, performance.now() - began, pcm, play);
    } finally {
      if (speaks) this.player.end(play);
    }
  }

  #take(chunk, at, pcm, play) {
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const delta = chunk.choices[0]?.delta;
    const text = delta?.content || delta?.audio?.transcript;
    if (text) {
      this.firstText ??= at;
      this.text += text;
      this.turn.write(text);
    }
    if (delta?.audio?.data) this.#hear(pcm.push(delta.audio.data), at, play);
    this.changed(this);
  }

  #hear(samples, at, play) {
    if (!samples.length) return;
    this.firstAudio ??= at;
    this.sound.finished = false;
    this.#chunks.push(samples);
    this.#seconds += samples.length / RATE;
    this.rtf = at / 1000 / this.#seconds;
    const wave = this.turn.sound(this.player, () => ({ samples: joined(this.#chunks), rate: RATE }));
    wave.add(samples, RATE);
    this.turn.show(this.sound.played);
    this.player.push(play, samples);
  }

  #heard(sound) {
    this.sound = sound;
    if (this.turn.wave) this.turn.show(sound.finished ? Infinity : sound.played);
    this.changed(this);
  }
}

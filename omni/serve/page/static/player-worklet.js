// Plays samples as they come, on the audio thread. A ring buffer holds those that wait; it grows where a server is far ahead.

const LEAD = 0.12; // seconds that are ready before the first sample plays
const LONGEST_LEAD = 1;

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ring = new Float32Array(sampleRate * 4);
    this.reset(0);
    this.port.onmessage = ({ data }) => {
      if (data.samples) {
        if (data.turn === this.turn) this.push(data.samples);
      } else if (data.end) {
        if (data.turn === this.turn) this.ended = true;
      } else {
        this.reset(data.turn);
      }
    };
  }

  // turn: whose samples are played from now on. The rest of another is dropped.
  reset(turn) {
    this.turn = turn;
    this.first = 0;
    this.count = 0;
    this.played = 0;
    this.underruns = 0;
    this.least = null; // samples that were ready at the worst moment: all, if all came before the first played
    this.playing = false;
    this.ended = false;
    this.said = false;
    this.lead = LEAD * sampleRate;
    this.quanta = 0;
  }

  push(samples) {
    if (this.count + samples.length > this.ring.length) this.grow(this.count + samples.length);
    const at = (this.first + this.count) % this.ring.length;
    const fits = Math.min(samples.length, this.ring.length - at);
    this.ring.set(samples.subarray(0, fits), at);
    this.ring.set(samples.subarray(fits), 0);
    this.count += samples.length;
  }

  grow(needed) {
    let length = this.ring.length;
    while (length < needed) length *= 2;
    const ring = new Float32Array(length);
    for (let i = 0; i < this.count; i++) ring[i] = this.ring[(this.first + i) % this.ring.length];
    this.ring = ring;
    this.first = 0;
  }

  process(_, [[out]]) {
    if (!this.playing && this.count > 0 && (this.ended || this.count >= this.lead)) this.playing = true;
    if (this.playing) this.take(out);
    if (this.quanta++ % 8 === 0 || (this.ended && this.count === 0 && !this.said)) this.report();
    return true;
  }

  take(out) {
    const taken = Math.min(out.length, this.count);
    this.least ??= this.count;
    for (let i = 0; i < taken; i++) out[i] = this.ring[(this.first + i) % this.ring.length];
    this.first = (this.first + taken) % this.ring.length;
    this.count -= taken;
    this.played += taken;
    if (this.ended) {
      if (this.count === 0) this.playing = false;
      return;
    }
    this.least = Math.min(this.least, this.count);
    if (taken < out.length) {
      // The listener hears a gap now. A longer lead makes the next one less likely.
      this.underruns += 1;
      this.playing = false;
      this.lead = Math.min(2 * this.lead, LONGEST_LEAD * sampleRate);
    }
  }

  report() {
    if (this.said) return;
    this.said = this.ended && this.count === 0;
    const { turn, played, underruns, least, playing } = this;
    this.port.postMessage({
      turn, underruns, playing,
      finished: this.said,
      played: played / sampleRate,
      ready: this.count / sampleRate,
      least: least === null ? null : least / sampleRate,
    });
  }
}

registerProcessor("omni-player", Player);

// Sound as samples: float32, mono, -1 to 1.

export const RATE = 24000; // Hz, of pcm16 in answers

/** Base64 of 16-bit little-endian samples, in slices that may cut a sample in two. */
export class PcmReader {
  #odd = null;

  push(base64) {
    const text = atob(base64);
    const skipped = this.#odd === null ? 0 : 1;
    const bytes = new Uint8Array(text.length + skipped);
    if (skipped) bytes[0] = this.#odd;
    for (let i = 0; i < text.length; i++) bytes[i + skipped] = text.charCodeAt(i);
    const count = bytes.length >> 1;
    this.#odd = bytes.length % 2 ? bytes[bytes.length - 1] : null;
    const view = new DataView(bytes.buffer);
    const samples = new Float32Array(count);
    for (let i = 0; i < count; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
    return samples;
  }
}

export function joined(chunks) {
  const all = new Float32Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

/** A wav file of 16-bit samples. */
export function wav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const tag = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  tag(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  tag(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  tag(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => {
    view.setInt16(44 + 2 * i, Math.round(Math.max(-1, Math.min(1, sample)) * 32767), true);
  });
  return new Blob([view], { type: "audio/wav" });
}

/** A blob as a data URI. */
export function dataUri(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

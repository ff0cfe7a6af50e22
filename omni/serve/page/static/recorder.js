// Records one turn from the microphone.

import { joined } from "./pcm.js";

export class Recorder {
  #stream;
  #context;
  #node;
  #chunks = [];

  /** onsamples: gets samples and the rate as they come. Throws an Error that can be shown. */
  static async start(onsamples) {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("The browser gives the microphone to pages from this machine or over HTTPS only.");
    }
    const recorder = new Recorder();
    try {
      await recorder.#open(onsamples);
    } catch (error) {
      recorder.#close();
      const why = { NotAllowedError: "it is not allowed", NotFoundError: "there is none" }[error.name] ?? error.message;
      throw new Error(`The microphone cannot be used: ${why}.`);
    }
    return recorder;
  }

  /** The samples and their rate in Hz. The microphone is free afterwards. */
  async stop() {
    await new Promise((resolve) => {
      this.ended = resolve;
      this.#node.port.postMessage("stop");
    });
    const rate = this.#context.sampleRate;
    this.#close();
    return { samples: joined(this.#chunks), rate };
  }

  async #open(onsamples) {
    const wanted = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    this.#stream = await navigator.mediaDevices.getUserMedia({ audio: wanted });
    // At the device's rate: the server resamples.
    this.#context = new AudioContext();
    await this.#context.audioWorklet.addModule("/page/recorder-worklet.js");
    this.#node = new AudioWorkletNode(this.#context, "omni-recorder", { numberOfOutputs: 0 });
    this.#node.port.onmessage = ({ data }) => {
      this.#chunks.push(data.samples);
      if (data.last) this.ended?.();
      else onsamples(data.samples, this.#context.sampleRate);
    };
    this.#context.createMediaStreamSource(this.#stream).connect(this.#node);
  }

  #close() {
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#context?.close();
  }
}

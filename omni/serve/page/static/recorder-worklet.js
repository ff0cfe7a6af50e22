// Gives the microphone's samples to the page, mono.

const LENGTH = 2048;

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.chunk = new Float32Array(LENGTH);
    this.count = 0;
    this.stopped = false;
    this.port.onmessage = () => {
      this.port.postMessage({ samples: this.chunk.slice(0, this.count), last: true });
      this.stopped = true;
    };
  }

  process([channels]) {
    if (this.stopped) return false;
    for (let i = 0; i < (channels[0]?.length ?? 0); i++) {
      this.chunk[this.count++] = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
      if (this.count === LENGTH) {
        this.port.postMessage({ samples: this.chunk.slice() });
        this.count = 0;
      }
    }
    return true;
  }
}

registerProcessor("omni-recorder", Recorder);

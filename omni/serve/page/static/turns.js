// The turns of a chat, as they are shown.

import { Waveform } from "./waveform.js";

function element(name, className, parent) {
  const made = document.createElement(name);
  made.className = className;
  parent.append(made);
  return made;
}

class Turn {
  constructor(list, role) {
    document.getElementById("empty").hidden = true;
    this.list = list;
    this.box = element("article", `turn ${role}`, list);
    this.box.setAttribute("aria-label", role === "user" ? "You" : "Answer");
    this.wave = null;
  }

  /** The waveform, made when the first sound comes. */
  sound(player, whole) {
    if (this.wave) return this.wave;
    const line = element("div", "wave", this.box);
    const again = element("button", "quiet again", line);
    again.type = "button";
    again.setAttribute("aria-label", "Play again");
    again.onclick = () => {
      const { samples, rate } = whole();
      player.replay(samples, rate, (seconds) => this.show(seconds ?? Infinity));
    };
    const canvas = element("canvas", "", line);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Waveform");
    this.time = element("output", "", line);
    this.wave = new Waveform(canvas);
    return this.wave;
  }

  /** seconds: how far the sound was played. */
  show(seconds) {
    this.wave.played = seconds;
    const all = this.wave.seconds.toFixed(1);
    this.time.textContent = seconds >= this.wave.seconds ? `${all} s` : `${seconds.toFixed(1)} / ${all} s`;
  }

  follow() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}

export class UserTurn extends Turn {
  /** sent: {text, pictures, sound}. pictures: data URIs as `src` for images. sound: {samples, rate}, or null. */
  constructor(list, player, sent) {
    super(list, "user");
    if (sent.pictures.length) {
      const row = element("div", "pictures", this.box);
      for (const picture of sent.pictures) {
        const image = element("img", "", row);
        image.src = picture.shown;
        image.alt = picture.name;
        image.onload = () => this.follow();
      }
    }
    if (sent.sound) {
      this.sound(player, () => sent.sound).add(sent.sound.samples, sent.sound.rate);
      this.show(Infinity);
    }
    if (sent.text) element("div", "text", this.box).textContent = sent.text;
    this.follow();
  }
}

export class AnswerTurn extends Turn {
  #written = document.createTextNode("");
  #waiting = "";

  constructor(list) {
    super(list, "assistant");
    this.box.setAttribute("aria-busy", "true");
    this.box.dataset.state = "running";
    element("div", "text", this.box).append(this.#written);
    this.foot = element("div", "foot", this.box);
  }

  /** Shown with the next frame: to lay a long text out for each token would hold up the page. */
  write(text) {
    if (!this.#waiting) requestAnimationFrame(() => this.#flush());
    this.#waiting += text;
  }

  #flush() {
    if (!this.#waiting) return;
    const near = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 80;
    this.#written.appendData(this.#waiting);
    this.#waiting = "";
    if (near) this.follow();
  }

  sound(player, whole) {
    const had = this.wave !== null;
    const wave = super.sound(player, whole);
    if (!had) {
      this.box.append(this.foot);
      this.follow();
    }
    return wave;
  }

  /** state: "done", "stopped" or "failed". again: asks once more, if it failed. */
  end(state, note, again) {
    this.#flush();
    this.box.dataset.state = state;
    this.box.setAttribute("aria-busy", "false");
    if (note) {
      const said = element("span", state === "failed" ? "bad" : "", this.foot);
      said.textContent = note;
    }
    if (again) {
      const button = element("button", "retry", this.foot);
      button.type = "button";
      button.textContent = "Try again";
      button.onclick = () => {
        this.box.remove();
        again();
      };
    }
    this.follow();
  }
}

// The page: the user's actions, and the chat that comes of them.

import { Answer } from "./answer.js";
import { follow } from "./connection.js";
import { showFigures } from "./figures.js";
import { dataUri, wav } from "./pcm.js";
import { Pictures } from "./pictures.js";
import { Player } from "./player.js";
import { Recorder } from "./recorder.js";
import { Stages } from "./stages.js";
import { AnswerTurn, UserTurn } from "./turns.js";
import { Waveform } from "./waveform.js";

const at = (id) => document.getElementById(id);
const player = new Player();
const pictures = new Pictures(complain);
let model = null;
let stages = null;
let shape = null;
let history = []; // messages of turns that were answered
let answer = null; // the one under way, or whose sound plays
let streaming = false;
let recording = null; // {recorder, wave}

// The model, and the stages.

function meet(description) {
  model = description;
  at("model").textContent = description.model;
  document.title = `${description.model} – omni`;
  document.body.classList.toggle("silent", !description.modalities.includes("audio"));
  document.body.classList.toggle("no-media", !description.takes_media);
  const same = JSON.stringify(description);
  if (same === shape) return;
  shape = same;
  stages = new Stages(at("stages"), description.stages);
  const chosen = at("voice").value;
  at("voice").replaceChildren(...description.voices.map((name) => new Option(name, name)));
  if (description.voices.includes(chosen)) at("voice").value = chosen;
  at("voice").parentElement.hidden = description.voices.length === 0;
}

follow({
  model: meet,
  state(name, text) {
    const status = at("connection");
    if (status.dataset.state !== name || status.textContent !== text) {
      status.dataset.state = name;
      status.textContent = text;
    }
  },
  activity(reading) {
    stages.push(reading);
    const count = reading.in_flight;
    const text = count === 0 ? "No answer under way" : `${count} ${count === 1 ? "answer" : "answers"} under way`;
    if (at("under-way").textContent !== text) at("under-way").textContent = text;
  },
});

// Turns.

function complain(text) {
  at("notice").textContent = text;
  at("notice").hidden = !text;
}

function speaks() {
  if (!model.modalities.includes("audio")) return false;
  return at("speak").checked || !model.modalities.includes("text");
}

async function messageOf({ text, pictures, sound }) {
  const content = pictures.map(({ uri }) => ({ type: "image_url", image_url: { url: uri } }));
  if (sound) {
    const data = (await dataUri(wav(sound.samples, sound.rate))).split(",")[1];
    content.push({ type: "input_audio", input_audio: { data, format: "wav" } });
  }
  if (text) content.push({ type: "text", text });
  return { role: "user", content };
}

/** Sends a turn. sound: {samples, rate}, or null. */
async function send(sound) {
  const sent = { text: at("text").value.trim(), pictures: pictures.take(), sound };
  if (!sent.text && !sent.pictures.length && !sound) return;
  if (model === null) return complain("The server is not there yet.");
  at("text").value = "";
  grow();
  new UserTurn(at("turns"), player, sent);
  await ask(await messageOf(sent));
}

function bodyFor(message) {
  const system = at("system").value.trim();
  const tokens = at("tokens").valueAsNumber;
  const body = {
    model: model.model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...history, message],
    modalities: model.modalities.filter((name) => name === "text" || (name === "audio" && speaks())),
    stream: true,
    stream_options: { include_usage: true },
  };
  if (tokens > 0) body.max_completion_tokens = tokens;
  if (speaks()) body.audio = { format: "pcm16", ...(model.voices.length ? { voice: at("voice").value } : {}) };
  return body;
}

async function ask(message) {
  stop();
  const mine = new Answer(bodyFor(message), new AnswerTurn(at("turns")), player, show);
  answer = mine;
  streaming = true;
  show(mine);
  complain("");
  try {
    if (mine.body.audio) await player.open();
    await mine.run();
    mine.turn.end("done", note(mine));
  } catch (error) {
    if (mine.stopped) mine.turn.end("stopped", "stopped");
    else mine.turn.end("failed", error.message || "the connection ended", () => ask(message));
  }
  if (mine.text) history.push(message, { role: "assistant", content: mine.text });
  if (answer === mine) streaming = false;
  show(mine);
}

function note(of) {
  const heard = of.firstAudio === null ? "" : ` · RTF ${of.rtf.toFixed(2)}`;
  const first = of.firstAudio ?? of.firstText;
  return first === null ? "no answer" : `${of.firstAudio === null ? "first text" : "first audio"} ${Math.round(first)} ms${heard}`;
}

function show(of) {
  if (of !== answer) return;
  showFigures(of);
  const busy = streaming || !of.sound.finished;
  at("stop").hidden = !busy;
  at("send").hidden = busy && !at("text").value.trim();
}

function stop() {
  if (answer === null) return;
  answer.stop();
  answer.sound.finished = true;
  streaming = false;
  show(answer);
}

// The microphone.

async function talk() {
  if (recording) return finish(true);
  stop();
  complain("");
  at("talk").disabled = true;
  try {
    // While this is a click's handler: the answer's sound may play later.
    await player.open();
    at("recording").hidden = false;
    const wave = new Waveform(at("level"));
    const recorder = await Recorder.start((samples, rate) => {
      wave.add(samples, rate);
      at("seconds").textContent = `${wave.seconds.toFixed(1)} s`;
    });
    recording = { recorder, wave };
    at("talk").setAttribute("aria-pressed", "true");
    at("talk").setAttribute("aria-label", "Send what was said");
  } catch (error) {
    at("recording").hidden = true;
    complain(error.message);
  }
  at("talk").disabled = false;
}

async function finish(sends) {
  const { recorder } = recording;
  recording = null;
  at("recording").hidden = true;
  at("talk").setAttribute("aria-pressed", "false");
  at("talk").setAttribute("aria-label", "Talk");
  const sound = await recorder.stop();
  if (sends && sound.samples.length) await send(sound);
}

// The user's actions.

function grow() {
  const text = at("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
  if (answer) show(answer);
}

at("text").oninput = grow;
at("text").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("composer").requestSubmit();
  }
};
at("composer").onsubmit = (event) => {
  event.preventDefault();
  if (recording) finish(true);
  else send(null);
};
at("talk").onclick = talk;
at("discard").onclick = () => finish(false);
at("stop").onclick = stop;
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || at("ask-key").open) return;
  if (recording) finish(false);
  else stop();
});
at("clear").onclick = () => {
  stop();
  history = [];
  at("turns").replaceChildren(at("empty"));
  at("empty").hidden = false;
  at("text").focus();
};
at("text").focus();

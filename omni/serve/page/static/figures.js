// The figures of an answer.

const ms = (value) => (value === null ? "–" : `${Math.round(value).toLocaleString("en")} ms`);

/** Shows the figures of an Answer. */
export function showFigures(answer) {
  const show = (id, text) => (document.getElementById(id).textContent = text);
  show("first-text", ms(answer.firstText));
  show("first-audio", ms(answer.firstAudio));
  show("rtf", answer.rtf === null ? "–" : answer.rtf.toFixed(2));
  show("slack", ms(answer.sound.least === null ? null : 1000 * answer.sound.least));
  show("underruns", answer.firstAudio === null ? "–" : String(answer.sound.underruns));
  show("used", answer.tokens === null ? "–" : answer.tokens.toLocaleString("en"));
}

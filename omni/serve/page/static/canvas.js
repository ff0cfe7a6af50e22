// Canvases that are sharp on every screen, and the page's colors.

/** The canvas's 2D context, and its size in CSS pixels. Clears it. */
export function fresh(canvas) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** A color of the style sheet, as it is now: light or dark. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export const dark = window.matchMedia("(prefers-color-scheme: dark)");
export const still = window.matchMedia("(prefers-reduced-motion: reduce)");

// How the state of a part of the system looks.

import { sign } from "../../parts.js";

const TONES = /** @type {Record<string, [string, string]>} */ ({
  error: ["red", "▲"],
  warning: ["amber", "↻"],
  ok: ["done", "✓"],
});

/** @param {string} status @param {string} [text] */
export const told = (status, text) =>
  sign(TONES[status]?.[1] ?? "·", text ?? status, `tone-${TONES[status]?.[0] ?? "wait"}`);

// Payloads: the exact text of what was recorded. It is never read as JSON here, which would round large numbers.

import { api } from "./api.js";
import { show } from "./dialog.js";
import { h } from "./dom.js";
import { announce, copy } from "./parts.js";
import { bytes } from "./words.js";

/** @typedef {{text: string | null, bytes: number, decoded: boolean, truncated?: boolean, reason?: string, message?: string}} Shown */

const SHORT = 72;
/** @type {WeakMap<object, string>} what was laid out before: views are drawn every second */
const laidOut = new WeakMap();

/**
 * A payload, or why it is not shown. `label` names it; `more` is a node that leads to the rest of it.
 * @param {any} shown @param {string} label @param {{app: any, more?: any}} how
 */
export function payload(shown, label, { app, more }) {
  if (!app.session.payloads) return note(label, "hidden: you are signed in without the right to read payloads");
  if (shown === null || shown === undefined) return note(label, "none");
  if (!shown.decoded) return [note(label, `cannot be decoded: ${shown.message ?? ""} (${shown.reason}, ${bytes(shown.bytes)})`, true), more];
  let text = laidOut.get(shown);
  if (text === undefined) laidOut.set(shown, (text = shown.truncated ? shown.text : pretty(shown.text)));
  return h("figure", { class: "shown" },
    h("figcaption", { class: "caption" }, label, h("span", { class: "third" }, ` ${bytes(shown.bytes)}`), copy(shown.text, label),
      shown.truncated ? [`the first ${bytes(shown.text.length)} `, more] : null),
    h("pre", { class: "payload", tabindex: "0", "aria-label": label }, text));
}

/** @param {string} label @param {string} says @param {boolean} [wrong] */
const note = (label, says, wrong) => h("p", { class: "caption" }, `${label}: `, h("span", { class: wrong ? "tone-amber" : "third" }, says));

/** JSON with lines and indents, every value as it stands. @param {string} text */
export function pretty(text) {
  if (text.length <= SHORT) return text;
  // Empty pairs and strings whole, then marks, then everything else up to the next of them.
  const parts = text.match(/\{\s*\}|\[\s*\]|"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^"{}[\],:\s]+/gs) ?? [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  return parts.map((part) => {
    if (part === "{" || part === "[") return (depth += 1), part + line();
    if (part === "}" || part === "]") return (depth -= 1), line() + part;
    return part === "," ? part + line() : part === ":" ? ": " : part;
  }).join("");
}

/** A button that downloads what the API answers at `path`: a plain link cannot send the version. @param {string} label @param {string} path @param {string} name @param {any} [props] */
export const saver = (label, path, name, props) =>
  h("button", { type: "button", ...props, on: { click: (/** @type {any} */ event) => void save(event.currentTarget, path, name) } }, label);

/** @param {HTMLButtonElement} button @param {string} path @param {string} name */
async function save(button, path, name) {
  button.disabled = true;
  announce(`downloading ${name}`);
  try {
    const answer = await fetch(path, { headers: { "X-Durable-Workflow-Control-Plane-Version": "2", "X-Namespace": api.namespace }, cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.json()).message);
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(await answer.blob());
    anchor.download = name.replace(/[^\w.-]+/g, "_").slice(-120);
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
    announce("downloaded");
  } catch (error) {
    show("It was not downloaded", ({ close }) => [h("p", null, String(/** @type {any} */ (error)?.message)), h("div", { class: "buttons" }, h("button", { type: "button", on: { click: close } }, "Close"))]);
  }
  button.disabled = false;
}

// Payloads: the exact text of what was recorded. It is never read as JSON here, which would round large numbers.
/** @import { App } from "./main.js" */

import { api } from "./api.js";
import { show } from "./dialog.js";
import { h } from "./dom.js";
import { announce, copy } from "./parts.js";
import { bytes } from "./words.js";

export const HIDDEN = "hidden: your session may not read payloads";
/** @type {WeakMap<object, string>} what was laid out before: views are drawn every second */
const known = new WeakMap();

/**
 * A payload, or the reason why it is hidden. `more` leads to the rest of it.
 * @param {any} shown @param {string} label @param {App} app @param {any} more
 */
export function payload(shown, label, app, more) {
  const note = (/** @type {string} */ says, /** @type {any} */ look) =>
    h("p", { class: "caption" }, `${label}: `, h("span", { class: look }, says));
  if (!app.session.payloads) return note(HIDDEN, null);
  if (!shown) return note("none", null);
  if (!shown.decoded)
    return [
      note(`cannot be decoded: ${shown.message ?? ""} (${shown.reason}, ${bytes(shown.bytes)})`, "tone-amber"),
      more,
    ];
  if (!known.has(shown)) known.set(shown, shown.truncated ? shown.text : pretty(shown.text));
  return h(
    "figure",
    { class: "shown" },
    h(
      "figcaption",
      { class: "caption" },
      `${label}, ${bytes(shown.bytes)}`,
      copy(shown.text, label),
      shown.truncated ? [`the first ${bytes(shown.text.length)};`, more] : null,
    ),
    h("pre", { class: "payload", tabindex: "0", "aria-label": label }, known.get(shown)),
  );
}

/** JSON with lines and indents, every value as it stands. @param {string} text */
export function pretty(text) {
  if (text.length < 73) return text;
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  // Empty pairs and strings whole, then marks, then everything else up to the next of them.
  return text
    .match(/\{\s*\}|\[\s*\]|"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^"{}[\],:\s]+/gs)
    ?.map((part) => {
      if (part === "{" || part === "[") return ((depth += 1), part + line());
      if (part === "}" || part === "]") return ((depth -= 1), line() + part);
      return part === "," ? part + line() : part === ":" ? ": " : part;
    })
    .join("");
}

/**
 * A button that downloads what the API answers: a plain link cannot send the version.
 * @param {string} label
 * @param {string} path
 * @param {string} name
 * @param {any} [props]
 */
export const saver = (label, path, name, props) =>
  h(
    "button",
    { type: "button", ...props, on: { click: (event) => void save(event.currentTarget, path, name) } },
    label,
  );

/** @param {HTMLButtonElement} button @param {string} path @param {string} name */
async function save(button, path, name) {
  button.disabled = true;
  try {
    const answer = await fetch(path, {
      headers: { "X-Durable-Workflow-Control-Plane-Version": "2", "X-Namespace": api.namespace },
      cache: "no-store",
    });
    if (!answer.ok) throw new Error((await answer.json()).message);
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(await answer.blob());
    anchor.download = name.replace(/[^\w.-]+/g, "_").slice(-120);
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
    announce("downloaded");
  } catch (error) {
    show("The download failed", () => h("p", null, String(error)));
  }
  button.disabled = false;
}

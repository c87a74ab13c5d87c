// Keys. Single letters work outside of text fields, and never together with Ctrl, Alt or Meta.

import { h } from "./dom.js";
import { closing, isOpen, show } from "./dialog.js";

/**
 * @typedef {Record<string, [string, (event: KeyboardEvent) => void]>} Keys key -> what it does in words, and a function
 */

/** Keys that work on every screen. @type {Keys} */
export const common = {};
/** @type {() => Keys} the keys of the screen */
let ofScreen = () => ({});
let pending = "";

/** @param {() => Keys} keys */
export function useKeys(keys) {
  ofScreen = keys;
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isOpen()) return;
  const target = /** @type {HTMLElement | null} */ (event.target);
  if (target?.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const all = { ...common, ...ofScreen() };
  const chord = pending ? `${pending} ${event.key}` : event.key;
  pending = "";
  const found = all[chord] ?? all[event.key];
  if (found) {
    event.preventDefault();
    found[1](event);
  } else if (Object.keys(all).some((key) => key.startsWith(`${event.key} `))) pending = event.key;
});

common["?"] = [
  "this list of keys",
  () => {
    const all = { ...common, ...ofScreen() };
    show("Keys", ({ close }) => [
      h(
        "table",
        null,
        h(
          "tbody",
          null,
          ...Object.entries(all).map(([key, [does]]) =>
            h("tr", null, h("th", { scope: "row" }, h("kbd", null, key)), h("td", null, does)),
          ),
        ),
      ),
      closing(close),
    ]);
  },
];

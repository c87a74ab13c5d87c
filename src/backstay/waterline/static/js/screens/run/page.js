import { h } from "../../dom.js";

/** @param {any} app @returns {import("../../main.js").Screen} */
export function open(app) {
  return { title: () => app.route.id, view: () => [h("h1", null, app.route.id)] };
}

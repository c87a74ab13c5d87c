import { h } from "../dom.js";

/** @param {any} app @returns {import("../main.js").Screen} */
export function open(app) {
  return { title: () => "runs", view: () => [h("h1", null, "runs"), h("p", null, String(app.route.id ?? ""))] };
}

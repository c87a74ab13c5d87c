import { h } from "../dom.js";

/** @param {any} app @returns {import("../main.js").Screen} */
export function open(app) {
  return { title: () => "system", view: () => [h("h1", null, "system"), h("p", null, String(app.route.id ?? ""))] };
}

import { h } from "../dom.js";

/** @param {any} app @returns {import("../main.js").Screen} */
export function open(app) {
  return { title: () => "overview", view: () => [h("h1", null, "overview"), h("p", null, String(app.route.id ?? ""))] };
}

import { h } from "../dom.js";

/** @param {any} app @returns {import("../main.js").Screen} */
export function open(app) {
  return { title: () => "queues", view: () => [h("h1", null, "queues"), h("p", null, String(app.route.id ?? ""))] };
}

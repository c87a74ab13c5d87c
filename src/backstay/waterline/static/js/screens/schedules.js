import { h } from "../dom.js";

/** @param {any} app @returns {import("../main.js").Screen} */
export function open(app) {
  return { title: () => "schedules", view: () => [h("h1", null, "schedules"), h("p", null, String(app.route.id ?? ""))] };
}

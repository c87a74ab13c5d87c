// Schedules: what they start, the next fire in their own time zone, and the runs that they started.
/** @import { App } from "../main.js" */

import { h } from "../dom.js";
import { button, held } from "../parts.js";
import { count } from "../words.js";
import { figures, get, named, pages, press, table, tableKeys } from "./house/kit.js";
import { form } from "./house/schedule_form.js";
import { detail } from "./schedules/detail.js";
import { address, inWords, state, when } from "./schedules/words.js";

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  return app.route.id === null ? list(app) : detail(app, app.route.id);
}

/** @param {App} app @returns {import("../main.js").Screen} */
function list(app) {
  const asks = () => ({ status: app.route.query.get("status"), next_page_token: app.route.query.get("page") });
  const schedules = get(app, "/api/schedules", asks);
  /** @type {ReturnType<typeof form> | null} */
  let made = null;
  let before = "";
  const route = () => {
    const next = JSON.stringify(asks());
    if (before !== next) schedules.reset();
    before = next;
    made = app.route.query.get("form") === "new" ? (made ?? form(app, null, (id) => app.go(address(id)))) : null;
  };
  route();
  return {
    title: () => (made ? "New schedule" : "Schedules"),
    topics: () => ["overview"],
    keys: tableKeys,
    moved: () => void schedules.load(),
    route,
    view: () =>
      made?.() ?? [
        h(
          "div",
          { class: "head" },
          h("h1", null, "Schedules"),
          press(app, "New schedule", () => app.query({ form: "new" }, { replace: false }), undefined, "primary"),
        ),
        ...held(schedules, (data) => [
          figures(data.counts, [
            "active=active",
            "paused=paused violet",
            "due within the hour=due_next_hour",
            "overdue=overdue amber",
          ]),
          h(
            "div",
            { class: "chips", role: "group", "aria-label": "which schedules" },
            ...["", "active", "paused", "ended", "deleted"].map((one) =>
              button(one || "all", () => app.query({ status: one || null, page: null }), {
                class: "chip",
                "aria-pressed": String((asks().status ?? "") === one),
              }),
            ),
          ),
          table(
            "schedules",
            [
              [
                "schedule",
                (one) => [
                  named(address(one.schedule_id), one.schedule_id),
                  one.note ? h("div", { class: "caption note clip", title: one.note }, one.note) : null,
                ],
              ],
              ["state", state],
              "starts=workflow_type mono",
              [
                "when",
                (one) => [h("span", { class: "mono" }, when(one)), h("div", { class: "caption" }, inWords(one))],
              ],
              "next=next_fire_at time second",
              "last=last_fired_at time wide",
              "fired=fires_count number wide",
              "skipped=skipped_trigger_count number wide",
              [
                "failed to start",
                ({ failures_count: n }) => h("span", { class: n ? "tone-red" : "" }, count(n)),
                "number wide",
              ],
            ],
            data.schedules,
            "schedule_id",
            "No schedule here. Make one with the button above, or:",
            "dw schedule create --help",
          ),
          pages(app, data.next_page_token),
        ]),
      ],
  };
}

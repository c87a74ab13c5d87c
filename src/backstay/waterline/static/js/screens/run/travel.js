// Time travel: the state of a run right after any event of its history. The address says which: ?at=n.

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { badge, button, facts, held, mono, time, words } from "../../parts.js";
import { count, plural } from "../../words.js";

/** @param {import("./page.js").Context} ctx @param {() => number} total how many events there are */
export function travel(ctx, total) {
  const { app } = ctx;
  const at = () => {
    const n = Number(app.route.query.get("at"));
    return Number.isInteger(n) && n > 0 ? n : null;
  };
  const state = new Resource(async () => (at() ? ctx.part(`at/${at()}`, { payloads: "none" }) : null), ctx.update);
  let asked = at();
  if (asked) void state.load();

  /** @param {number | null} n */
  const go = (n) => app.query({ at: n === null ? null : String(Math.min(Math.max(n, 1), total() || 1)) });

  /** @param {string} title @param {number} all @param {any[]} rows */
  const list = (title, all, rows) => [
    h("h3", null, `${title} (${count(all)})`),
    all === 0 ? h("p", { class: "third" }, "none") : h("ul", null, ...rows),
  ];

  /** @param {any} data */
  function shown(data) {
    const { summary } = data;
    return h(
      "div",
      { class: data.sequence === at() ? "" : "stale" },
      h("p", null, badge(summary.state, summary.attention), summary.wait_name ? [" ", mono(summary.wait_name)] : null),
      facts([
        [
          "event",
          button(`${data.sequence} ${data.event_type}`, () => ctx.openEvent(data.sequence), { class: "text mono" }),
        ],
        ["recorded", time(data.recorded_at)],
        ["code had seen", data.seen ? `events to ${count(data.seen)}` : "nothing yet"],
        ["last error", summary.last_error && h("bdi", null, summary.last_error)],
        ["next wake", data.next_wake_at && time(data.next_wake_at)],
        ...Object.entries(data.search_attributes ?? {}).map(
          ([name, value]) => /** @type {[string, any]} */ ([name, mono(String(value))]),
        ),
      ]),
      ...list(
        "Open waits",
        data.open_wait_count,
        data.waits.map((/** @type {any} */ one) =>
          h(
            "li",
            { key: one.wait_id },
            words(one.kind),
            " ",
            mono(one.target_name ?? one.condition_key ?? ""),
            h("span", { class: "third" }, ` step ${one.sequence ?? "–"}`),
          ),
        ),
      ),
      ...list(
        "Open activities",
        data.open_activity_count,
        data.activities.map((/** @type {any} */ one) =>
          h("li", { key: one.id }, mono(one.activity_type), ` ${words(one.status)}, attempt ${one.attempt_count}`),
        ),
      ),
      ...list(
        "Tasks",
        data.expected_tasks.length,
        data.expected_tasks.map((/** @type {any} */ one) =>
          h(
            "li",
            { key: one.id },
            one.kind,
            " ",
            mono(one.type ?? ""),
            h("span", { class: "third" }, ` on ${one.task_queue}`),
          ),
        ),
      ),
    );
  }

  return {
    at,
    /** When the event was recorded. @returns {number | null} */
    moment: () => (at() && state.data ? Date.parse(state.data.recorded_at) : null),
    route() {
      if (at() === asked) return;
      asked = at();
      if (asked) void state.load();
    },
    slider() {
      const most = Math.max(total(), 1);
      return h(
        "div",
        { class: "travel" },
        h("label", { for: "at" }, "State at event"),
        h("input", {
          id: "at",
          type: "range",
          min: "1",
          max: String(most),
          step: "1",
          "aria-valuetext": at() ? `event ${at()} of ${most}` : "now",
          prop: { value: String(Math.min(at() ?? most, most)) },
          on: { input: (/** @type {any} */ event) => go(Number(event.target.value)) },
        }),
        h("span", { class: "number where" }, at() ? `${count(at())} of ${count(most)}` : plural(most, "event")),
        button("Now", () => go(null), { disabled: !at() }),
      );
    },
    panel: () =>
      h(
        "section",
        { class: "side", "aria-label": `state at event ${at()}` },
        h("h2", null, `The state after event ${count(at())}`),
        ...held(state, shown),
      ),
  };
}

// Schedules, one of them: when it fires, what became of it, and what can be done with it.
/** @import { App } from "../../main.js" */

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { badge, copy, facts, field, held, link, panel, runAddress, time, words } from "../../parts.js";
import { count, plural } from "../../words.js";
import { asked, attempt, get, named, pages, press, table, tableKeys } from "../house/kit.js";
import { firing, form } from "../house/schedule_form.js";
import { inWords, state, when } from "./words.js";

/** @param {App} app @param {string} id @returns {import("../../main.js").Screen} */
export function detail(app, id) {
  const path = `/api/schedules/${encodeURIComponent(id)}`;
  const history = get(app, `${path}/history`, () => ({ limit: 200, after_sequence: app.route.query.get("page") }));
  let known = "";
  /** @type {any[]} */
  let fires = [];
  const schedule = new Resource(async () => {
    const found = await app.api.get(path);
    const { spec, jitter_seconds, next_action_times: times } = found;
    const next = JSON.stringify([spec, jitter_seconds, times]);
    // Only who may change things may ask for a preview; others get the times without notes.
    if (next !== known)
      fires =
        app.canWrite && times.length
          ? (await app.api.post("/api/schedules/preview", { spec, jitter_seconds, schedule_id: id })).fires
          : times.map((/** @type {string} */ at) => ({ fire_at: at }));
    known = next;
    return { ...found, fires };
  }, app.update);
  /** @type {ReturnType<typeof form> | null} */
  let edited = null;
  const load = () => {
    void schedule.load().then(settle);
    void history.load();
  };
  // The form begins with what is stored, once that is known.
  const settle = () => {
    edited =
      app.route.query.get("form") === "edit" && schedule.data
        ? (edited ??
          form(app, schedule.data, () => {
            app.query({ form: null });
            load();
          }))
        : null;
    app.update();
  };
  load();
  /** @param {string} verb */
  const now_ = (verb) => () =>
    void attempt(app, `${verb}: done`, async () => {
      await app.api.post(`${path}/${verb}`);
      load();
    });
  return {
    title: () => `Schedule ${id}`,
    topics: () => ["overview"],
    keys: tableKeys,
    moved: load,
    route: () => {
      settle();
      void history.load();
    },
    view: () =>
      edited?.() ?? [
        h("p", { class: "caption" }, link("/waterline/schedules", null, "Schedules")),
        ...held(schedule, (data) => {
          const gone =
            data.status === "deleted"
              ? "It is deleted."
              : data.status === "ended"
                ? "It has ended: it has started as many workflows as max_runs allowed."
                : undefined;
          return [
            h(
              "div",
              { class: "head" },
              h("h1", { class: "long" }, id),
              copy(id, "the id"),
              state(data),
              h(
                "div",
                { class: "actions" },
                press(app, "Trigger", trigger, gone),
                press(app, data.paused ? "Resume" : "Pause", now_(data.paused ? "resume" : "pause"), gone),
                press(app, "Backfill", backfill, gone),
                press(app, "Edit", () => app.query({ form: "edit" }, { replace: false }), gone),
                press(
                  app,
                  "Delete",
                  asked(app, "delete", path, () => null, {
                    title: `Delete ${id}?`,
                    sentence: "It stops firing. Runs that it has started continue, and its history stays.",
                    label: "Delete",
                    danger: true,
                    done: () => app.go("/waterline/schedules"),
                  }),
                  gone,
                  "danger",
                ),
              ),
            ),
            data.note ? h("p", { class: "second note" }, data.note) : null,
            facts(
              [
                ["starts", `${data.workflow_type} on ${data.action.task_queue}`],
                ["when", `${when(data)} (${inWords(data)})`],
                ["if one still runs", words(data.overlap_policy)],
                ["jitter", data.jitter_seconds && `up to ${data.jitter_seconds} s`],
                ["runs left", data.max_runs && `${data.remaining_actions} of ${data.max_runs}`],
                ["arguments", app.session.payloads ? JSON.stringify(data.action.input) : "hidden"],
                [
                  "fired",
                  `${count(data.fires_count)}, skipped ${count(data.skipped_trigger_count)}${data.last_skip_reason ? ` (${words(data.last_skip_reason)})` : ""}, failed ${count(data.failures_count)}`,
                ],
              ],
              "mono",
            ),
            panel("Firings", null, waterline(data)),
            panel(
              "History",
              null,
              ...held(history, (found) => [
                table(
                  "history",
                  [
                    "#=sequence number",
                    [
                      "what",
                      ({ event_type: type }) =>
                        type
                          .slice(8)
                          .replace(/(?!^)[A-Z]/g, " $&")
                          .toLowerCase(),
                    ],
                    ["run", ({ workflow_instance_id: run }) => (run ? named(runAddress(run), run) : "–")],
                    [
                      "because",
                      ({ payload }) => words(payload.reason ?? payload.closed_reason ?? payload.cause ?? payload.note),
                      "wide note",
                    ],
                    ["by", ({ payload }) => payload.command?.source ?? "the clock", "wide"],
                    "at=recorded_at time",
                  ],
                  [...found.events].reverse(),
                  "id",
                ),
                pages(app, found.has_more ? String(found.next_cursor) : null),
              ]),
            ),
          ];
        }),
      ],
  };

  function trigger() {
    asked(app, "post", `${path}/trigger`, () => ({}), {
      title: `Trigger ${id}`,
      label: "Trigger",
      sentence: "It fires once, now, by its overlap policy.",
      seen: ({ answer: one }) => [`${words(one.outcome)} ${one.workflow_id ?? words(one.reason)}`],
      done: load,
    })();
  }

  function backfill() {
    const range = { start: "", end: "" };
    /** @param {string} text a time of this browser */
    const moment = (text) => (text ? new Date(text).toISOString() : "");
    asked(app, "post", `${path}/backfill`, () => ({ start_time: moment(range.start), end_time: moment(range.end) }), {
      title: `Backfill ${id}`,
      label: "Backfill",
      sentence: "It fires for every occurrence in this time range, by its overlap policy.",
      fields: (update) => [
        field(range, "start", "From", update, { type: "datetime-local" }),
        field(range, "end", "Until, not including", update, {
          type: "datetime-local",
          hint: "in the time zone of this browser",
        }),
      ],
      seen: ({ answer }) =>
        answer.results.map(
          (/** @type {any} */ one) =>
            `${one.fire_time.slice(0, 19)}Z ${words(one.outcome)} ${one.workflow_id ?? words(one.reason)}`,
        ),
      done: load,
    })();
  }
}

/**
 * Future fires are hollow, above the line of now; past fires are below it.
 * @param {Api.ScheduleAnswer & {fires: Api.FireAnswer[]}} schedule
 */
function waterline({ fires, info, spec, paused }) {
  const buffered = info.buffered_actions.length;
  return h(
    "ol",
    { class: "waterline" },
    ...[...fires].reverse().map((fire) => firing(fire, spec.timezone)),
    fires.length
      ? null
      : h("li", { class: "second" }, paused ? "It is paused, so it does not fire." : "It will not fire again."),
    h(
      "li",
      { class: "now", key: "now" },
      "now",
      buffered ? `, ${plural(buffered, "firing")} held back until the previous run closes` : "",
    ),
    ...info.recent_actions.map((/** @type {any} */ one) =>
      h(
        "li",
        { key: one.run_id },
        badge(one.status),
        time(one.started_at),
        named(runAddress(one.workflow_id, one.run_id), one.workflow_id),
        h("span", { class: "tone-red" }, one.message ?? ""),
      ),
    ),
    info.recent_actions.length ? null : h("li", { class: "second" }, "It has not fired yet."),
  );
}

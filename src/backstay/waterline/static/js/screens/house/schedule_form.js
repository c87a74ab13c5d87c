// The form that makes or changes a schedule, with its next ten firings beside it.
/** @import { App } from "../../main.js" */

import { Problem, Resource } from "../../api.js";
import { h } from "../../dom.js";
import { button, field, time, trouble } from "../../parts.js";

const OVERLAPS = [
  ["skip", "skip it"],
  ["buffer_one", "keep one for later"],
  ["buffer_all", "keep all for later"],
  ["cancel_other", "cancel the other"],
  ["terminate_other", "terminate the other"],
  ["allow_all", "run both"],
];
const INPUT = "\u0000input"; // stands for the arguments, which are sent as they are written

/** @param {string} text */
const lines = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/**
 * @param {App} app
 * @param {any} schedule the one to change, or null
 * @param {(id: string) => void} done
 * @returns {() => any} its view
 */
export function form(app, schedule, done) {
  const { action, spec: old } = schedule ?? {};
  const input = JSON.stringify(action?.input ?? []);
  /** @type {Record<string, any>} by the names that the server has for them */
  const values = {
    schedule_id: schedule?.schedule_id ?? "",
    "action.workflow_type": action?.workflow_type ?? "",
    "action.task_queue": action?.task_queue ?? "default",
    "action.input": input,
    "spec.cron": old?.cron_expressions.join("\n") ?? "",
    "spec.timezone": old?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone,
    "spec.intervals":
      old?.intervals.map((/** @type {any} */ one) => `${one.every} ${one.offset ?? ""}`).join("\n") ?? "",
    overlap_policy: schedule?.overlap_policy ?? "skip",
    jitter_seconds: schedule?.jitter_seconds ?? 0,
    max_runs: schedule?.max_runs ?? "",
    note: schedule?.note ?? "",
    paused: false,
  };
  /** @type {Problem | null} */
  let problem = null;
  let busy = false;
  let timer = 0;
  const intent = {};
  // Made once, so that it is the same when it is sent again.
  const made = `schedule-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  const spec = () => ({
    cron_expressions: lines(values["spec.cron"]),
    timezone: values["spec.timezone"],
    intervals: lines(values["spec.intervals"]).map((line) => {
      const [every = "", offset] = line.split(/\s+/);
      return { every, offset };
    }),
  });
  const coming = new Resource(async () => {
    const asked = spec();
    return asked.cron_expressions.length || asked.intervals.length
      ? app.api.post("/api/schedules/preview", {
          spec: asked,
          jitter_seconds: Number(values["jitter_seconds"]),
          schedule_id: values["schedule_id"] || null,
        })
      : null;
  }, app.update);
  void coming.load();
  const changed = () => {
    problem = null;
    clearTimeout(timer);
    timer = setTimeout(() => void coming.load(), 200);
    app.update();
  };

  async function send() {
    [busy, problem] = [true, null];
    app.update();
    try {
      JSON.parse(values["action.input"]);
      const body = JSON.stringify({
        spec: spec(),
        overlap_policy: values["overlap_policy"],
        jitter_seconds: Number(values["jitter_seconds"]),
        max_runs: Number(values["max_runs"]) || null,
        note: values["note"],
        ...(schedule ? {} : { schedule_id: values["schedule_id"] || made, paused: values["paused"] }),
        action: {
          ...action,
          workflow_type: values["action.workflow_type"],
          task_queue: values["action.task_queue"],
          input: INPUT,
        },
        // Unchanged arguments are sent back as they came: parsing them here might round a number.
      }).replace(JSON.stringify(INPUT), () =>
        schedule && values["action.input"] === input ? JSON.stringify(action.input_envelope) : values["action.input"],
      );
      const answer = await (schedule
        ? app.api.put(`/api/schedules/${encodeURIComponent(values["schedule_id"])}`, body, {}, intent)
        : app.api.post("/api/schedules", body, {}, intent));
      app.announce(schedule ? "schedule changed" : "schedule created");
      done(answer.schedule_id);
    } catch (/** @type {any} */ error) {
      problem =
        error instanceof Problem
          ? error
          : new Problem(0, "invalid_payload", `This is not JSON: ${error.message}`, { field: "action.input" });
    }
    busy = false;
    app.update();
  }

  return () => {
    const said = problem ?? coming.problem;
    let placed = false;
    /** @param {string} name @param {string} label @param {any} [how] */
    const entry = (name, label, how) => {
      const wrong = said?.field?.startsWith(name) ? said.message : undefined;
      placed ||= Boolean(wrong);
      return field(values, name, label, changed, { ...how, wrong });
    };
    const text = { tag: "textarea", rows: "2" };
    return [
      h("h1", { class: "long" }, schedule ? `Edit ${schedule.schedule_id}` : "New schedule"),
      h(
        "div",
        { class: "split" },
        h(
          "form",
          {
            "aria-label": "schedule",
            on: {
              submit: (/** @type {Event} */ event) => {
                event.preventDefault();
                void send();
              },
            },
          },
          schedule ? null : entry("schedule_id", "Id", { class: "mono", hint: "empty: generated" }),
          entry("action.workflow_type", "Workflow type", { class: "mono", required: true }),
          entry("action.task_queue", "Queue", { class: "mono", required: true }),
          entry("action.input", "Arguments", { ...text, hint: "a JSON array" }),
          entry("spec.cron", "Cron expressions", { ...text, hint: "one in a line, like 30 2 * * *" }),
          entry("spec.intervals", "Intervals", {
            ...text,
            hint: "one in a line, like PT30M; PT1H PT5M is five past every hour",
          }),
          entry("spec.timezone", "Time zone", { class: "mono", required: true, list: "zones" }),
          h("datalist", { id: "zones", opaque: true, ref: fillZones }),
          entry("overlap_policy", "If the previous run is still open", { options: OVERLAPS }),
          entry("jitter_seconds", "Jitter in seconds", { type: "number", min: "0" }),
          entry("max_runs", "Runs at most", { type: "number", min: "1", hint: "empty: no end" }),
          entry("note", "Note"),
          schedule ? null : entry("paused", "Begin paused", { type: "checkbox" }),
          problem && !placed ? trouble(problem) : null,
          h(
            "div",
            { class: "actions" },
            h(
              "button",
              { type: "submit", class: "primary", disabled: busy || Boolean(app.readOnly), title: app.readOnly },
              schedule ? "Save" : "Create",
            ),
            button("Cancel", () => app.query({ form: null })),
          ),
        ),
        h(
          "section",
          { "aria-label": "next firings" },
          h("h2", null, "Next ten firings"),
          coming.problem
            ? h("p", { class: "notice" }, coming.problem.message)
            : coming.data?.fires.length
              ? h(
                  "ol",
                  { class: "waterline" },
                  ...coming.data.fires.map((fire) => firing(fire, coming.data?.timezone ?? "")),
                )
              : h("p", { class: "empty" }, "Enter when it fires: a cron expression or an interval."),
        ),
      ),
    ];
  };
}

/** @param {Element} list */
const fillZones = (list) =>
  list.append(
    ...["UTC", ...Intl.supportedValuesOf("timeZone")].map((zone) =>
      Object.assign(document.createElement("option"), { value: zone }),
    ),
  );

/** A firing that is to come, in its own time zone. @param {Api.FireAnswer} fire @param {string} zone */
export function firing({ fire_at: at, local_time: local, note }, zone) {
  const shown = local ?? at;
  return h(
    "li",
    { key: at, class: "ahead" },
    h("span", { class: "glyph", "aria-hidden": "true" }, "○"),
    h("span", { class: "mono" }, shown.slice(0, 19).replace("T", " ")),
    h(
      "span",
      { class: "mono third" },
      local ? local.slice(-6) : "UTC",
      local ? h("span", { class: "wide" }, ` ${zone}`) : null,
    ),
    h("span", { class: "second" }, time(at)),
    note ? h("span", { class: "notice" }, note) : null,
  );
}

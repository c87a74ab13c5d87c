// The palette, what is known when it opens: screens, queues and schedules, what helps now, and commands to runs.
/** @import { App } from "../../main.js" */
/** @import { Entry } from "./entries.js" */

import { Resource } from "../../api.js";
import { confirm } from "../../dialog.js";
import { PLACES } from "../../frame.js";
import { capital } from "../../parts.js";
import { isAbsolute, plural, setAbsolute } from "../../words.js";
import { askCommand } from "../run/actions.js";
import { number, remedy } from "../overview/causes.js";
import { entry } from "./entries.js";

const SECTIONS = ["health", "maintenance", "server", "access", "audit"]; // of the screen System

/** What is known before anything is typed. @param {App} app @returns {Promise<Entry[]>} */
export async function actionEntries(app) {
  const [overview, queues, schedules] = await Promise.all([
    app.api.get("/api/overview", { window: "1h" }).catch(() => null),
    app.api.get("/api/task-queues").catch(() => null),
    app.api.get("/api/schedules", { page_size: 100 }).catch(() => null),
  ]);
  return [
    ...ofThisRun(app),
    ...(overview?.causes ?? []).flatMap((cause) => ofCause(app, cause)),
    ...PLACES.map(([name, to]) => entry(capital(name), "screen", 2, () => app.go(`/waterline/${to}`))),
    ...SECTIONS.map((name) => entry(`System, ${name}`, "screen", 2, () => app.go(`/waterline/system?section=${name}`))),
    entry(`Show ${isAbsolute() ? "relative" : "exact"} times`, "action", 2, () => {
      setAbsolute(!isAbsolute());
      app.update();
    }),
    ...(app.canWrite ? [entry("New schedule …", "action", 2, () => app.go("/waterline/schedules?form=new"))] : []),
    ...(overview?.types.busiest ?? []).map((one) =>
      entry(one.workflow_type, `type, ${plural(one.started, "start")} in the last hour`, 4, () =>
        app.go(`/waterline/runs?workflow_type=${encodeURIComponent(one.workflow_type)}`),
      ),
    ),
    ...(queues?.task_queues ?? []).map((one) =>
      entry(one.name, "queue", 5, () => app.go(`/waterline/queues/${encodeURIComponent(one.name)}`)),
    ),
    ...(schedules?.schedules ?? []).flatMap((one) => ofSchedule(app, one)),
  ];
}

/**
 * What helps against a cause, if it can be pressed.
 * @param {App} app @param {Api.CauseAnswer} cause @returns {Entry[]}
 */
function ofCause(app, cause) {
  const found = remedy(app, cause, (_, bulk) =>
    app.go(bulk ? `/waterline/runs?bulk=${encodeURIComponent(bulk)}` : "/waterline/"),
  );
  if (!found || found.why) return [];
  const about = [cause.name.replaceAll("_", " "), cause.subject.workflow_type].filter(Boolean).join(" ");
  return [entry(`${found.label.replace(/ …$/, "")} ${about} …`, `action, ${number(cause)}`, 0, found.act)];
}

/** The commands to the run whose page is open. @param {App} app @returns {Entry[]} */
function ofThisRun(app) {
  const { screen, id, run } = app.route;
  if (screen !== "run" || id === null || !app.canWrite) return [];
  return app.commands.map((command) =>
    entry(`${command.label} ${id} …`, "action", 0, () => tell(app, command, id, run)),
  );
}

/**
 * What begins with a command and goes on with an id: `pause order-1`.
 * @param {App} app @param {string} text @returns {Promise<Entry[]>}
 */
export async function commandEntries(app, text) {
  const [, verb = "", prefix = ""] = /^(.+?)\s+(\S+)$/.exec(text) ?? [];
  const commands = app.canWrite
    ? app.commands.filter((command) => verb && command.label.toLowerCase().startsWith(verb.toLowerCase()))
    : [];
  if (!commands.length) return [];
  const found = await app.api.get("/api/suggest", { field: "instance_id", prefix: prefix.slice(0, 100), limit: 5 });
  return found.suggestions.flatMap((id) =>
    commands.map((command) => entry(`${command.label} ${id} …`, "action", 1, () => tell(app, command, id, null))),
  );
}

/**
 * Ask before a run gets a command, and show the run then.
 * @param {App} app @param {Api.OperatorCommandAnswer} command @param {string} id @param {string | null} run
 */
function tell(app, command, id, run) {
  const summary = new Resource(async () => null, app.update);
  askCommand(/** @type {any} */ ({ app, id, run, summary }), command, null, () =>
    app.go(`/waterline/runs/${encodeURIComponent(id)}${run ? `/${encodeURIComponent(run)}` : ""}`),
  );
}

/** @param {App} app @param {Api.Get<"/api/schedules">["schedules"][number]} one @returns {Entry[]} */
function ofSchedule(app, { schedule_id: id, paused, status }) {
  const page = `/waterline/schedules/${encodeURIComponent(id)}`;
  /** @param {string} label @param {string} verb */
  const act = (label, verb) =>
    entry(`${label} schedule ${id} …`, "action", 6, () =>
      confirm({
        title: `${label} ${id}`,
        label,
        sentence: {
          trigger: "It starts its workflow now, as its overlap policy allows.",
          pause: "It fires no more until it is resumed. Runs that it has started continue.",
          resume: "It fires again from the next time on.",
        }[verb],
        act: (intent) => app.api.post(`/api/schedules/${encodeURIComponent(id)}/${verb}`, {}, {}, intent),
        done: () => {
          app.announce(`${label} ${id}: done`);
          app.go(page);
        },
      }),
    );
  const open = status === "active" || status === "paused";
  return [
    entry(id, "schedule", 5, () => app.go(page)),
    ...(app.canWrite && open
      ? [act("Trigger", "trigger"), paused ? act("Resume", "resume") : act("Pause", "pause")]
      : []),
  ];
}

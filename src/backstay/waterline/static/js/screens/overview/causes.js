// Overview, causes: why something needs attention, with an example, and the action that helps.
/** @import { App } from "../../main.js" */

import { asProblem } from "../../api.js";
import { closing, confirm, show } from "../../dialog.js";
import { h } from "../../dom.js";
import { button, copy, link, mono, panel, placed, reach, runAddress, time, trouble } from "../../parts.js";
import { plural } from "../../words.js";
import { ask } from "../runs/bulk.js";
import { queue } from "./figures.js";

const TONES = { error: "red", warning: "amber", info: "wait" };
const SIGNS = { error: "▲", warning: "!", info: "·" };

/**
 * Called with what was done, and the operation that it began.
 * @typedef {(label: string, bulk?: string) => void} Done
 */

/** The page that lists what a cause counts. @param {Api.CauseAnswer} cause @returns {string | null} */
function list({ unit, link: address, subject }) {
  const [, bucket, query] = /^\/api\/flows\/(\w+)\?(.*)/.exec(address ?? "") ?? [];
  if (bucket) return `/waterline/runs?${query}&bucket=${bucket}`;
  if (subject.task_queue) return queue(subject.task_queue);
  if (subject.schedule_id) return `/waterline/schedules/${encodeURIComponent(subject.schedule_id)}`;
  if (unit === "schedule") return "/waterline/schedules?status=active";
  if (unit === "node" || unit === "shard" || unit === "process") return "/waterline/system?section=server";
  return "/waterline/system";
}

/** @param {Api.CauseAnswer} cause */
export const number = ({ count: n, unit, exact }) => `${exact ? "" : "at least "}${plural(n, unit)}`;

/**
 * What can be pressed for a cause; null: nothing.
 * @param {App} app
 * @param {Api.CauseAnswer} cause
 * @param {Done} done
 * @returns {{label: string, act: () => void, why: string | undefined} | null}
 */
export function remedy(app, cause, done) {
  const { operator, label, arguments: given } = cause.action ?? {};
  const admin = app.readOnly ?? (app.isAdmin ? undefined : "This needs the role admin.");
  if (operator === "repair_pass") return { label: `${label} …`, act: () => pass(app, cause, done), why: admin };
  if (operator === "forget_node") return { label: "Forget it …", act: () => forget(app, cause, done), why: admin };
  const command = app.commands.find((one) => one.name === operator && one.bulk);
  if (!operator || !command || !given?.["filter"]) return null;
  const filter = Object.fromEntries(
    Object.entries(given["filter"]).map(([name, value]) => [name, [value].flat().map(String)]),
  );
  return {
    label: `${command.label} …`,
    act: () =>
      void ask(app, operator, filter, (id) => done(`${command.label}, ${number(cause)}`, id)).catch((error) =>
        show("It was refused", ({ close }) => [trouble(asProblem(error)), closing(close)]),
      ),
    why: app.readOnly,
  };
}

/** @param {App} app @param {Api.CauseAnswer} cause @param {Done} done */
function pass(app, cause, done) {
  confirm({
    title: cause.action?.label ?? "Run a repair pass",
    label: "Run it",
    sentence: cause.sentence,
    async preview() {
      const { would_reconcile: runs } = await app.api.post("/api/system/repair/pass", {}, { dry_run: 1 });
      return { accepted: true, would_write: { runs: (runs ?? []).map((/** @type {string} */ name) => ({ name })) } };
    },
    act: () => app.api.post("/api/system/repair/pass", {}),
    done: () => done(cause.action?.label ?? "repair pass"),
  });
}

/** Nodes that are gone for good. @param {App} app @param {Api.CauseAnswer} cause @param {Done} done */
function forget(app, cause, done) {
  const ids = /** @type {string[]} */ (cause.action?.arguments?.["nodes"] ?? []);
  confirm({
    title: `Forget ${plural(ids.length, "node")}`,
    label: "Forget",
    sentence: `${cause.sentence} Forget what will not come back: its work is done by others already.`,
    act: () => Promise.all(ids.map((id) => app.api.post(`/api/nodes/${encodeURIComponent(id)}/forget`, {}))),
    done: () => done(`Forget ${plural(ids.length, "node")}`),
  });
}

/**
 * @param {App} app
 * @param {Api.CauseAnswer[]} causes
 * @param {any} said what was done last
 * @param {Done} done
 */
export function causes(app, causes, said, done) {
  const pressing = causes.filter(({ severity }) => severity !== "info");
  const others = causes.filter(({ severity }) => severity === "info");
  return [
    h(
      "section",
      { class: "causes", "aria-label": "Needs attention", key: "causes" },
      said,
      pressing.length ? h("ul", null, ...pressing.map((cause) => item(app, cause, done))) : null,
    ),
    others.length
      ? panel(
          "Goes on by itself",
          null,
          h("ul", { class: "causes quiet" }, ...others.map((cause) => item(app, cause, done))),
        )
      : null,
  ];
}

/** @param {App} app @param {Api.CauseAnswer} cause @param {Done} done */
function item(app, cause, done) {
  const { name, severity, sentence, since, example, action, subject } = cause;
  const to = list(cause);
  const found = remedy(app, cause, done);
  return h(
    "li",
    { class: `cause cause-${TONES[severity]}`, key: `${name} ${JSON.stringify(subject)}` },
    h(
      "div",
      { class: "what" },
      h(
        "p",
        { class: "sentence" },
        h("span", { class: `glyph tone-${TONES[severity]}`, "aria-hidden": "true" }, SIGNS[severity]),
        h("bdi", null, sentence),
      ),
      h(
        "p",
        { class: "second" },
        since ? h("span", null, "Began ", time(since), ".") : null,
        example
          ? h(
              "span",
              null,
              "Example: ",
              link(
                runAddress(example.workflow_id, example.run_id),
                { class: "example", title: example.workflow_id },
                mono(example.workflow_id, "clip"),
              ),
              name === "blocked"
                ? [" · ", link(runAddress(example.workflow_id, example.run_id), null, "history and code side by side")]
                : null,
            )
          : null,
        action && !found ? h("span", null, h("bdi", null, action.label), ".") : null,
      ),
      action?.command && !found ? terminal(`${action.command} ${reach(app)}`) : null,
    ),
    h(
      "div",
      { class: "acts" },
      to ? h("a", { class: "button", href: placed(to) }, `Show ${number(cause)}`) : null,
      found ? button(found.label, found.act, { class: severity === "info" ? "" : "primary", why: found.why }) : null,
    ),
  );
}

/** A command to copy. @param {string} command */
const terminal = (command) => h("p", { class: "command" }, h("code", null, command), " ", copy(command, "the command"));

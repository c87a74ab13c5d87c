// Overview, needs: what needs attention, why, and what to press.
/** @import { App } from "../../main.js" */

import { confirm } from "../../dialog.js";
import { h } from "../../dom.js";
import { button, copy, glyph, link, panel, reach, time, tone } from "../../parts.js";
import { plural } from "../../words.js";
import { queue } from "./figures.js";

/** The page that lists what a cause counts. @param {Api.CauseAnswer} item @returns {string} */
function list({ unit, link: address, subject }) {
  const [, bucket, query] = /^\/api\/flows\/(\w+)\?(.*)/.exec(address ?? "") ?? [];
  if (bucket) return `/waterline/runs?${query}&bucket=${bucket}`;
  if (unit === "task" && subject.task_queue) return queue(subject.task_queue);
  return unit === "schedule" ? "/waterline/schedules?status=active" : "/waterline/system";
}

/**
 * @param {App} app
 * @param {Api.OverviewAnswer} data
 * @param {string} said what was done last
 * @param {(label: string, bulk?: string) => void} done called with what was done
 */
export function needs(app, { causes }, said, done) {
  return panel(
    "Needs attention",
    h("span", { class: "second" }, said),
    causes.length
      ? h(
          "ul",
          { class: "needs" },
          ...causes.map((item) => {
            const colour = item.severity === "error" ? "red" : "amber";
            return h(
              "li",
              { key: item.name + JSON.stringify(item.subject) },
              h(
                "span",
                { class: `glyph tone-${colour}`, "aria-hidden": "true" },
                tone(item.name) === colour ? glyph(item.name) : colour === "red" ? "▲" : "↻",
              ),
              h("p", { class: "sentence" }, item.sentence),
              link(list(item), { class: "number" }, plural(item.count, item.unit)),
              h("span", { class: "second number" }, item.since ? time(item.since) : null),
              h("div", { class: "helps second" }, item.action ? action(item, item.action) : null),
            );
          }),
        )
      : h("p", { class: "sentence" }, "Nothing needs attention."),
  );

  /**
   * What helps: a button where the server can do it, and the command to copy where there is one.
   * @param {Api.CauseAnswer} item
   * @param {Api.CauseAction} helps
   */
  function action(item, helps) {
    const { operator, command, label } = helps;
    const how = command ? copy(`${command} ${reach(app)}`, "the command") : null;
    const pass = operator === "repair_pass";
    if (!operator || !(pass || app.commands.some((one) => one.name === operator && one.bulk)))
      return how ? [label, how] : label;
    const not = app.readOnly ?? (pass && !app.isAdmin ? "A repair pass needs the role admin." : null);
    return [button(`${label} …`, () => act(item, helps), { why: not }), how];
  }

  /**
   * @param {Api.CauseAnswer} item
   * @param {Api.CauseAction} helps a pass over everything, or a command to each run of this cause
   */
  function act(item, { operator, label: title, arguments: given }) {
    const pass = operator === "repair_pass";
    const label = pass ? title : `${title}: ${plural(item.count, "run")}`;
    const post = (/** @type {boolean} */ dry_run, /** @type {import("../../api.js").Intent} */ intent = {}) =>
      pass
        ? app.api.post("/api/system/repair/pass", {}, dry_run ? { dry_run: 1 } : {})
        : app.api.post(
            "/api/bulk",
            { action: /** @type {any} */ (operator), ...given, expected_count: item.count, dry_run },
            {},
            intent,
          );
    confirm({
      title,
      label,
      sentence: item.sentence,
      async preview() {
        /** @type {{examples?: any[], would_reconcile?: string[]}} */
        const { examples, would_reconcile: runs } = await post(true);
        return {
          accepted: true,
          would_write: {
            runs:
              runs?.map((name) => ({ name })) ??
              examples?.map((one) => ({ name: one.would_write, workflow_id: one.workflow_id })),
          },
        };
      },
      act: (intent) => post(false, intent),
      done: (answer) => done(label, pass ? undefined : answer.bulk_id),
    });
  }
}

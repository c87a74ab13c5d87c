// Overview, needs: what needs attention, why, and what to press.
/** @import { App } from "../../main.js" */

import { confirm } from "../../dialog.js";
import { h } from "../../dom.js";
import { button, copy, glyph, link, panel, time, tone, word, workerCommand } from "../../parts.js";
import { plural } from "../../words.js";
import { queue } from "./figures.js";

/** What an entry counts, and the page that lists it. @param {Api.AttentionAnswer} item @returns {[string, string]} */
function list({ cause, link: address, task_queue = "" }) {
  const [, bucket, query] = /^\/api\/flows\/(\w+)\?(.*)/.exec(address) ?? [];
  if (bucket) return ["run", `/waterline/runs?${query}&bucket=${bucket}`];
  return cause === "throttled"
    ? ["task", queue(task_queue)]
    : cause === "stranded"
      ? ["run", "/waterline/system"]
      : ["schedule", "/waterline/schedules?status=active"];
}

/**
 * @param {App} app
 * @param {Api.OverviewAnswer} data
 * @param {string} said what was done last
 * @param {(label: string, bulk?: string) => void} done called with what was done
 */
export function needs(app, { attention }, said, done) {
  return panel(
    "Needs attention",
    h("span", { class: "second" }, said),
    attention.length
      ? h(
          "ul",
          { class: "needs" },
          ...attention.map((item) => {
            const colour = item.tone === "danger" ? "red" : "amber";
            const [unit, to] = list(item);
            return h(
              "li",
              {
                key: [item.cause, item.task_queue, item.task_type, item.type, item.build_id, item.workflow_type].join(
                  " ",
                ),
              },
              h(
                "span",
                { class: `glyph tone-${colour}`, "aria-hidden": "true" },
                tone(item.cause) === colour ? glyph(item.cause) : colour === "red" ? "▲" : "↻",
              ),
              h("p", { class: "sentence" }, item.sentence),
              link(to, { class: "number" }, plural(item.count, unit)),
              h("span", { class: "second number" }, item.oldest_since ? time(item.oldest_since) : null),
              h("div", { class: "helps second" }, action(item)),
            );
          }),
        )
      : h("p", { class: "sentence" }, "Nothing needs attention."),
  );

  /** What helps: a button where the server can do it, else what to do elsewhere. @param {Api.AttentionAnswer} item */
  function action(item) {
    const { verb, label } = item.action;
    if (verb === "start_worker")
      return [
        label,
        copy(
          `${workerCommand(app, item.task_queue)}${item.missing === "build" ? ` --build ${word(item.build_id ?? "")}` : ""}`,
          "the command",
        ),
      ];
    if (!app.commands.some((command) => command.name === verb && command.bulk)) return label;
    const pass = item.cause !== "repair_needed" && verb === "repair";
    const not = app.readOnly ?? (pass && !app.isAdmin ? "A repair pass needs the role admin." : null);
    return button(`${label} …`, () => act(item, pass), { why: not });
  }

  /**
   * @param {Api.AttentionAnswer} item
   * @param {boolean} pass a pass over everything, else the command to each run of this cause
   */
  function act(item, pass) {
    const { verb, label: title } = item.action;
    const label = pass ? title : `${title}: ${plural(item.count, "run")}`;
    const post = (/** @type {boolean} */ dry_run, /** @type {import("../../api.js").Intent} */ intent = {}) =>
      pass
        ? app.api.post("/api/system/repair/pass", {}, dry_run ? { dry_run: 1 } : {})
        : app.api.post(
            "/api/bulk",
            {
              action: /** @type {any} */ (verb),
              filter: { attention: item.cause },
              expected_count: item.count,
              dry_run,
            },
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

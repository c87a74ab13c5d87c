// Waits and tasks: the waits of the run, and the tasks that will end them. Missing tasks are marked.

import { Resource } from "../../api.js";
import { h } from "../../dom.js";
import { badge, empty, held, link, mono, panel, sign, time, words } from "../../parts.js";
import { plural } from "../../words.js";
import { partButtons } from "./actions.js";
import { pages, table } from "./rows.js";

const STATES = /** @type {Record<string, string>} */ ({ open: "waiting", resolved: "completed", leased: "working" });

/** @param {string} status */
const state = (status) => (status === "missing" ? sign("▲", "missing", "tone-red") : badge(STATES[status] ?? status));

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab(ctx) {
  const { list, moved, route, turn } = pages(ctx, "waits", 80, "next_page_token");
  const detail = new Resource(() => ctx.part("detail"), ctx.update);
  void detail.load();
  const again = () => {
    for (const each of [list, detail, ctx.summary, ctx.why]) void each.load();
  };

  /** @param {any} wait @returns {import("./rows.js").Row} */
  const waited = (wait) => [
    wait.wait_id,
    [
      state(wait.status),
      [`${words(wait.kind)} `, mono(wait.condition_key ?? wait.target_name)],
      time(wait.opened_at),
      wait.resolved_at
        ? time(wait.resolved_at)
        : wait.deadline_at
          ? ["times out ", time(wait.deadline_at)]
          : "no deadline",
      wait.task_status
        ? [state(wait.task_status), ` ${words(wait.task_type)} task`]
        : wait.external_only
          ? "a caller outside"
          : wait.status === "open"
            ? words(wait.resume_source_kind)
            : "–",
      wait.sequence === null ? null : link(`?tab=history&step=${wait.sequence}`, null, `step ${wait.sequence}`),
      partButtons(ctx, "waits", wait, wait.wait_id, again),
    ],
  ];

  /** @param {any} task @returns {import("./rows.js").Row} */
  const tasked = (task) => [
    task.id,
    [
      state(task.task_missing ? "missing" : task.replay_blocked ? "blocked" : task.status),
      h("bdi", null, task.label),
      time(task.closed_at ?? task.available_at ?? task.created_at),
      task.lease_owner,
      task.attempt_count,
      h("bdi", { class: "tone-red" }, task.last_error),
    ],
  ];

  return {
    view: () => [
      panel(
        "Waits",
        null,
        held(list, ({ waits, next_page_token }) => [
          waits.length
            ? table("wait,what for,since,until,backed by,step:number wide,", waits.map(waited))
            : empty("This run has no waits."),
          turn(next_page_token),
        ]),
      ),
      panel(
        "Tasks",
        null,
        held(detail, ({ tasks, collections }) => [
          tasks.length
            ? table("task,for,due,worker:wide mono,tries:number wide,last error", tasks.map(tasked))
            : empty("There is no task. A run that waits for a message or a timer needs none."),
          collections?.tasks?.truncated
            ? h("p", { class: "caption" }, `of ${plural(collections.tasks.total, "task")}`)
            : null,
        ]),
      ),
    ],
    moved: () => {
      moved();
      void detail.load();
    },
    route,
  };
}

// Queues and workers: waiting tasks, the workers that serve them, rates, and the builds that take new work.
/** @import { App } from "../main.js" */

import { h } from "../dom.js";
import { badge, copy, held, link, panel, runAddress, words, workerCommand } from "../parts.js";
import { count, plural, span } from "../words.js";
import { get, named, pages, table, tableKeys } from "./house/kit.js";
import { buildTable, fleet } from "./queues/workers.js";

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  const name = app.route.id;
  const path = /** @type {`/api/task-queues/${string}`} */ (`/api/task-queues/${encodeURIComponent(name ?? "")}`);
  const all = get(app, "/api/task-queues");
  const queue = get(app, path);
  const workers = get(app, "/api/workers", () => ({ task_queue: name }));
  const sessions = get(app, "/api/worker-sessions", () => ({ task_queue: name, status: "active" }));
  const waiting = get(app, /** @type {`${typeof path}/tasks`} */ (`${path}/tasks`), () => ({
    page_size: 50,
    next_page_token: app.route.query.get("page"),
  }));
  const builds = get(app, /** @type {`${typeof path}/build-ids`} */ (`${path}/build-ids`));
  const load = () => {
    for (const one of name === null ? [all, workers, sessions] : [queue, waiting, builds, workers, sessions])
      void one.load();
  };
  load();
  // Workers come and go without a commit, and rates fall while nothing happens.
  const timer = setInterval(() => {
    if (document.visibilityState === "visible") load();
  }, 5000);
  return {
    title: () => (name === null ? "Queues" : `Queue ${name}`),
    topics: () => ["queues"],
    keys: tableKeys,
    moved: (news) => {
      if (news.kind === "reload") return load();
      void (name === null ? all : queue).load();
      if (name !== null) void waiting.load();
    },
    route: () => {
      if (name !== null) waiting.reset();
    },
    close: () => clearInterval(timer),
    view: () => [
      ...(name === null
        ? [h("h1", null, "Queues and workers"), panel("Queues", null, ...held(all, (data) => listed(app, data)))]
        : [
            h("p", { class: "caption" }, link("/waterline/queues", null, "Queues")),
            h("h1", { class: "long" }, name),
            ...held(queue, (data) => one(app, data)),
            panel(
              "Waiting tasks",
              null,
              ...held(waiting, (data) => [
                table(
                  "tasks that wait",
                  [
                    ["for", (task) => age(task.waiting_seconds), "number"],
                    ["run", ({ workflow_id: id }) => (id === null ? "unreadable" : named(runAddress(id), id))],
                    "task=task_type",
                    "type=type mono",
                    ["build", (task) => task.build_id ?? "any", "mono wide"],
                    "priority=priority number wide",
                    "attempt=attempt number wide",
                  ],
                  data.tasks,
                  "task_id",
                  "No task waits for a worker.",
                ),
                pages(app, data.next_page_token),
              ]),
            ),
            panel("Builds", null, ...held(builds, (data) => buildTable(app, path, data.build_ids, load))),
          ]),
      panel("Workers", null, ...held(workers, (data) => fleet(app, data.workers, name, queue.data, load))),
      panel(
        "Worker sessions",
        null,
        ...held(sessions, (data) =>
          table(
            "worker sessions",
            [
              "session=session_id mono",
              "state=status",
              "queue=queue mono",
              "worker=lease_owner mono",
              "opened=created_at time wide",
              "lease ends=lease_expires_at time",
            ],
            data.worker_sessions,
            "session_id",
            "No session is open: no activities are bound to one worker.",
          ),
        ),
      ),
    ],
  };
}

/**
 * A state and a sentence: what a user should know first.
 * @param {Api.QueueAnswer} queue
 * @returns {[string, string]}
 */
function stands({ stats, throttled_because: throttled }) {
  const backlog = stats.approximate_backlog_count;
  const live = stats.pollers.active_count;
  const waits = backlog
    ? `${plural(backlog, "task")} ${backlog === 1 ? "waits" : "wait"}, the oldest for ${age(stats.approximate_backlog_age_seconds)}`
    : "No task waits";
  if (backlog && !live) return ["no_worker", `${waits}, and no live worker serves this queue.`];
  if (throttled) return ["throttled", throttled];
  return [
    backlog ? "waiting" : leased(stats) ? "working" : "idle",
    `${waits}; ${live ? `${plural(live, "worker")} ${live === 1 ? "serves" : "serve"}` : "no live worker serves"} this queue.`,
  ];
}

/** @param {Api.QueueStats} stats */
const leased = (stats) => stats.workflow_tasks.leased_count + stats.activity_tasks.leased_count;
/** @param {number | null} seconds */
const age = (seconds) => span(seconds === null ? null : seconds * 1000);
/** How long tasks wait, of the slower of the two kinds. @param {string} which */
const slowest =
  (which) =>
  (/** @type {any} */ { schedule_to_start: waits }) =>
    span(waits && (Math.max(waits.workflow_tasks[which], waits.activity_tasks[which]) || null));

/** @param {any} app @param {Api.QueuesAnswer} data */
function listed(app, data) {
  return [
    table(
      "queues",
      [
        ["queue", ({ name }) => named(`/waterline/queues/${encodeURIComponent(name)}`, name)],
        ["state", (queue) => badge(stands(queue)[0])],
        "waiting=stats.approximate_backlog_count number",
        ["oldest", ({ stats }) => age(stats.approximate_backlog_age_seconds), "number"],
        ["in work", ({ stats }) => count(leased(stats)), "number"],
        "added / min=rates.added_per_minute number wide",
        "done / min=rates.completed_per_minute number wide",
        ["wait p50", slowest("p50_ms"), "number wide"],
        ["wait p95", slowest("p95_ms"), "number wide"],
        "workers=stats.pollers.active_count number",
        "silent=stats.pollers.stale_count number wide",
        data.task_queues.some((/** @type {any} */ one) => one.throttled_because) && [
          "throttled by",
          ({ throttled_because: why }) => why,
          "wide second",
        ],
      ],
      data.task_queues,
      "name",
      "No queue has a worker or a task. Start a worker:",
      workerCommand(app, null),
    ),
    data.next_after
      ? h(
          "p",
          { class: "caption" },
          `There are more than ${count(data.task_queues.length)} queues; open others by their address.`,
        )
      : null,
  ];
}

/** @param {any} app @param {Api.QueueAnswer} queue */
function one(app, queue) {
  const [state, sentence] = stands(queue);
  const start = workerCommand(app, queue.name);
  return [
    h("p", { class: "sentence stands" }, badge(state), " ", sentence),
    state === "no_worker"
      ? h("p", { class: "second" }, "Start one: ", h("code", null, start), " ", copy(start, "the command"))
      : null,
    panel(
      "Tasks",
      queue.counted_by === "engine" ? null : h("span", { class: "caption" }, "only the engine knows the rates"),
      table(
        "tasks of the queue",
        [
          "kind=kind",
          "waiting=ready_count number",
          ["oldest", (row) => age(row.oldest_ready_age_seconds), "number"],
          "in work=leased_count number",
          "leases lost=expired_lease_count number wide",
          "added / min=added_last_minute number",
          "handed out / min=dispatched_last_minute number wide",
          "done / min=completed_last_minute number",
          ["wait p50", (row) => span(row.p50_ms), "number"],
          ["wait p95", (row) => span(row.p95_ms), "number"],
          "slots=slots number wide",
          "at once, at most=max_active_leases_per_queue number wide",
          "per min, at most=max_dispatches_per_minute number wide",
        ],
        /** @type {const} */ (["workflow_tasks", "activity_tasks"]).map((kind) => ({
          ...queue.stats[kind],
          ...queue.schedule_to_start?.[kind],
          ...queue.admission[kind],
          kind: words(kind),
        })),
        "kind",
      ),
    ),
  ];
}

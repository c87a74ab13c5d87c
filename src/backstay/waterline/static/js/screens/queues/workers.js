// Queues, workers: the builds that serve a queue, and the workers.
/** @import { App } from "../../main.js" */

import { h } from "../../dom.js";
import { link, words, workerCommand } from "../../parts.js";
import { count, plural } from "../../words.js";
import { adminOnly, asked, press, table } from "../house/kit.js";

/** @param {App} app @param {string} path @param {Api.BuildAnswer[]} builds @param {() => void} load */
export function buildTable(app, path, builds, load) {
  /** @param {Api.BuildAnswer} build @param {string} label @param {string} sentence @param {string} [why] */
  const act = (build, label, sentence, why) =>
    press(
      app,
      label,
      asked(app, "post", `${path}/build-ids/${label.toLowerCase()}`, () => ({ build_id: build.build_id }), {
        title: `${label} ${build.build_id ?? "the workers without a build id"}?`,
        sentence,
        label,
        done: load,
      }),
      why,
    );
  return table(
    "builds",
    [
      "build=name mono",
      [
        "state",
        (build) =>
          build.drain_intent === "draining"
            ? h("span", { class: "tone-violet" }, build.drained ? "‖ drained" : "‖ draining")
            : words(build.rollout_status),
      ],
      [
        "open runs",
        (build) =>
          build.build_id && build.open_runs
            ? link(`/waterline/runs?compatibility=${encodeURIComponent(build.build_id)}`, null, count(build.open_runs))
            : count(build.open_runs),
        "number",
      ],
      "workers=total_worker_count number wide",
      "silent=stale_worker_count number wide",
      ["new runs", (build) => (build.new_start_selected ? "begin here" : "–"), "wide"],
      "first seen=first_seen_at time wide",
      [
        "",
        (build) =>
          h(
            "div",
            { class: "actions" },
            build.drain_intent === "draining"
              ? act(build, "Resume", "Its workers get new work again.")
              : act(
                  build,
                  "Drain",
                  `Its workers finish their tasks and get no new ones.${build.open_runs ? ` ${plural(build.open_runs, "open run")} that only this build fits will wait until it is resumed.` : ""}`,
                ),
            act(
              build,
              "Promote",
              "New runs of this queue begin with this build. Runs that are open stay with theirs.",
              build.new_start_selected ? "New runs begin with this build already." : undefined,
            ),
          ),
      ],
    ],
    builds.map((build) => ({ ...build, name: build.build_id ?? "no build id" })),
    "name",
    "No worker has served this queue, and no open run is pinned to a build.",
  );
}

/**
 * @param {App} app
 * @param {any[]} workers
 * @param {string | null} name of the queue
 * @param {any} queue
 * @param {() => void} load
 */
export function fleet(app, workers, name, queue, load) {
  /** @param {string} kind @returns {(worker: any) => string} */
  const slots = (kind) => (worker) => {
    const used = queue?.current_leases?.filter(
      (/** @type {any} */ lease) => lease.lease_owner === worker.worker_id && lease.task_type === kind,
    ).length;
    return `${used === undefined ? "" : `${count(used)} / `}${count(worker[`max_concurrent_${kind}_tasks`])}`;
  };
  return table(
    "workers",
    [
      "worker=worker_id mono",
      [
        "state",
        ({ status }) =>
          status === "stale"
            ? h("span", { class: "tone-amber" }, "↻ silent")
            : status === "draining"
              ? h("span", { class: "tone-violet" }, "‖ draining")
              : status,
      ],
      "host=host mono wide",
      "process=process_id mono wide",
      "build=build_id mono",
      name === null && ["queues", (worker) => worker.task_queues.join(", "), "mono"],
      ["workflow slots", slots("workflow"), "number wide"],
      ["activity slots", slots("activity"), "number wide"],
      "runtime=runtime mono wide",
      "version=sdk_version mono wide",
      "heard=last_heartbeat_at time",
      workers.some((worker) => worker.status === "stale") && [
        "",
        ({ worker_id: id, status }) =>
          status === "stale"
            ? press(
                app,
                "Forget",
                asked(app, "delete", `/api/workers/${encodeURIComponent(id)}`, () => null, {
                  title: "Forget this worker?",
                  sentence: `${id} is silent. If it is alive, it registers again.`,
                  label: "Forget",
                  danger: true,
                  done: load,
                }),
                adminOnly(app, "forget workers"),
              )
            : null,
      ],
    ],
    workers,
    "worker_id",
    "No worker is registered here. Start one:",
    workerCommand(app, name),
  );
}

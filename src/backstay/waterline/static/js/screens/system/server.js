// System, server: what this server is, the nodes of its database, and the namespaces.
/** @import { App } from "../../main.js" */
/** @import { All } from "../system.js" */

import { facts, field, held, panel, words } from "../../parts.js";
import { bytes, count } from "../../words.js";
import { adminOnly, asked, named, press, table } from "../house/kit.js";
import { told } from "./tones.js";

/** @param {App} app @param {All} all @param {() => void} load @param {() => void} again */
export function server(app, all, load, again) {
  if (all.nodes.data?.nodes.some(({ status }) => !["active", "guest", "drained"].includes(status))) again();
  const create = () => {
    const values = { name: "", description: "", retention_days: 30 };
    asked(app, "post", "/api/namespaces", () => ({ ...values, retention_days: Number(values.retention_days) }), {
      title: "New namespace",
      sentence: "A namespace has ids, queues and schedules of its own.",
      label: "Create",
      done: load,
      fields: (update) => [
        field(values, "name", "Name", update, { class: "mono" }),
        field(values, "description", "Description", update),
        field(values, "retention_days", "Retention of closed runs in days", update, {
          type: "number",
          min: "1",
          max: "365",
        }),
      ],
    })();
  };
  /** @param {string} id @param {string} label @param {string} sentence */
  const move = (id, label, sentence) =>
    press(
      app,
      label,
      asked(app, "post", `/api/nodes/${id}/${label.toLowerCase()}`, () => ({}), {
        title: `${label} this node?`,
        sentence,
        label,
        done: () => {
          load();
          setTimeout(load, 2500);
        },
      }),
      adminOnly(app, "do this"),
    );
  const database = all["system/health"].data?.operator_metrics?.backend.database;
  return [
    panel(
      "This server",
      null,
      ...held(all["cluster/info"], ({ topology, ...found }) =>
        facts(
          [
            ["server", `${found.server_id}, backstay ${found.version}`],
            ["environment", found.environment.name],
            ["shape", words(topology.current_shape)],
            ["roles", topology.current_roles.join(", ")],
            [
              "tasks",
              `${words(topology.matching_role.task_dispatch_mode)}, woken by the ${topology.matching_role.wake_owner}`,
            ],
            [
              "database",
              database ? `${database.driver}, the engine is ${database.engine_here ? "here" : "elsewhere"}` : "…",
            ],
            [
              "workers",
              `heard every ${found.worker_fleet.heartbeat_interval_seconds} s, silent after ${found.worker_fleet.stale_after_seconds} s`,
            ],
            ["largest payload", bytes(found.limits.max_payload_bytes)],
            ["longest history", `${count(found.structural_limits.history_length)} events`],
            ["protocols", `control plane ${found.control_plane.version}, workers ${found.worker_protocol.version}`],
          ],
          "mono",
        ),
      ),
    ),
    app.session.namespace
      ? null
      : panel(
          "Nodes",
          null,
          ...held(all.nodes, (data) =>
            table(
              "nodes",
              [
                ["node", (node) => `${node.name}${node.this ? " (this one)" : ""}`, "mono"],
                [
                  "status",
                  ({ status, note }) =>
                    told(
                      ["active", "guest"].includes(status) ? "ok" : "warning",
                      [status, note].filter(Boolean).join(", "),
                    ),
                ],
                "shards=shards number",
                "weight=weight number wide",
                "release=version wide",
                "address=address mono wide",
                [
                  "",
                  ({ id, draining }) =>
                    data.one_owner
                      ? null
                      : move(
                          id,
                          draining ? "Resume" : "Drain",
                          draining
                            ? "It owns shards again."
                            : "It hands its shards to other nodes and still serves callers.",
                        ),
                ],
              ],
              data.nodes,
              "id",
            ),
          ),
        ),
    panel(
      "Namespaces",
      press(app, "New namespace", create, adminOnly(app, "make namespaces")),
      ...held(all.namespaces, (data) =>
        table(
          "namespaces",
          [
            ["name", ({ name }) => named(`/waterline/?ns=${encodeURIComponent(name)}`, name)],
            "description=description note",
            "days kept=retention_days number",
            "made=created_at time wide",
          ],
          data.namespaces,
          "name",
        ),
      ),
    ),
  ];
}

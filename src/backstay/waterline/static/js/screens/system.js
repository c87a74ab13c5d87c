// System: whether it is healthy, what it does by itself, who may use it, and who did what.
/** @import { App } from "../main.js" */

import { Resource } from "../api.js";
import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { button, capital, copy, facts, field, held, link, panel, pre, runAddress, sign, time, words } from "../parts.js";
import { bytes, count, plural, span } from "../words.js";
import { adminOnly, asked, attempt, figures, get, named, pages, press, table, tableKeys, tell } from "./house/kit.js";

const FILTERS = ["command_type", "workflow_id", "status", "source", "caller", "token_id"];
const CHOICES = /** @type {Record<string, string[]>} */ ({ status: ["", "accepted", "rejected"], source: ["", "http", "python", "dw", "webhook", "workflow", "schedule"] });
const TONES = /** @type {Record<string, [string, string]>} */ ({ error: ["red", "▲"], warning: ["amber", "↻"], ok: ["done", "✓"] });

const PATHS = /** @type {const} */ (["system/liveness", "system/projections", "system/repair", "system/retention", "system/activity-timeouts", "cluster/info", "nodes", "namespaces", "tokens", "sessions"]);

/** @typedef {{[Path in (typeof PATHS)[number] | "system/health" | "audit"]: Resource<Api.Get<`/api/${Path}`>>}} All */

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  const query = (/** @type {string} */ name) => app.route.query.get(name);
  const section = () => query("section") ?? "health";
  const all = /** @type {All} */ (Object.fromEntries(PATHS.map((path) => [path, get(app, `/api/${path}`)])));
  const filters = () => Object.fromEntries(FILTERS.map((name) => [name, query(name)]));
  // A server that is ill says so with status 503, and why in the same words.
  all["system/health"] = new Resource(() => app.api.get("/api/system/health").catch((/** @type {any} */ error) => { if (error.body?.findings) return error.body; throw error; }), app.update);
  all.audit = get(app, "/api/audit", () => ({ page_size: 50, next_page_token: query("page"), ...filters() }));
  /** @type {Record<string, [(keyof All)[], () => any]>} what each part asks for, and how it looks */
  const views = {
    health: [["system/liveness", "system/health"], () => health(app, all)],
    maintenance: [["system/repair", "system/retention", "system/activity-timeouts", "system/projections"], () => maintenance(app, all, load)],
    server: [["cluster/info", "nodes", "system/health", "namespaces"], () => server(app, all, load, again)],
    access: [app.isAdmin ? ["tokens", "sessions"] : [], () => access(app, all, load)],
    audit: [["audit"], () => audit(app, all, filters())],
  };
  const shown = () => views[section()] ?? /** @type {[(keyof All)[], () => any]} */ (views["health"]);
  const load = () => { for (const name of shown()[0]) void all[name].load(); };
  load();
  let timer = 0;
  const again = () => { timer ||= setTimeout(() => { timer = 0; load(); }, 1000); };
  return {
    title: () => `System, ${section()}`,
    topics: () => ["system"],
    // Health costs more than other answers: it follows what moves at a distance. The audit stands still until it is asked.
    moved: () => { if (section() !== "audit") again(); },
    close: () => clearTimeout(timer),
    keys: tableKeys,
    route: load,
    view: () => [h("h1", null, "System"), h("nav", { class: "tabs", "aria-label": "parts of the system" }, ...Object.keys(views).map((name) =>
      link(`/waterline/system?section=${name}`, { "aria-current": section() === name ? "page" : null }, capital(name)))), ...shown()[1]()],
  };
}

/** @param {string} status @param {string} [text] */
const told = (status, text) => sign(TONES[status]?.[1] ?? "·", text ?? status, `tone-${TONES[status]?.[0] ?? "wait"}`);

/** @param {App} app @param {All} all */
function health(app, all) {
  const prove = () => void attempt(app, "proven", async () => { all["system/liveness"].data = await app.api.get("/api/system/liveness", { fresh: 1 }); app.update(); });
  return [
    panel("Liveness certificate", button("Prove now", prove), ...held(all["system/liveness"], (proof) => [
      h("p", { class: `sentence ${proof.stranded ? "tone-red" : ""}` }, `${plural(proof.open_runs, "open run")}, ${count(proof.stranded)} stranded, proven `, time(proof.proven_at)),
      h("p", { class: "caption" }, `Each open run is resumed by something that is on disk. The proof took ${span(proof.took_ms)}.`),
      figures(proof.resume_sources, Object.keys(proof.resume_sources).map((name) => `${words(name)}=${name}`)),
      table("stranded runs", [["run", ({ workflow_id: id }) => named(runAddress(id), id)], ["why", ({ reason }) => words(reason)], "what helps=action mono"], proof.stranded_runs, "workflow_id")])),
    panel("Findings", null, ...held(all["system/health"], (data) => [
      table("findings", [["how bad", ({ severity }) => told(severity)], "what=message note", "how many=count number", "oldest=oldest_at time wide", "what helps=action second wide note"], data.findings, "message", "There is nothing to report."),
      h("ul", { class: "checks" }, ...Object.entries(data.checks).map(([name, check]) => h("li", { key: name }, told(/** @type {any} */ (check).status, words(name)))))])),
    panel("Figures", null, ...held(all["system/health"], ({ operator_metrics: found }) => (found ? figures(found, [
      "open runs=runs.running", "tasks due=tasks.ready_due", "leased=tasks.leased", "delayed=tasks.delayed", "leases lost=leases.expired amber", "retrying=activities.retrying amber", "failed attempts=activities.failed_attempts",
      "workers=workers.active", "schedules missed=schedules.missed amber", "longest history=history.max_event_count", ["largest history", bytes(found.history.max_size_bytes)],
    ]) : null))),
  ];
}

/** @param {App} app @param {All} all @param {() => void} load */
function maintenance(app, all, load) {
  /** What a pass would do. @param {any} answer @returns {string[]} */
  const seen = (answer) => answer.would_reconcile ?? answer.results?.map((/** @type {any} */ one) => `${words(one.outcome)} ${one.workflow_id ?? one.execution_id ?? one.run_id}`) ?? [`views of ${plural(answer.matched, "run")}`];
  /** @param {any} answer */
  const done = (answer) => { load(); tell("What was done", pre("what was done", Object.entries(answer).filter(([, value]) => typeof value === "number").map(([name, value]) => `${words(name)}: ${value}`).join("\n"))); };
  /** @param {string} title @param {string} label @param {string} path @param {string} sentence @param {any} body @param {(data: any) => any} view */
  const pass = (title, label, path, sentence, body, view) => panel(title, press(app, label, asked(app, "post", `/api/${path}${path.endsWith("s/rebuild") ? "" : "/pass"}`, () => body, { title: `${label}?`, sentence, label, seen, done }), adminOnly(app, "do this")), ...held(all[/** @type {keyof All} */ (path.replace("/rebuild", ""))], view));
  return [
    pass("Repair", "Repair now", "system/repair", "What these runs need in order to move is restored from their histories, and blocked tasks are tried again.", {}, (data) => [
      figures(data.candidates, ["tasks to look at=existing_task_candidates", "runs without a task=missing_task_candidates red", ["oldest", span(Math.max(data.candidates.max_task_candidate_age_ms, data.candidates.max_missing_run_age_ms))]]),
      h("p", { class: "caption" }, `The engine does this by itself every ${data.policy.loop_throttle_seconds} s; the button only saves the wait.`)]),
    pass("Retention", "Remove now", "system/retention", "Closed runs that are older than the retention of this namespace are removed for good.", {}, (data) =>
      figures(data, ["days kept=retention_days", `${data.scan_pressure ? "expired, at least" : "expired"}=expired_run_count`, ["closed before", time(data.cutoff)], ["archive", data.archive ? "yes" : "no"]])),
    pass("Activity timeouts", "Enforce now", "system/activity-timeouts", "Activities past a timeout that has not been recorded are timed out.", {}, (data) => figures(data, ["past a timeout=expired_count amber"])),
    pass("Stored views", "Rebuild", "system/projections/rebuild", "Views that are missing or wrong are made again from histories; views of runs that are gone are removed.", { needs_rebuild: true, prune_stale: true }, ({ projections: found }) => [
      table("stored views", [["view", ({ name }) => words(name)], ["rows", (row) => count(row.rows ?? row.summaries), "number"], ["runs", (row) => count(row.projected_runs ?? row.projected), "number"], "orphaned=orphaned number", "to rebuild=needs_rebuild number"],
        Object.keys(found).filter((name) => name.startsWith("run_")).map((name) => ({ name, ...found[name] })), "name"),
      h("p", { class: "caption" }, `${plural(found.looked_at, "run")} looked at${found.complete ? "" : ", not all"}; the views follow commits by ${span(found.lag_ms)}.`)]),
  ];
}

/** @param {App} app @param {All} all @param {() => void} load @param {() => void} again */
function server(app, all, load, again) {
  if (all.nodes.data?.nodes.some(({ status }) => !["active", "guest", "drained"].includes(status))) again();
  const create = () => {
    const values = { name: "", description: "", retention_days: 30 };
    asked(app, "post", "/api/namespaces", () => ({ ...values, retention_days: Number(values.retention_days) }), {
      title: "New namespace", sentence: "A namespace has ids, queues and schedules of its own.", label: "Create", done: load,
      fields: (update) => [field(values, "name", "Name", update, { class: "mono" }), field(values, "description", "Description", update), field(values, "retention_days", "Days that closed runs are kept", update, { type: "number", min: "1", max: "365" })],
    })();
  };
  /** @param {string} id @param {string} label @param {string} sentence */
  const move = (id, label, sentence) => press(app, label, asked(app, "post", `/api/nodes/${id}/${label.toLowerCase()}`, () => ({}), { title: `${label} this node?`, sentence, label, done: () => { load(); setTimeout(load, 2500); } }), adminOnly(app, "do this"));
  const database = all["system/health"].data?.operator_metrics?.backend.database;
  return [
    panel("This server", null, ...held(all["cluster/info"], ({ topology, ...found }) => facts([
      ["server", `${found.server_id}, backstay ${found.version}`], ["environment", found.environment.name], ["shape", words(topology.current_shape)], ["roles", topology.current_roles.join(", ")],
      ["tasks", `${words(topology.matching_role.task_dispatch_mode)}, woken by the ${topology.matching_role.wake_owner}`], ["database", database ? `${database.driver}, the engine is ${database.engine_here ? "here" : "elsewhere"}` : "…"],
      ["workers", `heard every ${found.worker_fleet.heartbeat_interval_seconds} s, silent after ${found.worker_fleet.stale_after_seconds} s`],
      ["largest payload", bytes(found.limits.max_payload_bytes)], ["longest history", `${count(found.structural_limits.history_length)} events`], ["protocols", `control plane ${found.control_plane.version}, workers ${found.worker_protocol.version}`],
    ], "mono"))),
    panel("Nodes", null, ...held(all.nodes, (data) => table("nodes", [
      ["node", (node) => `${node.name}${node.this ? " (this one)" : ""}`, "mono"], ["status", ({ status, note }) => told(["active", "guest"].includes(status) ? "ok" : "warning", [status, note].filter(Boolean).join(", "))],
      "shards=shards number", "weight=weight number wide", "release=version wide", "address=address mono wide",
      ["", ({ id, draining }) => (data.one_owner ? null : move(id, draining ? "Resume" : "Drain", draining ? "It takes shards again." : "It hands its shards to others and serves on."))],
    ], data.nodes, "id"))),
    panel("Namespaces", press(app, "New namespace", create, adminOnly(app, "make namespaces")), ...held(all.namespaces, (data) => table("namespaces", [
      ["name", ({ name }) => named(`/waterline/?ns=${encodeURIComponent(name)}`, name)], "description=description note", "days kept=retention_days number", "made=created_at time wide"], data.namespaces, "name"))),
  ];
}

/** @param {App} app @param {All} all @param {() => void} load */
function access(app, all, load) {
  const why = adminOnly(app, "see tokens and sessions");
  if (why) return [panel("Tokens and sessions", null, h("p", { class: "empty" }, why))];
  /** @param {any} answer */
  const secret = (answer) => { load(); tell("The token", [h("p", { class: "sentence" }, "It is shown this once; only its hash is kept."), h("p", { class: "payload" }, h("code", { id: "secret" }, answer.token), copy(answer.token, "the token"))], "I have kept it"); };
  const create = () => {
    const values = { role: /** @type {Api.CreateTokenBody["role"]} */ ("viewer"), namespace: "", note: "", payloads: true };
    confirm({
      title: "New token", sentence: "Whoever has it acts in this role.", label: "Create", done: secret,
      act: () => app.api.post("/api/tokens", { ...values, namespace: values.namespace || null, payloads: values.role !== "viewer" || values.payloads }),
      fields: (update) => [
        field(values, "role", "Role", update, { options: [["viewer", "viewer: reads, changes nothing"], ["operator", "operator: reads and commands"], ["worker", "worker: runs tasks"], ["admin", "admin: everything"]] }),
        field(values, "namespace", "Namespace", update, { class: "mono", hint: "empty: all" }), field(values, "note", "Note", update, { hint: "who it is for" }), values.role === "viewer" ? field(values, "payloads", "May read payloads", update, { type: "checkbox" }) : null],
    });
  };
  /** @param {string} method @param {string} path @param {string} label @param {string} what @param {string} sentence @param {(answer: any) => void} done */
  const act = (method, path, label, what, sentence, done) => press(app, label, asked(app, method, `/api/${path}`, () => ({}), { title: `${label} this ${what}?`, sentence, label, danger: method === "delete", done }));
  return [
    app.session.authentication === "none" ? h("p", { class: "notice" }, "This server asks nobody for a token (auth is none): everybody who reaches it is an administrator.") : null,
    panel("Tokens", press(app, "New token", create), ...held(all.tokens, (data) => table("tokens", [
      "token=token_id mono", "role=role", ["namespace", ({ namespace }) => namespace ?? "all", "mono"], ["payloads", ({ payloads }) => (payloads ? "yes" : "hidden"), "wide"], "note=note note", "made=created_at time wide", "rotated=rotated_at time wide",
      ["", ({ token_id: id }) => h("div", { class: "actions" }, act("post", `tokens/${id}/rotate`, "Rotate", "token", "It gets another secret. The old one is refused from then on, and its sessions end.", secret), act("delete", `tokens/${id}`, "Revoke", "token", "It is refused from then on, and its sessions end.", load))],
    ], data.tokens, "token_id", "No token was made here; those of the settings are not listed.", "dw token create --role viewer"))),
    panel("Sessions of browsers", null, ...held(all.sessions, (data) => table("sessions", [
      ["session", ({ session_id: id }) => `${id}${id === app.session.session_id ? " (this one)" : ""}`, "mono"], "role=role", "token=token_id mono wide", "from=address mono wide", "signed in=created_at time", "ends=expires_at time wide",
      ["", ({ session_id: id }) => act("delete", `sessions/${id}`, "End", "session", "Whoever uses it has to sign in again.", load)],
    ], data.sessions, "session_id", "Nobody is signed in."))),
  ];
}

/** @param {App} app @param {All} all @param {any} values */
function audit(app, all, values) {
  return [panel("Who did what", button("Newest", () => { app.query({ page: null }); void all.audit.load(); }),
    h("form", { class: "filters", "aria-label": "filters", on: { submit: (/** @type {Event} */ event) => event.preventDefault() } }, ...FILTERS.map((name) => {
      const now = { [name]: values[name] ?? "" };
      return field(now, name, words(name), () => app.query({ [name]: now[name] || null, page: null }), { options: CHOICES[name]?.map((one) => [one, one || "any"]), class: "mono" });
    })),
    ...held(all.audit, (data) => [table("audit", [
      "when=recorded_at time",
      ["command", ({ command_type: type, target_name: target }) => `${words(type)} ${target ?? ""}`, "note"],
      ["of", ({ workflow_id: id, schedule_id: schedule }) => (id ? named(runAddress(id), id) : schedule ? named(`/waterline/schedules/${encodeURIComponent(schedule)}`, schedule) : "–")],
      ["outcome", (one) => (one.status === "rejected" ? told("warning", words(one.rejection_reason)) : words(one.outcome ?? one.status))],
      ["who", (one) => [one.caller_label, one.token_id ?? one.program ?? one.auth_roles?.[0]].filter(Boolean).join(", ") || "–", "mono wide"],
      ["from", (one) => [one.source, one.address ?? one.host].filter(Boolean).join(" "), "mono wide"],
    ], data.entries, "id", "Nothing that fits."), data.looked_at.complete ? null : h("p", { class: "caption" }, `${plural(data.looked_at.commands, "command")} looked at so far.`), pages(app, data.next_page_token)]))];
}

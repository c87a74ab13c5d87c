// Is anything stuck, why, and what to press; then how it goes, and what comes.
/** @import { App } from "../main.js" */

import { Resource } from "../api.js";
import { bars, chartTable, spark, table } from "../chart.js";
import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { badge, button, copy, empty, glyph, held, link, panel, reach, time, tone, word, workerCommand } from "../parts.js";
import { count, now, plural, span } from "../words.js";

const WINDOWS = /** @type {[string, string, number][]} */ ([["1h", "1 h", 4], ["24h", "24 h", 4], ["7d", "7 d", 7]]);
const KINDS = /** @type {[keyof Api.TypeTrend, string][]} */ ([["started", "wait"], ["completed", "done"], ["failed", "red"]]);
const SPENT = /** @type {(keyof Api.TimeSpent)[]} */ (["code", "activities", "backoff", "queue", "timers", "waiting"]);
const RARELY = 60_000; // histories are read for it
const IDLE = 15_000; // what depends on the clock or on workers changes without a commit

/** What an entry counts, and the page that lists it. @param {Api.AttentionAnswer} item @returns {[string, string]} */
function list({ cause, link: address, task_queue = "" }) {
  const [, bucket, query] = /^\/api\/flows\/(\w+)\?(.*)/.exec(address) ?? [];
  if (bucket) return ["run", `/waterline/runs?${query}&bucket=${bucket}`];
  return cause === "throttled" ? ["task", queue(task_queue)] : cause === "stranded" ? ["run", "/waterline/system"] : ["schedule", "/waterline/schedules?status=active"];
}

const queue = (/** @type {string} */ name) => `/waterline/queues/${encodeURIComponent(name)}`;
const runsOf = (/** @type {string} */ type, /** @type {string} */ bucket) => `/waterline/runs?workflow_type=${encodeURIComponent(type)}&bucket=${bucket}`;
/** Not all is never 100 %. @param {number | null} rate */
const percent = (rate) => (rate === null ? "–" : `${rate > 0.99 && rate < 1 ? "> 99" : Math.round(rate * 100)} %`);

/** Percentiles are right within a factor of two. @param {number | null} ms */
const about = (ms) => (ms === null ? "–" : `≈ ${span(ms)}`);

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  let [took, ended, due, again, closed, said] = [0, 0, Infinity, false, false, ""];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const period = () => WINDOWS.find(([name]) => name === app.route.query.get("window"))?.[0] ?? "24h";
  const pause = () => Math.max(1000, 10 * took);

  /** @type {string[]} */
  let names = [];
  const spent = new Resource(() => app.api.get("/api/time-spent", { workflow_type: names }), app.update);
  const overview = new Resource(async () => {
    const began = performance.now();
    try {
      const answer = /** @type {Api.Get<"/api/overview"> & {first?: boolean}} */ (await app.api.get("/api/overview", { window: period() }));
      if (!answer.certificate && answer.engine === "here") answer.certificate = await app.api.get("/api/system/liveness");
      answer.first = !answer.stock.open && !answer.types.count && !(await app.api.get("/api/flows/all", { page_size: 1, definition: 0 })).flow_count;
      names = answer.types.busiest.slice(0, 20).map((one) => one.workflow_type);
      if (names.length && (!spent.loadedAt || performance.now() - spent.loadedAt > RARELY)) void spent.load();
      return answer;
    } finally {
      ended = performance.now();
      took = ended - began;
      plan(again ? pause() : IDLE);
      again = false;
    }
  }, app.update);

  /** Ask again after so long, if that is not planned for earlier. @param {number} after */
  function plan(after) {
    if (closed || performance.now() + after >= due) return;
    clearTimeout(timer);
    due = performance.now() + after;
    timer = setTimeout(() => {
      due = Infinity;
      if (document.visibilityState === "visible") void overview.load();
      else plan(IDLE);
    }, after);
  }

  void overview.load();
  return {
    title: () => "Overview",
    topics: () => ["overview"],
    moved() {
      again = true; // stored views follow a commit a little later, so it is asked twice; never for more than a tenth of the time
      plan(Math.max(0, ended + pause() - performance.now()));
    },
    route: () => void (overview.data?.window === period() || overview.load()),
    close() {
      closed = true;
      clearTimeout(timer);
    },
    view: () => h("div", { class: "overview" }, held(overview, (data) => data.first ? first(data) : [
      certificate(data), needs(data), flow(data), h("div", { class: "pair", key: "pair" }, queues(data), types(data), tide(data)), data.types.count ? spending() : null])),
  };

  /** The first line: no run is stranded, and how long ago that was proven. @param {Api.OverviewAnswer} data */
  function certificate({ certificate: proof, stock }) {
    const age = proof ? Math.max(0, Math.floor((now() - Date.parse(proof.proven_at)) / 1000)) : 0;
    const runs = `${plural(stock.open, "open run")}, `;
    return h("header", { key: "certificate" },
      h("h1", { class: proof?.stranded ? "tone-red" : null }, !proof ? `${runs}not proven here` : [
        h("span", { class: proof.stranded ? null : "sound", "aria-hidden": "true" }, proof.stranded ? "▲ " : "✓ "), runs,
        proof.stranded ? link("/waterline/system", null, `${count(proof.stranded)} stranded`) : "0 stranded",
        h("span", { class: "proven" }, `, proven ${age < 60 ? `${age} s` : span(age * 1000)} ago${proof.open_runs === stock.open ? "" : ` for ${count(proof.open_runs)}`}`)]),
      proof ? null : h("p", { class: "second" }, "This server is not the engine of its database. The one that is proves whether a run is stranded."),
      h("ul", { class: "stock", "aria-label": "open runs by state" }, ...Object.entries(stock.states).map(([state, runs]) =>
        h("li", { class: runs ? null : "none" }, link(`/waterline/runs?state=${state}&bucket=running`, null, badge(state), " ", h("span", { class: "number" }, count(runs)))))));
  }

  /** @param {Api.OverviewAnswer} data */
  function needs({ attention }) {
    return panel("Needs somebody", h("span", { class: "second" }, said), attention.length ? h("ul", { class: "needs" }, ...attention.map((item) => {
      const colour = item.tone === "danger" ? "red" : "amber";
      const [unit, to] = list(item);
      return h("li", { key: [item.cause, item.task_queue, item.task_type, item.type, item.build_id, item.workflow_type].join(" ") },
        h("span", { class: `glyph tone-${colour}`, "aria-hidden": "true" }, tone(item.cause) === colour ? glyph(item.cause) : colour === "red" ? "▲" : "↻"),
        h("p", { class: "sentence" }, item.sentence),
        link(to, { class: "number" }, plural(item.count, unit)),
        h("span", { class: "second number" }, item.oldest_since ? time(item.oldest_since) : null),
        h("div", { class: "helps second" }, action(item)));
    })) : h("p", { class: "sentence" }, "Nothing needs you."));
  }

  /** What helps: a button where the server can do it, else what to do elsewhere. @param {Api.AttentionAnswer} item */
  function action(item) {
    const { verb, label } = item.action;
    if (verb === "start_worker")
      return [label, copy(`${workerCommand(app, item.task_queue)}${item.missing === "build" ? ` --build ${word(item.build_id ?? "")}` : ""}`, "the command")];
    if (verb !== "repair" && verb !== "retry_now") return label;
    const pass = item.cause !== "repair_needed" && verb === "repair";
    const not = app.readOnly ?? (pass && !app.isAdmin ? "A repair pass needs the role admin." : null);
    return button(`${label} …`, () => act(item, pass), { why: not });
  }

  /** @param {Api.AttentionAnswer} item @param {boolean} pass a pass over everything, else the command to each run of this cause */
  function act(item, pass) {
    const { verb, label: title } = item.action;
    const label = pass ? title : `${title}: ${plural(item.count, "run")}`;
    const post = (/** @type {boolean} */ dry_run, /** @type {import("../api.js").Intent} */ intent = {}) => pass ? app.api.post("/api/system/repair/pass", {}, dry_run ? { dry_run: 1 } : {})
      : app.api.post("/api/bulk", { action: /** @type {"repair" | "retry_now"} */ (verb), filter: { attention: item.cause }, expected_count: item.count, dry_run }, {}, intent);
    confirm({
      title, label, sentence: item.sentence,
      async preview() {
        /** @type {{examples?: any[], would_reconcile?: string[]}} */
        const { examples, would_reconcile: runs } = await post(true);
        return { accepted: true, would_write: { runs: runs?.map((name) => ({ name })) ?? examples?.map((one) => ({ name: one.would_write, workflow_id: one.workflow_id })) } };
      },
      act: (intent) => post(false, intent),
      done() {
        app.announce((said = `Done: ${label}`));
        again = true;
        void overview.load();
      },
    });
  }

  /** @param {string} name @param {any} chart */
  function charted(name, chart) {
    return [bars(chart), app.route.query.get("table") === name ? chartTable(chart) : null];
  }

  /** The button that shows charts as tables. @param {string} name */
  function tables(name) {
    const on = app.route.query.get("table") === name;
    return button("Show as table", () => app.query({ table: on ? null : name }), { class: "plain caption", "aria-pressed": String(on) });
  }

  /** @param {{series: {since: string, interval_seconds: number, points: any[]}, totals: any, window: string}} data */
  function flow({ series: { since, interval_seconds, points }, totals, window: shown }) {
    const [, label, ticks] = WINDOWS.find(([name]) => name === shown) ?? ["", "", 4];
    const kinds = KINDS.map(([name, tone]) => ({ name, tone, values: points.map((point) => point[name]) }));
    return panel("Flow", [tables("flow"), h("div", { class: "chips", role: "group", "aria-label": "window" }, ...WINDOWS.map(([name, said]) =>
      button(said, () => app.query({ window: name }, { replace: false }), { class: "chip number", "aria-pressed": String(period() === name) })))],
    h("dl", { class: "totals" }, ...[...kinds.map(({ name, tone }) => [name, count(totals[name]), tone]), ["cancelled", count(totals.cancelled)], ["terminated", count(totals.terminated)],
      ["pass rate", percent(totals.pass_rate)], ["p50", about(totals.p50_ms)], ["p95", about(totals.p95_ms)]].map(([name, value, tone]) =>
      h("div", null, h("dt", { class: "caption" }, tone ? h("span", { class: `swatch fill-${tone}` }) : null, name), h("dd", { class: "number" }, value)))),
    ...charted("flow", { label: `Runs of the last ${label}`, start: Date.parse(since), step: interval_seconds * 1000, ticks, series: kinds }));
  }

  /** @param {Api.OverviewAnswer} data */
  function queues({ queues: { count: all, oldest_waiting: rows }, fleet, schedules }) {
    const workers = fleet ? `${plural(fleet.active, "worker")} on ${plural(fleet.queues, "queue")}${fleet.stale ? `, ${count(fleet.stale)} gone quiet` : ""}` : "Workers are not known here";
    return panel("Queues", link("/waterline/queues", null, all > rows.length ? `All ${count(all)}` : workers), table("queues", [
      ["queue", ({ name }) => link(queue(name), { class: "clip", title: name }, name)],
      ["backlog"],
      ["oldest", ({ oldest_ready_at: at }) => at ? time(at) : "–"],
      ["running", ({ leased }) => count(leased)],
      ["workers", ({ backlog, workers }) => backlog && !workers ? h("span", { class: "tone-red" }, "▲ none") : count(workers)],
    ], rows), h("p", { class: "caption" }, fleet?.builds.length ? `Builds ${fleet.builds.slice(0, 5).join(", ")}. ` : null,
      link("/waterline/schedules", null, plural(schedules.active, "active schedule")), schedules.next_fire_at ? [", next ", time(schedules.next_fire_at)] : null));
  }

  /** @param {Api.OverviewAnswer} data */
  function types({ types: { count: all, busiest } }) {
    return panel("Types", all > busiest.length ? h("span", { class: "second" }, `the busiest ${busiest.length} of ${count(all)}`) : null, table("types", [
      ["type", ({ workflow_type: type }) => link(runsOf(type, "all"), { class: "clip", title: type }, type)],
      ["trend", ({ trend }) => spark(/** @type {any} */ (KINDS.map(([name, tone]) => ({ name, tone, values: trend[name] }))))],
      ["started"], ["completed"],
      ["failed", ({ failed, workflow_type: type }) => failed ? link(runsOf(type, "failed"), { class: "tone-red" }, `✕ ${count(failed)}`) : "0"],
      ["pass rate", (type) => percent(type.pass_rate)],
      ["p50", (type) => about(type.p50_ms)],
      ["p95", (type) => about(type.p95_ms)],
    ], busiest));
  }

  /** Where the time of the busiest types goes: a bar, and the same in numbers. */
  function spending() {
    /** @param {Api.TypeTimeSpent} one @param {keyof Api.TimeSpent} kind */
    const share = ({ milliseconds: all }, kind) => all[kind] / (SPENT.reduce((sum, name) => sum + all[name], 0) || 1);
    return panel("Where the time goes", h("span", { class: "second" }, "of the last closed runs"), ...held(spent, ({ types: found }) => !found.some(({ runs }) => runs) ? h("p", { class: "second" }, "No run of these types has closed yet.") : table("where the time goes", [
      ["type", ({ workflow_type: type }) => link(runsOf(type, "all"), { class: "clip", title: type }, type)],
      ["runs", ({ runs, sampled }) => `${sampled ? "last " : ""}${count(runs)}`],
      ["share", (one) => h("div", { class: "spent", "aria-hidden": "true" }, ...SPENT.map((kind) => h("span", { class: `spent-${kind}`, title: kind, style: { width: `${100 * share(one, kind)}%` } })))],
      ...SPENT.map((kind) => /** @type {any} */ ([[h("span", { class: `swatch spent-${kind}` }), kind], (/** @type {Api.TypeTimeSpent} */ one) => percent(share(one, kind))])),
    ], found.filter(({ runs }) => runs))));
  }

  /** What will wake: it is expected, so its bars are hollow. @param {Api.Get<"/api/overview">} data */
  function tide({ wakes, generated_at: at }) {
    const start = Date.parse(at);
    return panel("What will wake", tables("tide"), h("div", { class: "pair" }, .../** @type {[string, Api.WakeIntervals, number][]} */ ([["next hour", wakes.next_hour, 12], ["next day", wakes.next_day, 24]]).map(([name, { runs, intervals, interval_seconds }, n]) => {
      const step = interval_seconds * 1000;
      const values = Array(n).fill(0);
      for (const one of intervals) values[Math.min(n - 1, Math.max(0, Math.round((Date.parse(one.at) - start) / step)))] += one.runs;
      const label = `${plural(runs, "run")} in the ${name}`;
      return h("figure", null, h("figcaption", null, label), ...charted("tide", { label, start, step, ticks: 4, ahead: true, series: [{ name: "runs", tone: "none", values }] }));
    })), wakes.complete ? null : h("p", { class: "second" }, "There are more after ", time(wakes.counted_until), "."));
  }

  /** Before the first run: how to get there. @param {Api.OverviewAnswer} data */
  function first({ fleet }) {
    return [h("h1", null, "No run yet"), h("p", { class: "sentence" }, "Here you will see whether anything is stuck, why, and what to press."),
      h("ol", { class: "first" }, ...(fleet?.active ? [[`${plural(fleet.active, "worker")} can run workflows. Start one`, `dw start FILE:WORKFLOW first-1 ${reach(app)}`]] : [
        ["Save this as hello.py", 'from backstay import sleep, workflow\n\n\n@workflow\ndef hello(name: str) -> str:\n    sleep("10s")\n    return f"Hello {name}"\n'],
        ["Start a worker that runs it", `dw worker hello.py ${reach(app)}`],
        ["Start a workflow", `dw start hello.py:hello hello-1 '"Ada"' ${reach(app)}`],
      ]).map(([text, code = ""]) => h("li", null, text, " ", copy(code, "it"), h("pre", { class: "payload", tabindex: "0" }, code)))),
      empty("While you write code: server, worker and this page in one, reloaded on every save.", "dw dev hello.py")];
  }
}

// A run: its state, the reason for it, and tabs with everything that is recorded.
/** @import { App } from "../../main.js" */

import { Resource, runPath } from "../../api.js";
import { h } from "../../dom.js";
import { capital, link, trouble } from "../../parts.js";
import { now } from "../../words.js";
import { tab as activities } from "./activities.js";
import { tab as exports } from "./export.js";
import { tab as failures } from "./failures.js";
import { head, missing } from "./head.js";
import { tab as history } from "./history.js";
import { tab as lineage } from "./lineage.js";
import { tab as messages } from "./messages.js";
import { tab as timeline } from "./timeline.js";
import { tab as waits } from "./waits.js";

/**
 * What a tab gets, and what it gives: `moved` is called with news of the run, `route` when the query of the address has
 * changed.
 * @typedef
 * {{app: any, id: string, run: string | null, summary: Resource<Api.SummaryAnswer>, why: Resource<Api.WhyAnswer>,
 * update: () => void,
 *   part: (name: string, params?: Record<string, any>) => Promise<any>, openEvent: (sequence: number) => void}} Context
 * @typedef
 * {{view: () => any, moved?: (news: import("../../live.js").News) => void, route?: () => void, close?: () => void,
 *   keys?: () => import("../../keys.js").Keys}} Tab
 */

/** @type {Record<string, (ctx: Context) => Tab>} */
const TABS = { timeline, history, activities, waits, messages, lineage, failures, export: exports };

/** @param {App} app @returns {import("../../main.js").Screen} */
export function open(app) {
  const { id: named, run } = app.route;
  const id = named ?? "";
  /** @type {Context["part"]} */
  const part = (name, params) => app.api.get(runPath(id, run, name), params);
  /** @type {Context} */
  const ctx = {
    app,
    id,
    run,
    part,
    update: app.update,
    summary: new Resource(
      () => part("summary"),
      () => {
        settled();
        app.update();
      },
    ),
    why: new Resource(() => part("why"), app.update),
    openEvent: (sequence) => app.query({ tab: "history", event: String(sequence) }, { replace: false }),
  };
  const top = head(ctx, () => reload({ kind: "reload", namespace: app.api.namespace }));
  const lost = missing(ctx);
  /** @type {Record<string, Tab>} */
  const opened = {};
  const name = (tab = app.route.query.get("tab") ?? "") => (Object.hasOwn(TABS, tab) ? tab : "timeline");
  const tab = () => (opened[name()] ??= /** @type {any} */ (TABS)[name()](ctx));
  const gone = () => ctx.summary.problem?.status === 404;

  /** The summary has been answered, which says what else is needed. */
  function settled() {
    if (gone() && !ctx.summary.data) lost.settled();
    else top.settled();
  }

  /** @param {import("../../live.js").News} news */
  function reload(news) {
    // A stream begins with where everything stands. The summary may know that already; what a tab shows may be older
    // than it.
    if (
      news.kind !== "moved" ||
      news.data?.run_id !== ctx.summary.data?.run_id ||
      news.data?.sequence !== ctx.summary.data?.events
    ) {
      void ctx.summary.load();
      void ctx.why.load();
      top.moved();
    }
    for (const one of Object.values(opened)) one.moved?.(news);
  }

  // The sentence counts seconds, and a new worker is not an event of the run: load it again now and then, less often
  // the longer things take.
  const ticking = setInterval(() => {
    const why = ctx.why.data;
    if (document.visibilityState !== "visible" || gone() || !why) return;
    const near = Math.min(...[why.since, why.until].map((at) => (at ? Math.abs(now() - Date.parse(at)) : 3e5)), 3e5);
    if (performance.now() - ctx.why.loadedAt < Math.min(Math.max(near / 10, 2000), 30_000)) return;
    void ctx.why.load();
    void ctx.summary.load();
  }, 1000);

  void ctx.summary.load();
  void ctx.why.load();
  return {
    title: () => id,
    topics: () => (ctx.summary.data && !gone() ? [`run:${id}`] : []),
    view: () => {
      const { data, problem } = ctx.summary;
      if (!data && problem) return lost.view(problem);
      return [
        top.view(),
        gone()
          ? h(
              "p",
              { class: "notice", role: "alert" },
              "This run was removed just now. The page shows its last state. ",
              link("/waterline/runs", null, "Go to the list of runs"),
            )
          : problem
            ? trouble(problem, () => void ctx.summary.load())
            : null,
        h(
          "nav",
          { class: "tabs", "aria-label": "parts of the run" },
          ...Object.keys(TABS).map((one) =>
            link(address(app, one), { key: one, "aria-current": one === name() ? "page" : null }, capital(one)),
          ),
        ),
        h("div", { key: name(), class: "tab" }, tab().view()),
      ].flat();
    },
    moved: reload,
    route: () => opened[name()]?.route?.(),
    keys: () => opened[name()]?.keys?.() ?? {},
    close: () => {
      clearInterval(ticking);
      for (const one of Object.values(opened)) one.close?.();
    },
  };
}

/** The address of a tab; only the namespace is kept of the query. @param {App} app @param {string} tab */
function address(app, tab) {
  const query = new URLSearchParams(tab === "timeline" ? {} : { tab });
  const space = app.route.query.get("ns");
  if (space !== null) query.set("ns", space);
  const text = query.toString();
  return location.pathname + (text ? `?${text}` : "");
}

// A run: what it is, where it stands and why, and everything that is recorded of it in tabs.

import { Resource, runPath } from "../../api.js";
import { h } from "../../dom.js";
import { held, link } from "../../parts.js";
import { tab as activities } from "./activities.js";
import { tab as exports } from "./export.js";
import { tab as failures } from "./failures.js";
import { tab as history } from "./history.js";
import { tab as lineage } from "./lineage.js";
import { tab as messages } from "./messages.js";
import { tab as timeline } from "./timeline.js";
import { tab as waits } from "./waits.js";

/**
 * What a tab gets, and what it gives: `moved` is called with news of the run, `route` when the query of the address has changed.
 * @typedef {{app: any, id: string, run: string | null, summary: Resource, why: Resource, update: () => void,
 *   part: (name: string, params?: Record<string, any>) => Promise<any>, openEvent: (sequence: number) => void}} Context
 * @typedef {{view: () => any, moved?: (news: import("../../live.js").News) => void, route?: () => void, close?: () => void}} Tab
 */

/** @type {Record<string, (ctx: Context) => Tab>} */
const TABS = { timeline, history, activities, waits, messages, lineage, failures, export: exports };

/** @param {any} app */
export function open(app) {
  const { id, run } = app.route;
  const part = (/** @type {string} */ name, /** @type {any} */ params) => app.api.get(runPath(id, run, name), params);
  /** @type {Context} */
  const ctx = {
    app, id, run, part, update: app.update,
    summary: new Resource(() => part("summary"), app.update),
    why: new Resource(() => part("why"), app.update),
    openEvent: (sequence) => app.query({ tab: "history", event: String(sequence) }, { replace: false }),
  };
  /** @type {Record<string, Tab>} */
  const opened = {};
  const name = () => (app.route.query.get("tab") in TABS ? app.route.query.get("tab") : "timeline");
  const tab = () => (opened[name()] ??= TABS[name()](ctx));
  void ctx.summary.load();
  void ctx.why.load();
  return {
    title: () => id,
    topics: () => [`run:${id}`],
    view: () => [
      h("h1", { class: "mono" }, id),
      held(ctx.summary, () => [
        h("nav", { class: "tabs", "aria-label": "parts of the run" }, ...Object.keys(TABS).map((one) =>
          link(`?tab=${one}`, { key: one, "aria-current": one === name() ? "page" : null }, one))),
        h("div", { key: name() }, tab().view()),
      ]),
    ].flat(),
    moved: (/** @type {any} */ news) => {
      void ctx.summary.load();
      void ctx.why.load();
      opened[name()]?.moved?.(news);
    },
    route: () => opened[name()]?.route?.(),
    close: () => Object.values(opened).forEach((one) => one.close?.()),
  };
}

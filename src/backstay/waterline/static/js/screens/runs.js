// Runs: search them, see their state, and send one command to many. The address says what is shown.
/** @import { App } from "../main.js" */

import { Resource } from "../api.js";
import { held, trouble } from "../parts.js";
import { plural } from "../words.js";
import { asking } from "./runs/asking.js";
import { progress } from "./runs/bulk.js";
import { chosen, fieldsFor } from "./runs/columns.js";
import { grouped, ofQuery, parse } from "./runs/filters.js";
import { bar, PAGE, table } from "./runs/list.js";
import { searchBox } from "./runs/search.js";
import { Selection } from "./runs/selection.js";
import { top } from "./runs/top.js";

const SLOWLY = 15_000; // sentences tell how long something takes, so they grow old without any news

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  const { api, update } = app;
  const definition = new Resource(() => api.get("/api/flows/definition"), update);
  const views = new Resource(() => api.get("/api/saved-views"), update);
  const asks = asking(app, definition, views);
  const { query, bucket, pairs, write, keyOf } = asks;
  const list = new Resource(async () => {
    const key = keyOf();
    const found = await page();
    picks.shown(found.flows.map((/** @type {any} */ row) => row.run_id));
    return /** @type {import("./runs/list.js").Shown} */ ({
      key,
      rows: found.flows,
      next: found.next_page_token,
      complete: found.complete,
      looked: found.looked_at,
      among: found.sorted_among,
      fresh: 0,
    });
  }, update);
  const counts = new Resource(async () => {
    return api.get(`/api/flows/${bucket()}/count`, {
      ...(await params()),
      state: null,
      sort: null,
      order: null,
      group_by: "state",
      definition: 0,
    });
  }, update);
  const bulk = new Resource(
    async () =>
      query().get("bulk")
        ? api.get(`/api/bulk/${encodeURIComponent(query().get("bulk") ?? "")}`, { next_page_token: results })
        : null,
    update,
  );
  const box = searchBox(
    app,
    () => definition.data,
    () => pairs().find(([name]) => name === "q")?.[1] ?? "",
    (text) => {
      const found = parse(text, definition.data);
      write([...pairs().filter(([name]) => name !== "q"), ...found]);
    },
  );

  const picks = new Selection(app, asks, () => list.data?.rows ?? []);
  let results = "";
  let key = keyOf();
  let operation = query().get("bulk");
  let [cost, last, timer, wanted] = [50, 0, 0, false];

  const ready = definition.load();
  queueMicrotask(() => {
    void views.load();
    void list.load();
    void counts.load();
    if (operation) void bulk.load();
  });
  // News of an operation may get lost with a stream that is opened again just when it ends, so it is asked after as
  // well.
  const following = setInterval(() => {
    if (operation && bulk.data && !bulk.data.ended_at) void bulk.load();
  }, 2000);
  const slowly = setInterval(() => {
    if (document.visibilityState === "visible") soon();
  }, SLOWLY);

  // -- what is asked

  async function params() {
    if (query().get("q")?.includes(":")) await ready; // it tells which words are fields
    return {
      ...grouped(ofQuery(query(), definition.data)),
      view: query().get("view"),
      sort: query().get("sort"),
      order: query().get("order"),
    };
  }

  const page = async () =>
    api.get(`/api/flows/${bucket()}`, {
      ...(await params()),
      fields: fieldsFor(chosen(query())),
      page_size: PAGE,
      definition: 0,
      next_page_token: query().get("next_page_token"),
    });

  // -- live: rows that are shown change in place, new ones wait behind a button

  /** Look again, at most a tenth of the time. */
  function soon() {
    wanted = true;
    if (!timer)
      timer = setTimeout(() => void renew(), Math.max(0, last + Math.max(500, 10 * cost) - performance.now()));
  }

  async function renew() {
    wanted = false;
    const began = performance.now();
    /** @type {import("./runs/list.js").Shown | null} */
    const before = list.data;
    if (before?.rows.length && before.key === key) {
      try {
        const [found] = await Promise.all([page(), counts.load()]);
        const rows = new Map(found.flows.map((/** @type {any} */ row) => [row.run_id, row]));
        const shown = new Set(before.rows.map((row) => row.run_id));
        const fresh = [...rows.keys()].filter((id) => !shown.has(id)).length;
        // What is closed stays as it is.
        const others = before.rows.filter((row) => !row.is_terminal && !rows.has(row.run_id)).map((row) => row.run_id);
        if (others.length)
          for (const row of (
            await api.get("/api/flows/all", {
              run_id: others,
              fields: fieldsFor(chosen(query())),
              page_size: PAGE,
              definition: 0,
            })
          ).flows)
            rows.set(row.run_id, row);
        if (list.data === before) {
          if (fresh && !before.fresh) app.announce(plural(fresh, "new run"));
          list.data = {
            ...before,
            rows: before.rows.map((row) => rows.get(row.run_id) ?? row),
            fresh: query().get("next_page_token") ? 0 : fresh,
          };
        }
        list.problem = null;
      } catch (problem) {
        list.problem = /** @type {any} */ (problem);
      }
      update();
    } else await Promise.all([list.load(), counts.load()]);
    [last, timer] = [performance.now(), 0];
    cost = last - began;
    if (wanted) soon();
  }

  return {
    title: () => "Runs",
    topics: () => (operation && !bulk.data?.ended_at && !bulk.problem ? [`bulk:${operation}`, "runs"] : ["runs"]),
    moved(news) {
      if (operation && (news.kind === "reload" || news.topic?.startsWith("bulk:"))) void bulk.load();
      if (news.kind === "reload" || news.topic === "runs") soon();
    },
    route() {
      if (query().get("bulk") !== operation) {
        [operation, results] = [query().get("bulk"), ""];
        bulk.reset();
      }
      if (keyOf() === key) return;
      key = keyOf();
      box.clear();
      picks.none();
      void list.load();
      void counts.load();
    },
    keys: () => picks.keys(),
    close() {
      [slowly, following].forEach(clearInterval);
      clearTimeout(timer);
    },
    view: () => [
      ...top(app, asks, { definition, views, counts }, box),
      operation
        ? progress(app, bulk, (token) => {
            results = token;
            void bulk.load();
          })
        : null,
      bar(picks, counts.data, list.data?.key === key ? list.data.fresh : 0, () => void list.load()),
      picks.refused ? trouble(picks.refused) : null,
      ...held(list, (data) => (data.key !== key && list.problem ? null : table(picks, data, data.key === key))),
    ],
  };
}

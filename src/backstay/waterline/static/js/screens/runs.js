// Runs: find them, see what they do, and send many of them one command. The address says what is shown, in the API's names.
/** @import { App } from "../main.js" */

import { Resource } from "../api.js";
import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { button, empty, field, glyph, held, runAddress, tone, trouble, words } from "../parts.js";
import { count, now, plural } from "../words.js";
import { ACTIONS, ask, past, progress } from "./runs/bulk.js";
import { cells, chooseColumns, chosen, fieldsFor, head, least } from "./runs/columns.js";
import { OTHERS, asView, chips, fieldsOf, grouped, ofQuery, ofView, over, parse } from "./runs/filters.js";
import { searchBox } from "./runs/search.js";

const PAGE = 50; // as many values as a filter of the server may have: rows are asked for again by their run ids
const SLOWLY = 15_000; // sentences tell how long something takes, so they grow old without any news
const SINCE = { "15 min": 15, hour: 60, "24 h": 1440, "7 d": 10_080, "30 d": 43_200 };

/** @typedef {{key: string, rows: Api.ListedRunAnswer[], next: string | null, complete: boolean, looked: number, fresh: number}} Shown */

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  const { api, update } = app;
  const definition = new Resource(() => api.get("/api/flows/definition"), update);
  const views = new Resource(() => api.get("/api/saved-views"), update);
  const list = new Resource(async () => {
    const key = keyOf();
    const found = await page();
    picked = new Set(found.flows.map((/** @type {any} */ row) => row.run_id).filter((/** @type {string} */ id) => picked.has(id)));
    return /** @type {Shown} */ ({ key, rows: found.flows, next: found.next_page_token, complete: found.complete, looked: found.looked_at, fresh: 0 });
  }, update);
  const counts = new Resource(async () => {
    return api.get(`/api/flows/${bucket()}/count`, { ...(await params()), state: null, sort: null, order: null, group_by: "state", definition: 0 });
  }, update);
  const bulk = new Resource(async () => (query().get("bulk") ? api.get(`/api/bulk/${encodeURIComponent(query().get("bulk") ?? "")}`, { next_page_token: results }) : null), update);
  const box = searchBox(app, () => definition.data, () => pairs().find(([name]) => name === "q")?.[1] ?? "", (text) => {
    const found = parse(text, definition.data);
    write([...pairs().filter(([name]) => name !== "q"), ...found]);
  });

  /** @type {Set<string>} run ids */
  let picked = new Set();
  let every = false; // all that match are meant, not only those on this page
  let cursor = "";
  let anchor = "";
  let results = "";
  let key = keyOf();
  let operation = query().get("bulk");
  /** @type {import("../api.js").Problem | null} */
  let refused = null;
  let [cost, last, timer, wanted] = [50, 0, 0, false];

  const ready = definition.load();
  queueMicrotask(() => { // what they ask for is defined below
    void views.load();
    void list.load();
    void counts.load();
    if (operation) void bulk.load();
  });
  // News of an operation may get lost with a stream that is opened again just when it ends, so it is asked after as well.
  const following = setInterval(() => { if (operation && bulk.data && !bulk.data.ended_at) void bulk.load(); }, 2000);
  const slowly = setInterval(() => { if (document.visibilityState === "visible") soon(); }, SLOWLY);

  // -- what is asked

  /** @returns {URLSearchParams} */
  function query() {
    return app.route.query;
  }
  const view = () => views.data?.saved_views.find((/** @type {any} */ one) => one.id === query().get("view"));
  const bucket = () => query().get("bucket") || "all";
  /** @returns {string} the bucket that counts */
  const within = () => view()?.bucket ?? bucket();
  const pairs = () => over(ofQuery(query(), definition.data), ofView(view()));
  const sort = () => query().get("sort") ?? view()?.filters.sort ?? "started";
  const down = () => (query().get("order") ?? view()?.filters.order ?? "desc") === "desc";

  /** What the list depends on. */
  function keyOf() {
    const rest = new URLSearchParams(query());
    rest.delete("bulk");
    return rest.toString();
  }

  async function params() {
    if (query().get("q")?.includes(":")) await ready; // it tells which words are fields
    return { ...grouped(ofQuery(query(), definition.data)), view: query().get("view"), sort: query().get("sort"), order: query().get("order") };
  }

  const page = async () => api.get(`/api/flows/${bucket()}`, { ...(await params()), fields: fieldsFor(chosen(query())), page_size: PAGE, definition: 0, next_page_token: query().get("next_page_token") });

  /** Ask for something else. A view whose filter is taken away is left. @param {import("./runs/filters.js").Pairs} next @param {Record<string, string | null>} [more] */
  function write(next, more) {
    const under = grouped(ofView(view()));
    const wish = grouped(next);
    /** @type {Record<string, any>} */
    const changes = { next_page_token: null, ...more };
    for (const name of query().keys()) if (!OTHERS.includes(name)) changes[name] = null;
    if (Object.keys(under).some((name) => !wish[name])) Object.assign(changes, { view: null, bucket: within(), sort: sort(), order: down() ? null : "asc" });
    for (const [name, values] of Object.entries(wish)) if (changes.view === null || values.join("\n") !== under[name]?.join("\n")) changes[name] = values;
    app.query(changes, {});
  }

  /** @param {string} name @param {string} value */
  const toggle = (name, value) => write(pairs().some((pair) => pair[0] === name && pair[1] === value) ? pairs().filter((pair) => pair[0] !== name || pair[1] !== value) : [...pairs(), [name, value]]);

  // -- live: rows that are shown change in place, new ones wait behind a button

  /** Look again, at most a tenth of the time. */
  function soon() {
    wanted = true;
    if (!timer) timer = setTimeout(() => void renew(), Math.max(0, last + Math.max(500, 10 * cost) - performance.now()));
  }

  async function renew() {
    wanted = false;
    const began = performance.now();
    /** @type {Shown | null} */
    const before = list.data;
    if (before?.rows.length && before.key === key) {
      try {
        const [found] = await Promise.all([page(), counts.load()]);
        const rows = new Map(found.flows.map((/** @type {any} */ row) => [row.run_id, row]));
        const shown = new Set(before.rows.map((row) => row.run_id));
        const fresh = [...rows.keys()].filter((id) => !shown.has(id)).length;
        const others = before.rows.filter((row) => !row.is_terminal && !rows.has(row.run_id)).map((row) => row.run_id); // what is closed stays as it is
        if (others.length) for (const row of (await api.get("/api/flows/all", { run_id: others, fields: fieldsFor(chosen(query())), page_size: PAGE, definition: 0 })).flows) rows.set(row.run_id, row);
        if (list.data === before) {
          if (fresh && !before.fresh) app.announce(plural(fresh, "new run"));
          list.data = { ...before, rows: before.rows.map((row) => rows.get(row.run_id) ?? row), fresh: query().get("next_page_token") ? 0 : fresh };
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

  // -- selection

  const rows = () => list.data?.rows ?? [];

  /** @param {string} id @param {boolean} range */
  function pick(id, range) {
    const ids = rows().map((row) => row.run_id);
    const on = !picked.has(id);
    const ends = [ids.indexOf(id), range && ids.includes(anchor) ? ids.indexOf(anchor) : ids.indexOf(id)];
    for (const one of ids.slice(Math.min(...ends), Math.max(...ends) + 1)) picked[on ? "add" : "delete"](one);
    [anchor, every, refused] = [id, false, null];
    update();
  }

  function unpick() {
    [picked, every, refused] = [new Set(), false, null];
    update();
  }

  /** @param {number} by */
  function step(by) {
    const links = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#runs tbody .c-workflow_id a"))];
    const at = rows().findIndex((row) => row.run_id === cursor);
    links[at < 0 ? 0 : Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
  }

  /** The runs that match, as a filter of a bulk operation, which knows no views and buckets; null if it is not known which. */
  function matching() {
    if (query().get("view") && !view()) return null;
    const found = grouped(pairs());
    if (within() === "running") found["is_terminal"] ??= ["false"];
    else if (within() !== "all") found["status"] = [within()];
    return found;
  }

  /** @param {string} action */
  async function act(action) {
    refused = null;
    try {
      await ask(app, action, every ? (matching() ?? {}) : { run_id: [...picked] }, (id) => {
        unpick();
        app.announce("begun");
        app.query({ bulk: id });
      });
    } catch (problem) {
      refused = /** @type {any} */ (problem);
    }
    update();
  }

  // -- saved views

  const contentOf = () => ({ bucket: within(), ...asView([...pairs(), ...(sort() === "started" && down() ? [] : /** @type {any} */ ([["sort", sort()], ["order", down() ? "desc" : "asc"]]))]) });
  /** @param {string | null} id */
  const choose = (id) => app.query({ ...Object.fromEntries([...query().keys()].filter((name) => name !== "columns" && name !== "bulk").map((name) => [name, null])), view: id || null }, {});

  /** @param {"Save" | "Rename" | "Delete"} what */
  function keep(what) {
    const own = view()?.system === false ? view() : null;
    const { id: _, system: __, status: ___, message: ____, ...body } = own ?? {};
    const given = { name: own?.name ?? "" };
    const same = () => views.data?.saved_views.find((/** @type {any} */ one) => !one.system && one.name === given.name);
    const to = (/** @type {string} */ id) => `/api/saved-views/${encodeURIComponent(id)}`;
    confirm({
      title: `${what} view`, label: what, danger: what === "Delete", sentence: what === "Delete" ? `“${own?.name}” is gone for everybody of the namespace.` : what === "Rename" ? `The view “${own?.name}” gets another name.` : "What the list asks for, under a name, for everybody of the namespace. A view of the same name is replaced.",
      fields: (update) => (what === "Delete" ? null : field(given, "name", "Name", update, { maxlength: 191 })),
      act: () => (what === "Delete" ? api.delete(to(own?.id ?? "")) : what === "Rename" ? api.put(to(own?.id ?? ""), { ...body, ...given }) : same() ? api.put(to(same()?.id ?? ""), { ...contentOf(), ...given }) : api.post("/api/saved-views", { ...contentOf(), ...given })),
      done: (made) => void views.load().then(() => choose(what === "Delete" ? null : made.id)),
    });
  }

  // -- the page

  function top() {
    const options = views.data?.saved_views ?? [];
    const own = view()?.system === false;
    const menu = (/** @type {string} */ label, /** @type {string} */ first, /** @type {[string, string][]} */ entries, /** @type {(value: string) => void} */ take) =>
      h("select", { "aria-label": label, on: { change: (event) => { take(event.target.value); event.target.value = ""; } } }, h("option", { value: "" }, first), ...entries.map(([value, text]) => h("option", { value }, text)));
    const since = (/** @type {string} */ value) => (Number(value) ? write([...pairs().filter(([name]) => name !== "started_after"), ["started_after", new Date(Math.floor(now() / 1000) * 1000 - Number(value) * 60_000).toISOString()]]) : box.begin(`${value}:`));
    return [
      h("header", { class: "tools" }, h("h1", null, "Runs"),
        h("select", { "aria-label": "view", on: { change: (event) => choose(event.target.value) } }, h("option", { value: "", prop: { selected: !view() } }, "All runs"), ...options.map((/** @type {any} */ one) => h("option", { value: one.id, prop: { selected: one === view() } }, one.name))),
        ...["Save", ...(own ? ["Rename", "Delete"] : [])].map((/** @type {any} */ what) => button(`${what} view`, () => keep(what), { class: "plain", disabled: !app.canWrite, title: app.readOnly })),
        h("span", { class: "grow" }), button("Operations", () => past(app), { class: "plain" }), button("Columns", () => chooseColumns(app), { class: "plain" })),
      h("div", { class: "tools" }, box.view(),
        menu("time range", "Started …", [.../** @type {[string, string][]} */ (Object.entries(SINCE).map(([text, minutes]) => [String(minutes), `last ${text}`])), ...(definition.data?.ranges ?? []).map((/** @type {string} */ one) => [one, `${words(one)} …`])], since),
        menu("add a filter", "Add filter …", [...fieldsOf(definition.data).map((field) => /** @type {[string, string]} */ ([`${field.field}:`, field.label])), ["label.", "Label"], ["attribute.", "Search attribute"]], box.begin)),
      filters(),
    ];
  }

  function filters() {
    const asked = pairs();
    const active = asked.filter(([name]) => name !== "state");
    const states = fieldsOf(definition.data).find((field) => field.field === "state")?.options ?? [];
    const { groups = [], complete = true } = counts.data ?? {};
    return [
      active.length || bucket() !== "all" ? h("div", { class: "chips", key: "active", role: "group", "aria-label": "filters" },
        ...chips(active, definition.data, (pair) => toggle(...pair)), ...chips(bucket() === "all" ? [] : [["bucket", bucket()]], null, () => write(pairs(), { bucket: null })), button("Clear", () => choose(null), { class: "plain" })) : null,
      h("div", { class: "states", key: "states", role: "group", "aria-label": "states" }, ...states.map((/** @type {any} */ { value, label }) => {
        const number = groups.find((/** @type {any} */ group) => group.value === value)?.count ?? 0;
        return h("button", { type: "button", key: value, class: `chip${number ? "" : " none"}`, "aria-pressed": String(asked.some(([name, one]) => name === "state" && one === value)), on: { click: () => toggle("state", value) } },
          h("span", { class: `state${number ? ` tone-${tone(value)}` : ""}` }, h("span", { class: "glyph", "aria-hidden": "true" }, glyph(value)), label), h("span", { class: "number" }, count(number) + (complete || !number ? "" : "+")));
      })),
    ];
  }

  /** How many match, as far as it was counted. */
  function total() {
    const states = grouped(pairs())["state"];
    const { groups = [], count: all = 0, complete = true } = counts.data ?? {};
    const number = states ? groups.filter((/** @type {any} */ group) => states.includes(group.value)).reduce((/** @type {number} */ sum, /** @type {any} */ group) => sum + group.count, 0) : all;
    return { number, text: complete ? plural(number, "run") : `${count(number)}+ runs` };
  }

  function bar() {
    const all = total();
    const fresh = list.data?.key === key ? list.data.fresh : 0;
    const unbounded = every && Object.keys(matching() ?? {}).length === 0;
    return h("div", { class: "picks", role: "group", "aria-label": "selection" },
      picked.size === 0 ? h("span", { class: "second", key: "total" }, counts.data ? all.text : " ") : null, fresh ? button(`${fresh >= PAGE ? `${PAGE}+` : fresh} new`, () => void list.load(), { class: "fresh", key: "fresh" }) : null,
      picked.size === 0 ? null : [
        h("span", { key: "picked" }, every ? `all ${all.text} that match` : plural(picked.size, "run")),
        every || all.number <= picked.size ? null : button(`all ${all.text} that match`, () => { every = true; update(); }, { class: "plain", key: "every" }),
        ...Object.entries(ACTIONS).map(([action, label]) => button(label, () => void act(action), { key: action, class: action === "cancel" || action === "terminate" ? "danger" : "", disabled: !app.canWrite || unbounded, title: app.readOnly ?? (unbounded ? "Every run of the namespace is too many: add a filter first." : undefined) })),
        button("✕", unpick, { key: "none", class: "plain", "aria-label": "select none" }),
      ]);
  }

  /** @param {Shown} data */
  function table(data) {
    if (data.key !== key && list.problem) return null;
    const names = chosen(query());
    const token = query().get("next_page_token");
    const all = data.rows.length > 0 && data.rows.every((row) => picked.has(row.run_id));
    const by = (/** @type {string} */ order) => write(pairs(), { sort: order, order: order === sort() && down() ? "asc" : null });
    const box_ = h("input", { type: "checkbox", "aria-label": "select all on this page", prop: { checked: all, indeterminate: !all && picked.size > 0 }, on: { click: () => { picked = new Set(all ? [] : data.rows.map((row) => row.run_id)); every = false; update(); } } });
    return [
      data.rows.length ? h("div", { class: "scroll", id: "runs", tabindex: "-1", key: "rows", "aria-busy": String(data.key !== key) }, h("table", { role: "table", "aria-label": "runs", style: { "--least": least(names) } }, ...head(names, sort(), down(), by, box_),
        h("tbody", { role: "rowgroup" }, ...data.rows.map((row) => h("tr", { key: row.run_id, role: "row", class: `${picked.has(row.run_id) ? "picked" : ""}${row.run_id === cursor ? " at" : ""}`, on: { focusin: () => { cursor = row.run_id; update(); } } },
          h("td", { role: "cell", class: "pick" }, h("input", { type: "checkbox", "aria-label": `select ${row.workflow_id}`, prop: { checked: picked.has(row.run_id) }, on: { click: (event) => pick(row.run_id, event.shiftKey) } })), ...cells(row, names))))))
        : token ? null : pairs().length || bucket() !== "all" || view() ? empty("No run fits these filters. In a terminal, with options for each of them:", "dw list --why --state blocked") : empty("There is no run yet. Start one:", "dw start shop.py:order order-1"),
      h("div", { class: "tools", key: "pages" }, token ? button("Newest", () => app.query({ next_page_token: null }, {})) : null, data.next ? button("Older", () => { app.query({ next_page_token: data.next }, {}); scrollTo(0, 0); }) : null,
        data.complete || (data.next && data.rows.length) ? null : h("span", { class: "second" }, `Looked at ${plural(data.looked, "run")}; there are more that were not looked at.`)),
    ];
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
      unpick();
      void list.load();
      void counts.load();
    },
    keys: () => ({
      j: ["next run", () => step(1)], k: ["previous run", () => step(-1)],
      o: ["open the run", () => { const row = rows().find((one) => one.run_id === cursor); if (row) app.go(runAddress(row.workflow_id, row.is_current_run ? null : row.run_id)); }],
      x: ["select the run", () => { if (cursor) pick(cursor, false); }], X: ["select up to the run", () => { if (cursor) pick(cursor, true); }],
    }),
    close() {
      [slowly, following].forEach(clearInterval);
      clearTimeout(timer);
    },
    view: () => [...top(), operation ? progress(app, bulk, (token) => { results = token; void bulk.load(); }) : null, bar(), refused ? trouble(refused) : null, ...held(list, table)],
  };
}

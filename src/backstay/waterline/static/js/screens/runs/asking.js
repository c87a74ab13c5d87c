// Runs, what is asked: the address says it, in the API's names, on top of a saved view.
/** @import { App } from "../../main.js" */
/** @import { Resource } from "../../api.js" */

import { OTHERS, asView, grouped, ofQuery, ofView, over } from "./filters.js";

/** What is asked, and how to ask for something else. @typedef {ReturnType<typeof asking>} Asking */

/**
 * @param {App} app
 * @param {Resource<Api.Get<"/api/flows/definition">>} definition
 * @param {Resource<Api.Get<"/api/saved-views">>} views
 */
export function asking(app, definition, views) {
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

  /**
   * Ask for something else. A view whose filter is taken away is left.
   * @param {import("./filters.js").Pairs} next
   * @param {Record<string, string | null>} [more]
   */
  function write(next, more) {
    const under = grouped(ofView(view()));
    const wish = grouped(next);
    /** @type {Record<string, any>} */
    const changes = { next_page_token: null, ...more };
    for (const name of query().keys()) if (!OTHERS.includes(name)) changes[name] = null;
    if (Object.keys(under).some((name) => !wish[name]))
      Object.assign(changes, { view: null, bucket: within(), sort: sort(), order: down() ? null : "asc" });
    for (const [name, values] of Object.entries(wish))
      if (changes.view === null || values.join("\n") !== under[name]?.join("\n")) changes[name] = values;
    app.query(changes, {});
  }

  /** @param {string} name @param {string} value */
  const toggle = (name, value) =>
    write(
      pairs().some((pair) => pair[0] === name && pair[1] === value)
        ? pairs().filter((pair) => pair[0] !== name || pair[1] !== value)
        : [...pairs(), [name, value]],
    );

  /**
   * The runs that match, as a filter of a bulk operation, which knows no views and buckets; null if it is not known
   * which.
   */
  function matching() {
    if (query().get("view") && !view()) return null;
    const found = grouped(pairs());
    if (within() === "running") found["is_terminal"] ??= ["false"];
    else if (within() !== "all") found["status"] = [within()];
    return found;
  }

  const contentOf = () => ({
    bucket: within(),
    ...asView([
      ...pairs(),
      ...(sort() === "started" && down()
        ? []
        : /** @type {any} */ ([
            ["sort", sort()],
            ["order", down() ? "desc" : "asc"],
          ])),
    ]),
  });

  /** @param {string | null} id */
  const choose = (id) =>
    app.query(
      {
        ...Object.fromEntries(
          [...query().keys()].filter((name) => name !== "columns" && name !== "bulk").map((name) => [name, null]),
        ),
        view: id || null,
      },
      {},
    );

  return { query, view, bucket, within, pairs, sort, down, keyOf, write, toggle, matching, contentOf, choose };
}

// Runs, views: what is asked, kept under a name.
/** @import { App } from "../../main.js" */
/** @import { Resource } from "../../api.js" */
/** @import { Asking } from "./asking.js" */

import { confirm } from "../../dialog.js";
import { field } from "../../parts.js";

/**
 * Save what is asked as a view, or change the view that is shown.
 * @param {App} app
 * @param {Asking} asks
 * @param {Resource<Api.Get<"/api/saved-views">>} views
 * @param {"Save" | "Rename" | "Delete"} what
 */
export function keep(app, asks, views, what) {
  const { api } = app;
  const { view, contentOf, choose } = asks;
  const own = view()?.system === false ? view() : null;
  const { id: _, system: __, status: ___, message: ____, ...body } = own ?? {};
  const given = { name: own?.name ?? "" };
  const same = () => views.data?.saved_views.find((/** @type {any} */ one) => !one.system && one.name === given.name);
  const to = (/** @type {string} */ id) => `/api/saved-views/${encodeURIComponent(id)}`;
  confirm({
    title: `${what} view`,
    label: what,
    danger: what === "Delete",
    sentence:
      what === "Delete"
        ? `“${own?.name}” is deleted for all users of the namespace.`
        : what === "Rename"
          ? `The view “${own?.name}” gets another name.`
          : "Saves the filters of this list under a name, for all users of the namespace. A view of the same name is replaced.",
    fields: (update) => (what === "Delete" ? null : field(given, "name", "Name", update, { maxlength: 191 })),
    act: () =>
      what === "Delete"
        ? api.delete(to(own?.id ?? ""))
        : what === "Rename"
          ? api.put(to(own?.id ?? ""), { ...body, ...given })
          : same()
            ? api.put(to(same()?.id ?? ""), { ...contentOf(), ...given })
            : api.post("/api/saved-views", { ...contentOf(), ...given }),
    done: (made) => void views.load().then(() => choose(what === "Delete" ? null : made.id)),
  });
}

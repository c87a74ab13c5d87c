// System: health, maintenance, nodes and namespaces, access, and the audit.
/** @import { App } from "../main.js" */

import { Resource } from "../api.js";
import { h } from "../dom.js";
import { capital, link } from "../parts.js";
import { get, tableKeys } from "./house/kit.js";
import { access } from "./system/access.js";
import { asking, audit } from "./system/audit.js";
import { health } from "./system/health.js";
import { maintenance } from "./system/maintenance.js";
import { server } from "./system/server.js";

const PATHS = /** @type {const} */ ([
  "system/liveness",
  "system/projections",
  "system/repair",
  "system/retention",
  "system/activity-timeouts",
  "cluster/info",
  "nodes",
  "namespaces",
  "tokens",
  "sessions",
]);

/** @typedef {{[Path in (typeof PATHS)[number] | "system/health" | "audit"]: Resource<Api.Get<`/api/${Path}`>>}} All */

/** @param {App} app @returns {import("../main.js").Screen} */
export function open(app) {
  const query = (/** @type {string} */ name) => app.route.query.get(name);
  const section = () => query("section") ?? "health";
  const all = /** @type {All} */ (
    /** @type {unknown} */ (Object.fromEntries(PATHS.map((path) => [path, get(app, `/api/${path}`)])))
  );
  const filters = () => asking(query);
  // An unhealthy server replies with status 503 and the same body.
  all["system/health"] = new Resource(
    () =>
      app.api.get("/api/system/health").catch((/** @type {any} */ error) => {
        if (error.body?.causes) return error.body;
        throw error;
      }),
    app.update,
  );
  all.audit = get(app, "/api/audit", () => ({ page_size: 50, next_page_token: query("page"), ...filters() }));
  /** @type {Record<string, [(keyof All)[], () => any]>} what each part asks for, and how it looks */
  const views = {
    health: [["system/liveness", "system/health"], () => health(app, all)],
    maintenance: [
      ["system/repair", "system/retention", "system/activity-timeouts", "system/projections"],
      () => maintenance(app, all, load),
    ],
    server: [
      [
        "cluster/info",
        "system/health",
        "namespaces",
        .../** @type {(keyof All)[]} */ (app.session.namespace ? [] : ["nodes"]),
      ],
      () => server(app, all, load, again),
    ],
    access: [app.isAdmin ? ["tokens", "sessions"] : [], () => access(app, all, load)],
    audit: [["audit"], () => audit(app, all, filters())],
  };
  const shown = () => views[section()] ?? /** @type {[(keyof All)[], () => any]} */ (views["health"]);
  const load = () => {
    for (const name of shown()[0]) void all[name].load();
  };
  load();
  let timer = 0;
  const again = () => {
    timer ||= setTimeout(() => {
      timer = 0;
      load();
    }, 1000);
  };
  return {
    title: () => `System, ${section()}`,
    topics: () => ["system"],
    // Health costs more than other replies, so it is loaded less often. The audit is loaded on demand only.
    moved: () => {
      if (section() !== "audit") again();
    },
    close: () => clearTimeout(timer),
    keys: tableKeys,
    route: load,
    view: () => [
      h("h1", null, "System"),
      h(
        "nav",
        { class: "tabs", "aria-label": "parts of the system" },
        ...Object.keys(views).map((name) =>
          link(
            `/waterline/system?section=${name}`,
            { "aria-current": section() === name ? "page" : null },
            capital(name),
          ),
        ),
      ),
      ...shown()[1](),
    ],
  };
}

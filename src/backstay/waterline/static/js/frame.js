// The frame: what stands above and below every screen.
/** @import { App } from "./main.js" */

import { h } from "./dom.js";
import { button, capital, environmentSign, link } from "./parts.js";
import { isAbsolute } from "./words.js";

export const PLACES = /** @type {[string, string, string][]} name, address, key */ ([
  ["overview", "", "o"],
  ["runs", "runs", "r"],
  ["queues", "queues", "q"],
  ["schedules", "schedules", "s"],
  ["system", "system", "y"],
]);

/**
 * What the bar shows and does. `arrive`: called when the address has changed.
 * @typedef {{app: App, reached: boolean, streaming: boolean, namespaces: any[], openPalette: () => void,
 *   signOut: () => void, arrive: () => void}} Frame
 */

/** The bar above the screen. @param {Frame} frame */
export function bar({ app, reached, streaming, namespaces, openPalette, signOut, arrive }) {
  return h(
    "div",
    { class: "top" },
    h(
      "div",
      { class: "inner" },
      link(
        "/waterline/",
        { class: "brand", "aria-label": "Waterline, overview" },
        h("span", { "aria-hidden": "true" }, "≋"),
        "Waterline",
      ),
      environmentSign(app.session.environment),
      h(
        "nav",
        { "aria-label": "screens" },
        ...PLACES.map(([name, to]) =>
          link(
            `/waterline/${to}`,
            {
              "aria-current":
                app.route.screen === name || (name === "runs" && app.route.screen === "run") ? "page" : null,
            },
            capital(name),
          ),
        ),
      ),
      h("span", { class: "grow" }),
      button([h("span", null, "Find or do"), h("kbd", null, "Ctrl K")], openPalette, {
        class: "finding",
        "aria-keyshortcuts": "Control+K /",
      }),
      namespacePicker(app, namespaces, arrive),
      app.session.authenticated && app.session.session_id
        ? button("Sign out", signOut, { class: "plain", title: `signed in as ${app.session.role}` })
        : null,
    ),
    reached && streaming
      ? null
      : h(
          "div",
          { class: "lost", role: "status" },
          reached
            ? "Live updates are interrupted; the page reconnects by itself."
            : "The server cannot be reached. The page shows its last replies and reconnects by itself.",
        ),
  );
}

/** @param {App} app @param {any[]} namespaces @param {() => void} arrive */
function namespacePicker(app, namespaces, arrive) {
  const names = [...new Set([app.api.namespace, ...namespaces.map((one) => one.name)])].sort();
  if (names.length < 2) return null;
  return h(
    "select",
    {
      "aria-label": "namespace",
      on: {
        change: (/** @type {any} */ event) => {
          const to = event.target.value;
          history.pushState(null, "", `/waterline/?ns=${encodeURIComponent(to)}`);
          arrive();
        },
      },
    },
    ...names.map((name) => h("option", { value: name, prop: { selected: name === app.api.namespace } }, name)),
  );
}

/** The line below the screen. @param {App} app */
export function foot(app) {
  return h(
    "div",
    { class: "bottom caption" },
    h("span", null, h("kbd", null, "?"), " keys"),
    h("span", null, h("kbd", null, "t"), isAbsolute() ? " relative times" : " exact times"),
    h("span", null, `backstay ${app.session.version}`),
    app.canWrite ? null : h("span", null, "read only"),
  );
}

/** In place of a screen, where there is none. */
export function nowhere() {
  return [h("h1", null, "There is no such page"), h("p", null, link("/waterline/", null, "Go to the overview"))];
}

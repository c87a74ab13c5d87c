// Sign in with a token. The server answers with a cookie that scripts cannot read.
/** @import { App } from "../main.js" */

import { api, asProblem } from "../api.js";
import { h } from "../dom.js";
import { environmentSign, trouble } from "../parts.js";

/** @type {{problem: import("../api.js").Problem | null, busy: boolean}} */
const state = { problem: null, busy: false };

/** @param {App} app @param {import("../api.js").Problem | null} stopped @param {() => Promise<void>} begin */
export function signIn(app, stopped, begin) {
  if (!stopped) return h("main", { class: "signin" }, h("p", { class: "loading" }, "Loading …"));
  if (stopped.status !== 401)
    return h(
      "main",
      { class: "signin" },
      h("h1", null, "Waterline"),
      trouble(stopped, () => void begin()),
    );
  return h(
    "main",
    { class: "signin" },
    h(
      "p",
      { class: "product" },
      h("span", { class: "brand" }, h("span", { "aria-hidden": "true" }, "≋ "), "Backstay Waterline"),
      environmentSign(stopped.body.environment),
    ),
    h("h1", null, "Sign in"),
    h("p", { class: "second" }, stopped.body.remediation ?? ""),
    h(
      "form",
      {
        on: {
          submit: (/** @type {any} */ event) => {
            event.preventDefault();
            void send(event.target.elements.token.value, app, begin);
          },
        },
      },
      h(
        "label",
        { class: "field" },
        "Token",
        h("input", {
          type: "password",
          name: "token",
          autocomplete: "current-password",
          required: true,
          ref: (/** @type {any} */ element) => setTimeout(() => element.focus()),
        }),
      ),
      state.problem ? trouble(state.problem) : null,
      h("button", { class: "primary", type: "submit", disabled: state.busy }, "Sign in"),
    ),
  );
}

/** @param {string} token @param {App} app @param {() => Promise<void>} begin */
async function send(token, app, begin) {
  state.busy = true;
  state.problem = null;
  app.update();
  try {
    await api.post("/api/session", { token });
    await begin();
  } catch (error) {
    state.problem = asProblem(error);
  }
  state.busy = false;
  app.update();
}

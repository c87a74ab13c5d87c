// System, access: tokens, and the sessions of browsers.
/** @import { App } from "../../main.js" */
/** @import { All } from "../system.js" */

import { confirm } from "../../dialog.js";
import { h } from "../../dom.js";
import { copy, field, held, panel } from "../../parts.js";
import { adminOnly, asked, press, table, tell } from "../house/kit.js";

/** @param {App} app @param {All} all @param {() => void} load */
export function access(app, all, load) {
  const why = adminOnly(app, "see tokens and sessions");
  if (why) return [panel("Tokens and sessions", null, h("p", { class: "empty" }, why))];
  /** @param {any} answer */
  const secret = (answer) => {
    load();
    tell(
      "The token",
      [
        h("p", { class: "sentence" }, "The token is shown only now; the server stores its hash."),
        h("p", { class: "payload" }, h("code", { id: "secret" }, answer.token), copy(answer.token, "the token")),
      ],
      "I have saved it",
    );
  };
  const create = () => {
    const values = {
      role: /** @type {Api.CreateTokenBody["role"]} */ ("viewer"),
      namespace: "",
      note: "",
      payloads: true,
    };
    confirm({
      title: "New token",
      sentence: "Every caller with the token has this role.",
      label: "Create",
      done: secret,
      act: () =>
        app.api.post("/api/tokens", {
          ...values,
          namespace: values.namespace || null,
          payloads: values.role !== "viewer" || values.payloads,
        }),
      fields: (update) => [
        field(values, "role", "Role", update, {
          options: [
            ["viewer", "viewer: reads, changes nothing"],
            ["operator", "operator: reads and commands"],
            ["worker", "worker: runs tasks"],
            ["admin", "admin: everything"],
          ],
        }),
        field(values, "namespace", "Namespace", update, { class: "mono", hint: "empty: all" }),
        field(values, "note", "Note", update, { hint: "who it is for" }),
        values.role === "viewer" ? field(values, "payloads", "May read payloads", update, { type: "checkbox" }) : null,
      ],
    });
  };
  /**
   * @param {string} method
   * @param {string} path
   * @param {string} label
   * @param {string} what
   * @param {string} sentence
   * @param {(answer: any) => void} done
   */
  const act = (method, path, label, what, sentence, done) =>
    press(
      app,
      label,
      asked(app, method, `/api/${path}`, () => ({}), {
        title: `${label} this ${what}?`,
        sentence,
        label,
        danger: method === "delete",
        done,
      }),
    );
  return [
    app.session.authentication === "none"
      ? h("p", { class: "notice" }, "This server requires no token (auth is none): every caller is an administrator.")
      : null,
    panel(
      "Tokens",
      press(app, "New token", create),
      ...held(all.tokens, (data) =>
        table(
          "tokens",
          [
            "token=token_id mono",
            "role=role",
            ["namespace", ({ namespace }) => namespace ?? "all", "mono"],
            ["payloads", ({ payloads }) => (payloads ? "yes" : "hidden"), "wide"],
            "note=note note",
            "made=created_at time wide",
            "rotated=rotated_at time wide",
            [
              "",
              ({ token_id: id }) =>
                h(
                  "div",
                  { class: "actions" },
                  act(
                    "post",
                    `tokens/${id}/rotate`,
                    "Rotate",
                    "token",
                    "It gets a new secret. The server refuses the old one from now on, and its sessions end.",
                    secret,
                  ),
                  act(
                    "delete",
                    `tokens/${id}`,
                    "Revoke",
                    "token",
                    "The server refuses it from now on, and its sessions end.",
                    load,
                  ),
                ),
            ],
          ],
          data.tokens,
          "token_id",
          "No token was created here. Tokens of the settings are not listed.",
          "dw token create --role viewer",
        ),
      ),
    ),
    panel(
      "Sessions of browsers",
      null,
      ...held(all.sessions, (data) =>
        table(
          "sessions",
          [
            ["session", ({ session_id: id }) => `${id}${id === app.session.session_id ? " (this one)" : ""}`, "mono"],
            "role=role",
            "token=token_id mono wide",
            "from=address mono wide",
            "signed in=created_at time",
            "ends=expires_at time wide",
            [
              "",
              ({ session_id: id }) =>
                act("delete", `sessions/${id}`, "End", "session", "Its user has to sign in again.", load),
            ],
          ],
          data.sessions,
          "session_id",
          "No session is open.",
        ),
      ),
    ),
  ];
}

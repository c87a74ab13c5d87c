// System, audit: who did what.
/** @import { App } from "../../main.js" */
/** @import { All } from "../system.js" */

import { h } from "../../dom.js";
import { button, field, held, panel, runAddress, words } from "../../parts.js";
import { plural } from "../../words.js";
import { named, pages, table } from "../house/kit.js";
import { told } from "./tones.js";

export const FILTERS = ["command_type", "workflow_id", "status", "source", "caller", "token_id"];
const CHOICES = /** @type {Record<string, string[]>} */ ({
  status: ["", "accepted", "rejected"],
  source: ["", "http", "python", "dw", "webhook", "workflow", "schedule"],
});

/**
 * What the audit is asked. Starts by schedules and workflows would drown what people did, so they are left out, unless
 * they are wanted or the entries are those of one workflow or source.
 * @param {(name: string) => string | null} query
 */
export const asking = (query) => ({
  ...Object.fromEntries(FILTERS.map((name) => [name, query(name)])),
  automatic_starts: query("automatic") || query("source") || query("workflow_id") ? null : 0,
});

/** @param {App} app @param {All} all @param {any} values */
export function audit(app, all, values) {
  const automatic = { automatic: values.automatic_starts === null };
  return [
    panel(
      "Audit",
      button("Newest", () => {
        app.query({ page: null });
        void all.audit.load();
      }),
      h(
        "form",
        {
          class: "filters",
          "aria-label": "filters",
          on: { submit: (/** @type {Event} */ event) => event.preventDefault() },
        },
        ...FILTERS.map((name) => {
          const now = { [name]: values[name] ?? "" };
          return field(now, name, words(name), () => app.query({ [name]: now[name] || null, page: null }), {
            options: CHOICES[name]?.map((one) => [one, one || "any"]),
            class: "mono",
          });
        }),
        values.automatic_starts === null && !app.route.query.get("automatic")
          ? null
          : field(
              automatic,
              "automatic",
              "Starts by schedules and workflows",
              () => app.query({ automatic: automatic.automatic ? "1" : null, page: null }),
              { type: "checkbox" },
            ),
      ),
      ...held(all.audit, (data) => [
        table(
          "audit",
          [
            "when=recorded_at time",
            ["command", ({ command_type: type, target_name: target }) => `${words(type)} ${target ?? ""}`, "note"],
            [
              "of",
              ({ workflow_id: id, schedule_id: schedule }) =>
                id
                  ? named(runAddress(id), id)
                  : schedule
                    ? named(`/waterline/schedules/${encodeURIComponent(schedule)}`, schedule)
                    : "–",
            ],
            [
              "outcome",
              (one) =>
                one.status === "rejected"
                  ? told("warning", words(one.rejection_reason))
                  : words(one.outcome ?? one.status),
            ],
            [
              "who",
              (one) =>
                [one.caller_label, one.token_id ?? one.program ?? one.auth_roles?.[0]].filter(Boolean).join(", ") ||
                "–",
              "mono wide",
            ],
            ["from", (one) => [one.source, one.address ?? one.host].filter(Boolean).join(" "), "mono wide"],
          ],
          data.entries,
          "id",
          "No entry matches.",
        ),
        data.looked_at.complete
          ? null
          : h("p", { class: "caption" }, `${plural(data.looked_at.commands, "command")} looked at so far.`),
        pages(app, data.next_page_token),
      ]),
    ),
  ];
}

// Export: the whole run as one file that proves itself.

import { runPath } from "../../api.js";
import { h } from "../../dom.js";
import { empty, reach, word } from "../../parts.js";
import { HIDDEN, saver } from "../../payload.js";
import { bytes, plural } from "../../words.js";

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export function tab({ app, id, run, summary }) {
  const path = runPath(id, run, "history/export");
  const name = `${id.replace(/^-|[^\w.-]+/g, "_").slice(0, 80)}.json`;
  return {
    view: () =>
      h(
        "div",
        { class: "stack" },
        h(
          "p",
          null,
          "The whole run in one JSON file with a checksum. You can verify, replay and keep the file without this server.",
          summary.data
            ? ` It has ${plural(summary.data.events, "event")}, ${bytes(summary.data.bytes)} of history.`
            : null,
        ),
        app.session.payloads
          ? h("div", null, saver("Download", path, name, { class: "primary" }))
          : h("p", null, `Not available: payloads are ${HIDDEN}.`),
        empty("Verify it:", `dw export verify ${name}`),
        empty(
          "The same from a terminal:",
          `dw export ${word(id)}${run ? ` --run ${word(run)}` : ""} ${reach(app)} -o ${name}`,
        ),
        empty(
          "Or with curl:",
          `curl ${word(location.origin + path)}${app.session.authenticated ? ' -H "Authorization: Bearer $DW_TOKEN"' : ""} -H 'X-Durable-Workflow-Control-Plane-Version: 2'${app.api.namespace === "default" ? "" : ` -H ${word(`X-Namespace: ${app.api.namespace}`)}`} -o ${name}`,
        ),
      ),
  };
}

// Overview, first: before the first run, how to get there.
/** @import { App } from "../../main.js" */

import { h } from "../../dom.js";
import { copy, empty, reach } from "../../parts.js";
import { plural } from "../../words.js";

/** Before the first run: how to get there. @param {App} app @param {Api.OverviewAnswer} data */
export function first(app, { fleet }) {
  return [
    h("h1", null, "No run yet"),
    h("p", { class: "sentence" }, "This page shows whether a run is stuck, why, and the action that helps."),
    h(
      "ol",
      { class: "first" },
      ...(fleet?.active
        ? [
            [
              `${plural(fleet.active, "worker")} can run workflows. Start one`,
              `dw start FILE:WORKFLOW first-1 ${reach(app)}`,
            ],
          ]
        : [
            [
              "Save this as hello.py",
              'from backstay import sleep, workflow\n\n\n@workflow\ndef hello(name: str) -> str:\n    sleep("10s")\n    return f"Hello {name}"\n',
            ],
            ["Start a worker that runs it", `dw worker hello.py ${reach(app)}`],
            ["Start a workflow", `dw start hello.py:hello hello-1 '"Ada"' ${reach(app)}`],
          ]
      ).map(([text, code = ""]) =>
        h("li", null, text, " ", copy(code, "it"), h("pre", { class: "payload", tabindex: "0" }, code)),
      ),
    ),
    empty("While you write code: server, worker and this page in one, reloaded on every save.", "dw dev hello.py"),
  ];
}

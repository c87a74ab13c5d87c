// A bulk operation that this screen has begun: how far it is, what became of its runs, and the way to each of them.
/** @import { App } from "../main.js" */

import { Resource } from "../api.js";
import { h } from "../dom.js";
import { link, words } from "../parts.js";
import { count, plural } from "../words.js";

const AGAIN = 2000; // news of an operation may get lost with a stream that is opened again just when it ends

/** What became of the runs so far: `120 retry requested, 10 refused (run closed)`. @param {Api.BulkAnswer} data */
export function fates({ outcomes, reasons }) {
  const told = (/** @type {[string, number][]} */ of) =>
    of.map(([name, number]) => `${count(number)} ${name === "rejected" ? "refused" : words(name)}`).join(", ");
  const why = Object.entries(reasons);
  const one = why.length === 1 ? why[0] : null;
  return `${told(Object.entries(outcomes))}${one ? ` (${words(one[0])})` : why.length ? ` (${told(why)})` : ""}`;
}

/** @param {App} app */
export function operation(app) {
  let [id, label, told] = ["", "", false];
  const found = new Resource(
    async () => (id ? app.api.get(`/api/bulk/${encodeURIComponent(id)}`, { page_size: 1 }) : null),
    () => {
      const { data } = found;
      if (data?.ended_at && !told) {
        told = true;
        app.announce(`${label}: ${fates(data)}`);
      }
      app.update();
    },
  );
  const following = setInterval(() => {
    if (id && !found.data?.ended_at) void found.load();
  }, AGAIN);

  return {
    /** Follow an operation; `said` is what was pressed. @param {string} bulk @param {string} said */
    begun(bulk, said) {
      [id, label, told] = [bulk, said, false];
      found.reset();
    },
    /** @returns {string[]} */
    topics: () => (id && !found.data?.ended_at ? [`bulk:${id}`] : []),
    /** @param {import("../live.js").News} news */
    moved(news) {
      if (id && (news.kind === "reload" || news.topic === `bulk:${id}`)) void found.load();
    },
    close: () => clearInterval(following),
    view() {
      const { data } = found;
      if (!id) return null;
      const refused = data && (data.rejected || data.failed);
      return h(
        "p",
        { class: `done ${refused ? "tone-amber" : ""}`, role: "group", "aria-label": "what was done", key: "done" },
        `${label}: `,
        !data
          ? "begun. "
          : data.ended_at
            ? `${fates(data) || "nothing was left to do"}. `
            : `${count(data.done)} of ${plural(data.total, "run")}${data.done ? `: ${fates(data)}` : ""}. `,
        link(`/waterline/runs?bulk=${encodeURIComponent(id)}`, null, "What became of each run"),
      );
    },
  };
}

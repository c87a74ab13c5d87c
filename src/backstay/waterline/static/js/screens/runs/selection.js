// Runs, selection: the run that keys are for, the runs that are picked, and one command for all of them.
/** @import { App } from "../../main.js" */
/** @import { Asking } from "./asking.js" */

import { runAddress } from "../../parts.js";
import { ask } from "./bulk.js";

export class Selection {
  /** @type {Set<string>} run ids */
  picked = new Set();
  every = false; // all that match are meant, not only those on this page
  cursor = "";
  /** @type {import("../../api.js").Problem | null} of the last command */
  refused = null;
  #anchor = "";

  /** @param {App} app @param {Asking} asks @param {() => Api.ListedRunAnswer[]} rows that are shown */
  constructor(app, asks, rows) {
    this.app = app;
    this.asks = asks;
    this.rows = rows;
  }

  /**
   * Pick a run or leave it out; with a range, all from the one before to it.
   * @param {string} id
   * @param {boolean} range
   */
  pick(id, range) {
    const ids = this.rows().map((row) => row.run_id);
    const on = !this.picked.has(id);
    const from = range && ids.includes(this.#anchor) ? this.#anchor : id;
    const ends = [ids.indexOf(id), ids.indexOf(from)];
    for (const one of ids.slice(Math.min(...ends), Math.max(...ends) + 1)) this.picked[on ? "add" : "delete"](one);
    this.#anchor = id;
    [this.every, this.refused] = [false, null];
    this.app.update();
  }

  /** Pick these and no others. @param {string[]} ids */
  take(ids) {
    this.picked = new Set(ids);
    this.every = false;
    this.app.update();
  }

  /** All that match are meant. */
  takeEvery() {
    this.every = true;
    this.app.update();
  }

  none() {
    this.refused = null;
    this.take([]);
  }

  /** Other runs are shown: what is not among them is not picked any more. @param {string[]} ids */
  shown(ids) {
    this.picked = new Set(ids.filter((id) => this.picked.has(id)));
  }

  /** The run that keys are for. @param {string} id */
  moveTo(id) {
    this.cursor = id;
    this.app.update();
  }

  /** @param {number} by */
  step(by) {
    const links = [
      .../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#runs tbody .c-workflow_id a")),
    ];
    const at = this.rows().findIndex((row) => row.run_id === this.cursor);
    links[at < 0 ? 0 : Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
  }

  open() {
    const row = this.rows().find((one) => one.run_id === this.cursor);
    if (row) this.app.go(runAddress(row.workflow_id, row.is_current_run ? null : row.run_id));
  }

  /** Send a command to all that are picked. @param {string} action */
  async act(action) {
    this.refused = null;
    try {
      await ask(this.app, action, this.every ? (this.asks.matching() ?? {}) : { run_id: [...this.picked] }, (id) => {
        this.none();
        this.app.announce("begun");
        this.app.query({ bulk: id });
      });
    } catch (problem) {
      this.refused = /** @type {any} */ (problem);
    }
    this.app.update();
  }

  /** @returns {import("../../keys.js").Keys} */
  keys() {
    const pick = (/** @type {boolean} */ range) => {
      if (this.cursor) this.pick(this.cursor, range);
    };
    return {
      j: ["next run", () => this.step(1)],
      k: ["previous run", () => this.step(-1)],
      o: ["open the run", () => this.open()],
      x: ["select the run", () => pick(false)],
      X: ["select up to the run", () => pick(true)],
    };
  }
}

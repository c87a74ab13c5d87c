// Small parts of views that every screen uses.

import { api } from "./api.js";
import { h } from "./dom.js";
import { exact, isAbsolute, relative } from "./words.js";

/** State -> its glyph and tone. Colour is for what needs eyes; a state is always told by glyph and word as well. */
const STATES = /** @type {Record<string, [string, string]>} */ ({
  waiting: ["○", "wait"],
  sleeping: ["◔", "wait"],
  ready: ["○", "wait"],
  pending: ["○", "wait"],
  working: ["▸", "run"],
  running: ["▸", "run"],
  retrying: ["↻", "amber"],
  throttled: ["↻", "amber"],
  overdue: ["↻", "amber"],
  blocked: ["▲", "red"],
  no_worker: ["▲", "red"],
  stranded: ["▲", "red"],
  history_damaged: ["▲", "red"],
  repair_needed: ["▲", "red"],
  failed: ["✕", "red"],
  timed_out: ["✕", "red"],
  completed: ["✓", "done"],
  cancelled: ["⊘", "wait"],
  terminated: ["■", "wait"],
  paused: ["‖", "violet"],
  continued: ["↪", "wait"],
});

/** @param {string | null | undefined} name */
export const words = (name) => (name ?? "–").replaceAll("_", " ");

/** With a capital letter. @param {string | null} text */
export const capital = (text) => (text ?? "").replace(/^./u, (first) => first.toUpperCase());

/** @param {string} name */
export const glyph = (name) => STATES[name]?.[0] ?? "·";
/** @param {string} name */
export const tone = (name) => STATES[name]?.[1] ?? "wait";

/**
 * The state of a run. `attention` counts before it where it needs attention.
 * @param {string} state
 * @param {string | null} [attention]
 */
export function badge(state, attention) {
  const shown = attention && tone(attention) === "red" ? attention : state;
  return sign(glyph(shown), words(shown), `tone-${tone(shown)}`);
}

/**
 * A button. `why`: the reason why it is disabled.
 * @param {any} label
 * @param {(event: any) => void} click
 * @param {any} [props]
 */
export const button = (label, click, { why, ...props } = {}) =>
  h("button", { type: "button", disabled: Boolean(why), title: why, ...props, on: { click } }, label);

/** A state that is none of a run. @param {string} glyph @param {any} word @param {string} [tone] */
export const sign = (glyph, word, tone = "") =>
  h("span", { class: `state ${tone}` }, h("span", { class: "glyph", "aria-hidden": "true" }, glyph), word);

/**
 * An id, a type or another text from outside, which must not turn the order of what is around it.
 * @param {any} text
 * @param {string} [look]
 */
export const mono = (text, look = "") =>
  text === null || text === undefined || text === "" ? null : h("bdi", { class: `mono ${look}` }, text);

/** @param {string} label @param {any} text */
export const pre = (label, text) => h("pre", { class: "payload", tabindex: "0", "aria-label": label }, text);

/**
 * A list of facts; those without a value are left out.
 * @param {Record<string, any> | ([string, any] | null)[]} of
 * @param {string} [look] of the values
 */
export const facts = (of, look) =>
  h(
    "dl",
    { class: "facts" },
    (Array.isArray(of) ? of : Object.entries(of)).flatMap((one) =>
      one?.[1] ? [h("dt", null, one[0]), h("dd", { class: look }, one[1])] : [],
    ),
  );

/**
 * A labelled field of a form whose values are in `values`. `options` make it a list to choose from.
 * @param {any} values @param {string} name @param {string} label @param {() => void} changed
 * @param {{hint?: string, tag?: string, options?: string[][], wrong?: string, [prop: string]: any}} [how]
 */
export function field(values, name, label, changed, { hint, tag, options, wrong, ...props } = {}) {
  const tick = props["type"] === "checkbox";
  const note = wrong ?? hint;
  return h(
    "div",
    { class: `field ${tick ? "tick" : ""}`, key: name },
    h("label", { for: name }, label),
    h(
      options ? "select" : (tag ?? "input"),
      {
        id: name,
        name,
        autocomplete: "off",
        spellcheck: "false",
        "aria-describedby": note ? `${name}-note` : null,
        "aria-invalid": wrong ? "true" : null,
        ...props,
        prop: options ? {} : tick ? { checked: values[name] } : { value: values[name] },
        on: {
          input: (/** @type {any} */ event) => {
            values[name] = tick ? event.target.checked : event.target.value;
            changed();
          },
        },
      },
      ...(options ?? []).map(([id, text]) => h("option", { value: id, prop: { selected: values[name] === id } }, text)),
    ),
    note ? h("span", { class: wrong ? "wrong" : "caption", id: `${name}-note` }, note) : null,
  );
}

/** A time: how long ago, and exactly on hover and focus. @param {string | number | null | undefined} at */
export function time(at) {
  if (!at) return h("span", { class: "third" }, "–");
  const iso = typeof at === "number" ? new Date(at).toISOString() : at;
  return h(
    "time",
    { datetime: iso, title: exact(at), class: "number" },
    isAbsolute() ? exact(at).slice(0, 23) : relative(at),
  );
}

/**
 * A button that copies; without a secure context there is no clipboard, so it selects a field and copies that.
 * @param {string} text
 * @param {string} [what]
 */
export function copy(text, what) {
  return button(
    h(
      "svg",
      { viewBox: "0 0 12 12", width: "12", height: "12", fill: "none", stroke: "currentColor", "aria-hidden": "true" },
      h("path", { d: "M3.5 3.5v-3h8v8h-3M.5 3.5h8v8h-8z" }),
    ),
    () => void copyText(text),
    { class: "copy", title: `copy ${what ?? text}`.slice(0, 80), "aria-label": `copy ${what ?? "it"}` },
  );
}

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  announce("copied");
}

/** Announce a text to screen readers. @param {string} text */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = text;
}

/**
 * A problem, with a button that tries again.
 * @param {import("./api.js").Problem} problem
 * @param {() => void} [again]
 */
export function trouble(problem, again) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("span", null, problem.message),
    h("span", { class: "mono" }, problem.reason),
    again ? button("Try again", again) : null,
  );
}

/**
 * The data of a resource, its problem, or a note that it is loading. Old data stays beside a problem.
 * @template T
 * @param {import("./api.js").Resource<T>} resource
 * @param {(data: Exclude<T, null>) => import("./dom.js").Child | import("./dom.js").Child[]} view
 */
export function held(resource, view) {
  const problem = resource.problem ? trouble(resource.problem, () => void resource.load()) : null;
  if (resource.data === null) return [problem ?? h("p", { class: "loading" }, "Loading …")];
  return [problem, view(/** @type {any} */ (resource.data))].flat();
}

/** A section with a heading. @param {string} title @param {any} aside @param {...any} children */
export function panel(title, aside, ...children) {
  return h(
    "section",
    { class: "panel", "aria-label": title, key: title },
    h("header", null, h("h2", null, title), h("span", { class: "grow" }), aside),
    ...children,
  );
}

/** An empty state that teaches the next command. @param {string} sentence @param {string} [command] */
export const empty = (sentence, command) =>
  h(
    "p",
    { class: "empty" },
    sentence,
    command ? [" ", h("code", null, command), " ", copy(command, "the command")] : null,
  );

/** One word of a shell's line. @param {string} text */
export const word = (text) => (/^[\w.:/@=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** How a command of a shell reaches this server. @param {any} app */
export const reach = ({ session: { default_namespace: usual, authentication } }) =>
  `--server ${location.origin}${api.namespace === usual ? "" : ` --namespace ${word(api.namespace)}`}${authentication === "none" ? "" : " --token TOKEN"}`;

/** The command that starts a worker. @param {any} app @param {string | null | undefined} queue */
export const workerCommand = (app, queue) =>
  `dw worker FILE ${reach(app)}${!queue || queue === "default" ? "" : ` --queue ${word(queue)}`}`;

/** The name of this installation, in its colour. @param {Api.EnvironmentAnswer | null | undefined} environment */
export const environmentSign = (environment) =>
  environment?.name
    ? h("span", { class: "environment mono", style: { color: environment.colour ?? "inherit" } }, environment.name)
    : null;

/** A link within the page. @param {string} to @param {any} props @param {...any} children */
export const link = (to, props, ...children) => h("a", { ...props, href: placed(to) }, ...children);

/** An address with its namespace, so that it means the same in another tab. @param {string} to */
export function placed(to) {
  if (api.namespace === api.home || /[?&]ns=/.test(to)) return to;
  return `${to}${to.includes("?") ? "&" : "?"}ns=${encodeURIComponent(api.namespace)}`;
}

/** The address of a run's page. @param {string} id @param {string | null} [run] */
export const runAddress = (id, run) =>
  `/waterline/runs/${encodeURIComponent(id)}${run ? `/${encodeURIComponent(run)}` : ""}`;

// The frame around the screens: session, namespace, current screen and live updates.

import { api, asProblem } from "./api.js";
import { isOpen } from "./dialog.js";
import { h, patch } from "./dom.js";
import { bar, foot, nowhere, PLACES } from "./frame.js";
import { common, useKeys } from "./keys.js";
import { follow, listen } from "./live.js";
import { announce, capital, placed, runAddress } from "./parts.js";
import { changed, parse } from "./router.js";
import { signIn } from "./screens/signin.js";
import { isAbsolute, setAbsolute } from "./words.js";

/**
 * A screen, as its module's `open(app)` returns it. `topics`: what it wants to hear of; `moved`: called with news of
 * them, and with kind `reload` when it has to load everything again; `route`: called when only the query of its address
 * has changed.
 * @typedef
 * {{title: () => string, view: () => any, topics?: () => string[], moved?: (news: import("./live.js").News) => void,
 *   route?: () => void, keys?: () => import("./keys.js").Keys, close?: () => void}} Screen
 */

// Loaded when they are shown first: most people keep one or two of them open.
const SCREENS = /** @type {Record<string, () => Promise<{open: (app: any) => Screen}>>} */ ({
  overview: () => import("./screens/overview.js"),
  runs: () => import("./screens/runs.js"),
  run: () => import("./screens/run/page.js"),
  queues: () => import("./screens/queues.js"),
  schedules: () => import("./screens/schedules.js"),
  system: () => import("./screens/system.js"),
});
/** What screens get. @typedef {typeof app} App */
export const app = {
  api,
  /** The session: the reply of /api/session. @type {any} */
  session: null,
  /**
   * The operator commands that the server declares: from the reply of /api/capabilities.
   * @type {Api.OperatorCommandAnswer[]}
   */
  commands: [],
  route: parse(location),
  /** Whether this person may change things. */
  get canWrite() {
    return Boolean(app.session?.roles?.some((/** @type {string} */ role) => role === "operator" || role === "admin"));
  },
  get isAdmin() {
    return Boolean(app.session?.roles?.includes("admin"));
  },
  /** Why a button is disabled for a viewer, or undefined. */
  get readOnly() {
    return app.canWrite ? undefined : "You are signed in as a viewer, so you cannot change anything.";
  },
  /** Draw again, in the next frame. */
  update() {
    if (!drawing) drawing = requestAnimationFrame(draw);
  },
  /** Go to an address of the page. @param {string} to @param {{replace?: boolean}} [how] */
  go(to, how) {
    history[how?.replace ? "replaceState" : "pushState"](null, "", placed(to));
    arrive();
  },
  /**
   * Change the query of the address.
   * @param {Record<string, string | string[] | null>} changes
   * @param {{replace?: boolean}} [how]
   */
  query(changes, how) {
    const next = changed(app.route.query, changes).toString();
    app.go(location.pathname + (next ? `?${next}` : ""), how ?? { replace: true });
  },
  announce,
};

let drawing = 0;
/** @type {Screen | null} */
let screen = null;
let place = "";
let missing = false; // there is no screen at this address
let reached = true;
let streaming = true;
/** @type {any[]} */
let namespaces = [];
/** @type {import("./api.js").Problem | null} */
let stopped = null;

/** The address has changed. */
function arrive() {
  app.route = parse(location);
  const wanted = app.route.query.get("ns") ?? api.home;
  const here = `${wanted} ${app.route.screen} ${app.route.id} ${app.route.run}`;
  api.namespace = wanted;
  if (here === place && screen) screen.route?.();
  else {
    screen?.close?.();
    const first = place === "";
    place = here;
    screen = null;
    missing = !(app.route.screen in SCREENS);
    void SCREENS[app.route.screen]?.().then(
      (module) => {
        if (place !== here) return;
        screen = module.open(app);
        app.update();
      },
      () => location.reload(),
    ); // the server has another release now, and no longer these files
    useKeys(() => screen?.keys?.() ?? {});
    scrollTo(0, 0);
    if (!first) document.querySelector("main")?.focus({ preventScroll: true });
  }
  app.update();
}

function draw() {
  drawing = 0;
  const root = document.getElementById("app");
  if (!root) return;
  const title = screen?.title() ?? (!app.session ? "Sign in" : missing ? "Not found" : "Loading");
  document.title = `${title} · Waterline`;
  patch(
    root,
    app.session
      ? [
          bar({ app, reached, streaming, namespaces, openPalette, signOut, arrive }),
          h(
            "main",
            { tabindex: "-1", id: "main" },
            screen ? screen.view() : missing ? nowhere() : h("p", { class: "loading" }, "Loading …"),
          ),
          foot(app),
        ]
      : [signIn(app, stopped, begin)].flat(),
  );
  follow(api.namespace, app.session ? (screen?.topics?.() ?? []) : []);
}

/** Go to the run with this id, else to the list that looks for it. @param {string} text */
async function find(text) {
  if (!text) return;
  /** @type {any} */
  const found = await api
    .get("/api/flows/all", { instance_id: text, page_size: 1, definition: 0, fields: "run_id" })
    .catch(() => null);
  app.go(found?.flows?.length ? runAddress(text) : `/waterline/runs?q=${encodeURIComponent(text)}`);
}

async function signOut() {
  try {
    await api.delete("/api/session");
  } finally {
    location.assign("/waterline/");
  }
}

/** Load the session, and show the screen of the address. */
async function begin() {
  try {
    app.session = await api.get("/api/session");
    api.home = app.session.namespace ?? app.session.default_namespace;
    app.commands = (await api.get("/api/capabilities")).operator_commands;
    stopped = null;
  } catch (error) {
    stopped = asProblem(error);
    if (stopped.status !== 401) setTimeout(() => void begin(), 2000);
    app.update();
    return;
  }
  place = "";
  arrive();
  try {
    namespaces = (await api.get("/api/namespaces")).namespaces ?? [];
    app.update();
  } catch {
    /* the picker stays away */
  }
}

api.onSignedOut = () => {
  if (!app.session) return;
  screen?.close?.();
  [app.session, screen, place] = [null, null, ""];
  void begin();
};
api.onReached = (yes) => {
  if (yes !== reached) {
    reached = yes;
    app.update();
  }
};
listen((news) => {
  if (news.kind === "denied") return void api.onSignedOut();
  if (news.namespace !== api.namespace) return;
  const was = streaming;
  streaming = news.kind !== "lost";
  if (streaming) reached = true;
  if (was !== streaming) app.update();
  if (news.kind !== "lost") screen?.moved?.(news.kind === "open" ? { ...news, kind: "reload" } : news);
});

document.addEventListener("click", (event) => {
  const anchor = event.target instanceof Element ? event.target.closest("a") : null;
  if (
    !anchor ||
    event.defaultPrevented ||
    event.button !== 0 ||
    event.ctrlKey ||
    event.metaKey ||
    event.shiftKey ||
    anchor.target ||
    anchor.hasAttribute("download")
  )
    return;
  const url = new URL(anchor.href, location.href);
  if (url.origin !== location.origin || !url.pathname.startsWith("/waterline") || url.hash) return;
  event.preventDefault();
  app.go(url.pathname + url.search);
});
addEventListener("popstate", () => {
  if (app.session) arrive();
});
setInterval(() => {
  if (document.visibilityState === "visible" && app.session && !isAbsolute()) app.update();
}, 1000); // times that pass

/** The palette. It is loaded when it is opened first. */
function openPalette() {
  if (app.session)
    void import("./screens/palette.js").then(
      (module) => module.palette(app, (text) => void find(text)),
      () => location.reload(),
    );
}

common["/"] = ["find a run, or do something", openPalette];
common["Ctrl K"] = ["the same, also while you write", openPalette];
addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault(); // else the browser's own search
  if (!isOpen()) openPalette();
});
common["t"] = [
  "exact or relative times",
  () => {
    setAbsolute(!isAbsolute());
    app.update();
  },
];
for (const [name, to, key] of PLACES) common[`g ${key}`] = [`go to ${capital(name)}`, () => app.go(`/waterline/${to}`)];

void begin();

// The address is the whole state of the page: the path says which screen, the query what it shows.

/**
 * @typedef {{screen: string, id: string | null, run: string | null, query: URLSearchParams}} Route
 */

const SCREENS = ["overview", "runs", "queues", "schedules", "system"];

/** @param {Location | URL} at @returns {Route} */
export function parse(at) {
  const parts = at.pathname
    .split("/")
    .filter(Boolean)
    .slice(1)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  const [screen = "overview", id = null, run = null] = parts;
  const query = new URLSearchParams(at.search);
  if (screen === "runs" && id !== null) return { screen: "run", id, run, query };
  return { screen: SCREENS.includes(screen) ? screen : "unknown", id, run, query };
}

/**
 * The query with some of its values changed; null takes one away, a list repeats it.
 * @param {URLSearchParams} query
 * @param {Record<string, string | string[] | null>} changes
 */
export function changed(query, changes) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const one of Array.isArray(value) ? value : value === null ? [] : [value]) next.append(name, one);
  }
  return next;
}

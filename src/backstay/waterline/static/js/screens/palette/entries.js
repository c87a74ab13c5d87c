// The palette, entries: what can be chosen, and how well it matches a text.

/**
 * What can be chosen. `rank`: the least comes first, among those that match equally well.
 * @typedef {{label: string, hint: string, rank: number, take: () => void}} Entry
 */

const SHOWN = 12;

/** @param {string} label @param {string} hint @param {number} rank @param {() => void} take @returns {Entry} */
export const entry = (label, hint, rank, take) => ({ label, hint, rank, take });

/**
 * How well an entry matches: each word of the text is in it; best is a label that begins with the text. Null: not.
 * @param {Entry} one @param {string} text
 */
function fit({ label, hint }, text) {
  const [said, wanted] = [`${label} ${hint}`.toLowerCase(), text.toLowerCase()];
  const parts = wanted.split(/\s+/).filter(Boolean);
  if (!parts.every((part) => said.includes(part))) return null;
  const starts = parts.every((part) => ` ${said}`.split(/[\s.:_/-]+/).some((word) => word.startsWith(part)));
  return said.startsWith(wanted) ? 0 : starts ? 1 : 2;
}

/** The entries that match, the best first. @param {Entry[]} entries @param {string} text */
export const matching = (entries, text) =>
  entries
    .map((one) => ({ one, how: fit(one, text) }))
    .filter(({ how }) => how !== null)
    .sort((a, b) => (a.how ?? 0) - (b.how ?? 0) || a.one.rank - b.one.rank)
    .map(({ one }) => one)
    .slice(0, SHOWN);

// A view is a tree of plain nodes made by `h`; `patch` changes the page into it and touches only what differs.
// There is no way to put markup from a string into the page.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {{tag: string, props: Record<string, any>, children: Child[], key: any}} Node_
 * @typedef {Node_ | string | number | null | undefined | false} Child
 * @typedef {{on?: Record<string, (event: any) => any>, ref?: (element: any) => any, [name: string]: any}} Props
 */

/**
 * A node. Props: `key`; `class`; `on` ({click: function}); `style` ({left: "4px"}); `prop` (DOM properties such as
 * value, checked); `ref` (a function that gets the element once, when it is made); everything else is an attribute
 * (true: an empty one; null, false and undefined: none).
 * @param {string} tag @param {Props | null} [props] @param {...(Child | Child[])} children @returns {Node_}
 */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: /** @type {Child[]} */ (children.flat(4)), key: props?.key };
}

/** @type {WeakMap<Element, Record<string, any>>} the props that an element has */
const shown = new WeakMap();

/** Make the children of `root` what `nodes` say. @param {Element} root @param {Child[]} nodes */
export function patch(root, nodes) {
  const wanted = nodes.filter((node) => node !== null && node !== undefined && node !== false);
  /** @type {Map<any, Element>} */
  const keyed = new Map();
  for (const child of root.children) {
    const key = shown.get(child)?.key;
    if (key !== undefined) keyed.set(key, child);
  }
  let at = root.firstChild;
  for (const node of wanted) {
    if (typeof node !== "object") {
      const text = String(node);
      if (at instanceof Text) {
        if (at.data !== text) at.data = text;
        at = at.nextSibling;
      } else root.insertBefore(document.createTextNode(text), at);
      continue;
    }
    const known = node.key === undefined ? undefined : keyed.get(node.key);
    let element = known ?? (at instanceof Element && shown.get(at)?.key === node.key ? at : undefined);
    if (element !== undefined && element.localName !== node.tag.toLowerCase() && element.localName !== node.tag)
      element = undefined;
    if (element === undefined) {
      element = create(root, node);
      root.insertBefore(element, at);
    } else if (element === at) at = at.nextSibling;
    else root.insertBefore(element, at);
    refresh(element, node);
  }
  while (at !== null) {
    const next = at.nextSibling;
    root.removeChild(at);
    at = next;
  }
}

/** @param {Element} root @param {Node_} node */
function create(root, node) {
  const svg = node.tag === "svg" || (root.namespaceURI === SVG && root.localName !== "foreignObject");
  const element = svg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  shown.set(element, {});
  if (node.props.ref) node.props.ref(element);
  return element;
}

/** @param {Element} element @param {Node_} node */
function refresh(element, node) {
  const before = shown.get(element) ?? {};
  const { props } = node;
  for (const name in before) if (!(name in props)) set(element, name, undefined, before[name]);
  for (const name in props)
    if (props[name] !== before[name] || name === "prop") set(element, name, props[name], before[name]);
  shown.set(element, props);
  if (!props.opaque) patch(element, node.children); // an opaque element fills itself
}

/** @param {any} element @param {string} name @param {any} value @param {any} before */
function set(element, name, value, before) {
  if (name === "key" || name === "ref" || name === "opaque") return;
  if (name === "on") {
    for (const kind of Object.keys(before ?? {})) if (!value?.[kind]) element.removeEventListener(kind, called);
    for (const kind of Object.keys(value ?? {})) if (!before?.[kind]) element.addEventListener(kind, called);
  } else if (name === "style") {
    for (const one of Object.keys(before ?? {})) if (!(one in (value ?? {}))) element.style.removeProperty(one);
    for (const one of Object.keys(value ?? {}))
      if (value[one] !== before?.[one]) element.style.setProperty(one, value[one]);
  } else if (name === "prop") {
    for (const one of Object.keys(value ?? {})) if (element[one] !== value[one]) element[one] = value[one];
  } else if (value === null || value === undefined || value === false || (name === "href" && !isOwn(value)))
    element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

/**
 * Whether an address is of this server: what an answer says is never a link to elsewhere, nor one that runs something.
 * @param {string} to
 */
export function isOwn(to) {
  try {
    return new URL(to, location.href).origin === location.origin;
  } catch {
    return false;
  }
}

/** @this {any} @param {Event} event */
function called(event) {
  return shown.get(this)?.on?.[event.type]?.call(this, event);
}

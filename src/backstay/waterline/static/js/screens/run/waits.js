import { h } from "../../dom.js";

/** @param {import("./page.js").Context} ctx @returns {import("./page.js").Tab} */
export const tab = (ctx) => ({ view: () => h("p", null, ctx.id) });

// A list in which only the visible rows have elements: a fixed pool of them, moved by transform. A list of 50,000 rows
// scrolls like one of 50.

import { patch } from "./dom.js";

const MORE = 4; // rows beyond each edge

export class RowWindow {
  /**
   * @param {HTMLElement} scroller the element that scrolls @param {number} height of a row
   * @param {(index: number, element: HTMLElement) => import("./dom.js").Child[]} render
   * @param {() => void} resized its width has changed
   */
  constructor(scroller, height, render, resized) {
    this.scroller = scroller;
    this.height = height;
    this.render = render;
    this.count = 0;
    /** @type {HTMLElement[]} */ this.pool = [];
    this.space = document.createElement("div");
    this.space.className = "space";
    this.space.setAttribute("role", "presentation");
    scroller.append(this.space);
    this.width = scroller.clientWidth;
    this.asked = 0;
    scroller.addEventListener(
      "scroll",
      () => {
        this.asked ||= requestAnimationFrame(() => this.paint());
      },
      { passive: true },
    );
    this.watcher = new ResizeObserver(() => {
      if (scroller.clientWidth !== this.width) {
        this.width = scroller.clientWidth;
        resized();
      }
      this.paint();
    });
    this.watcher.observe(scroller);
  }

  /** Draw the visible rows. @param {number} [count] how many rows there are */
  paint(count = this.count) {
    cancelAnimationFrame(this.asked);
    this.asked = 0;
    if (count !== this.count) this.space.style.height = `${count * this.height}px`;
    this.count = count;
    const size = Math.min(count, Math.ceil(this.scroller.clientHeight / this.height) + 2 * MORE);
    while (this.pool.length < size) this.pool.push(this.space.appendChild(document.createElement("div")));
    while (this.pool.length > size) this.pool.pop()?.remove();
    const first = Math.max(Math.min(Math.floor(this.scroller.scrollTop / this.height) - MORE, count - size), 0);
    for (let index = first; index < first + size; index++) {
      const element = /** @type {HTMLElement} */ (this.pool[index % size]);
      element.style.transform = `translateY(${index * this.height}px)`;
      patch(element, this.render(index, element));
    }
  }

  /** Scroll so that a row is seen. @param {number} index */
  reveal(index) {
    const top = index * this.height;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight)
      this.scroller.scrollTop = top + this.height - clientHeight + 8;
  }

  close() {
    this.watcher.disconnect();
  }
}

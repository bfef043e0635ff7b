// The strip: one span a token, drawn once for a prompt; a new color restyles it, a new selection moves one class.
// Texts come from files of others: they are only ever set as text.
const STRENGTH = 0.75; // of the heat at its strongest: text stays above 4.5 to 1 on it, on white and on the dark theme
const SPECIAL = /([\p{C}\p{Zl}\p{Zp}\p{Zs}])/u;
const SIGNS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };
const NOTHING = "∅"; // a token whose text is empty, part of a character for one, can still be pointed at

const sign = (character) => SIGNS[character] ?? "\\x" + character.codePointAt(0).toString(16).padStart(2, "0");
const shown = (text) => text.split(SPECIAL).map((part, place) => (place % 2 ? sign(part) : part)).join("");
const count = (value) => (value === null ? "undefined" : value.toLocaleString("en-US"));
const number = (value) => {
  const isTiny = value && Math.abs(value) < 1e-4; // written as the tables write it
  return isTiny ? value.toExponential() : value === null ? "undefined" : value.toLocaleString("en-US", { maximumFractionDigits: 20 });
};
const heatOf = (level) => `rgba(213, 94, 0, ${((level / 100) * STRENGTH).toFixed(3)})`;
const make = (tag, className, ...parts) => {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...parts);
  return element;
};
// Spaces and unprintable characters as quiet signs; a line end also ends the line.
const marked = (text) => text.split(SPECIAL).flatMap((part, place) => (place % 2 ? [make("i", "", sign(part)), ...(part === "\n" ? ["\n"] : [])] : part || []));

class Strip {
  constructor(root) {
    [this.box, this.legend, this.tip] = [".strip", ".legend", ".tip"].map((name) => root.querySelector(name));
    this.box.addEventListener("click", (event) => this.clicked(event));
    this.box.addEventListener("keydown", (event) => this.pressed(event));
    for (const name of ["pointerover", "focusin"]) this.box.addEventListener(name, (event) => this.show(this.placeOf(event)));
    for (const name of ["pointerleave", "focusout", "scroll"]) this.box.addEventListener(name, () => this.hide(), { passive: true });
  }

  async draw({ stamp, columns, position }, trigger) {
    const wish = stamp + columns;
    Object.assign(this, { trigger, position });
    if (this.wish !== wish) {
      this.wish = wish;
      const data = columns[0] === "{" ? JSON.parse(columns) : await (await fetch(columns)).json();
      if (this.wish !== wish) return; // another is asked for by now
      this.data = data;
      if (this.stamp !== stamp) this.build();
      Object.assign(this, { stamp, drawn: wish });
      this.paint();
    }
    if (this.drawn === wish) this.select(this.position);
  }

  build() {
    const { texts, ids, flip, odd } = this.data;
    this.selected = this.reachable = -1;
    this.spans = this.data.heat.map((_, place) => {
      const parts = texts ? marked(texts[place] || NOTHING) : [ids ? "#" + ids[place] : String(place)];
      const span = make("span", "token" + (flip[place] ? " flip" : "") + (odd[place] ? " odd" : "") + (texts ? "" : " number"), ...parts);
      span.setAttribute("role", "option");
      span.setAttribute("aria-selected", "false");
      span.dataset.position = place;
      return span;
    });
    const all = document.createDocumentFragment(); // a long prompt has more tokens than a call may have arguments
    // a line breaks between tokens, not within one
    for (const span of this.spans) all.append(texts ? "\u200B" : " ", span);
    this.box.replaceChildren(all);
    this.box.scrollTop = 0;
  }

  paint() {
    const { heat, legend, flip, odd } = this.data;
    this.spans.forEach((span, place) => (span.style.backgroundColor = heat[place] ? heatOf(heat[place]) : ""));
    const bar = make("span", "bar");
    bar.style.backgroundImage = `linear-gradient(to right, ${legend.stops.map(heatOf).join(", ")})`;
    const end = (text) => (text === null ? [] : [make("span", "end", text)]);
    this.legend.replaceChildren(
      make("span", "scale", make("span", "unit", legend.unit), ...end(legend.low), bar, ...end(legend.high)),
      ...(flip.some(Boolean) ? [make("span", "token flip sign", this.data.mark ?? "flip")] : []),
      ...(odd.some(Boolean) ? [make("span", "token odd sign", "NaN or infinity on one side only")] : []),
    );
  }

  select(position) {
    const here = this.spans[position];
    if (position === this.selected || !here) return;
    this.spans[this.selected]?.classList.remove("here");
    this.spans[this.selected]?.setAttribute("aria-selected", "false");
    here.classList.add("here");
    here.setAttribute("aria-selected", "true");
    this.selected = position;
    if (!this.spans.includes(this.box.getRootNode().activeElement)) this.reach(position);
    this.reveal(here);
  }

  reveal(span) {
    const above = span.offsetTop - this.box.offsetTop;
    if (above < this.box.scrollTop + 4 || above > this.box.scrollTop + this.box.clientHeight - 32) this.box.scrollTop = above - this.box.clientHeight / 2;
  }

  // The one token that Tab reaches.
  reach(place) {
    this.spans[this.reachable]?.removeAttribute("tabindex");
    this.spans[place].setAttribute("tabindex", "0");
    this.reachable = place;
  }

  focus(place) {
    const span = this.spans[place];
    this.reach(place);
    span.setAttribute("aria-label", [this.title(place), ...this.rows(place).map(([name, value]) => `${name} ${value}`)].join(", "));
    span.focus({ preventScroll: true });
    this.reveal(span);
    this.show(place); // after the scrolling, which hides it
  }

  placeOf(event) {
    const span = event.target.closest?.(".token");
    return span ? Number(span.dataset.position) : -1;
  }

  choose(position) {
    if (position < 0) return;
    this.select(position);
    this.trigger("go", { stamp: this.stamp, position });
  }

  clicked(event) {
    this.box.getRootNode().activeElement?.blur();
    this.choose(this.placeOf(event));
  }

  pressed(event) {
    const place = this.placeOf(event);
    if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.spans.length - 1;
    const to = {
      ArrowRight: () => Math.min(place + 1, last),
      ArrowLeft: () => Math.max(place - 1, 0),
      ArrowDown: () => this.lineBeside(place, 1),
      ArrowUp: () => this.lineBeside(place, -1),
      Home: () => 0,
      End: () => last,
    }[event.key];
    if (to) this.focus(to());
    else if (event.key === "Enter" || event.key === " ") this.choose(place);
    else if (event.key === "Escape") this.hide();
    else return;
    event.preventDefault();
  }

  // The token of the next line that is nearest to this one's left edge.
  lineBeside(place, way) {
    const start = this.spans[place].getClientRects()[0];
    let [best, nearest, line] = [place, Infinity, null];
    for (let other = place + way; this.spans[other]; other += way) {
      const at = this.spans[other].getClientRects()[0];
      if (Math.abs(at.top - start.top) < start.height / 2) continue;
      line ??= at.top;
      if (Math.abs(at.top - line) > start.height / 2) break;
      if (Math.abs(at.left - start.left) < nearest) [best, nearest] = [other, Math.abs(at.left - start.left)];
    }
    return best;
  }

  title(place) {
    const { texts, ids } = this.data;
    const id = ids && (texts ? `  (${ids[place]})` : `token ${ids[place]}`);
    return `position ${place}${this.data.figures ? ", " : texts || ids ? ", after " : ""}${texts ? shown(texts[place]) : ""}${id ?? ""}`;
  }

  rows(place) {
    const { data } = this;
    if (data.figures) {
      const figures = Object.entries(data.figures).filter(([, values]) => values[place] !== null).map(([name, values]) => [name, number(values[place])]);
      if (!figures.length) return [["no value", "masked out of the loss, or missing on both sides"]];
      return data.clipped[place] ? [...figures, ["clipped by", data.clipped[place]]] : figures;
    }
    const name = (token) => (token === null ? "none (all NaN)" : data.names[token] === undefined ? `token (${token})` : `${shown(data.names[token])}  (${token})`);
    return [
      data.flip[place] ? ["FLIP", `${name(data.reference[place])} → ${name(data.variant[place])}`] : ["argmax of both", name(data.reference[place])],
      ...(data.odd[place] ? [["NaN or infinity on one side", count(data.odd[place])]] : []),
      ["largest difference", `${number(data.max_abs[place])} logits`],
      ["max ULPs", count(data.max_ulps[place])],
      ["mean ULPs", number(data.mean_ulps[place])],
      ["max row ULPs", number(data.max_row_ulps[place])],
      ["logits that differ", `${count(data.neq[place])} of ${count(data.vocab)}`],
      ["margins", `${count(data.reference_margin[place])} / ${count(data.variant_margin[place])} ULPs${data.near[place] ? ", near tie" : ""}`],
      ["KL", `${number(data.kl[place])} nats`],
    ];
  }

  show(place) {
    if (place < 0) return this.hide();
    const list = make("dl", "", ...this.rows(place).flatMap(([name, value]) => ["dt", "dd"].map((tag, at) => make(tag, name === "FLIP" ? "flipped" : "", at ? value : name))));
    this.tip.replaceChildren(make("b", "", this.title(place)), list, ...(this.data.dtype ? [make("small", "", `ULPs of ${this.data.dtype}`)] : []));
    if (!this.tip.matches(":popover-open")) this.tip.showPopover();
    const pieces = this.spans[place].getClientRects();
    const last = pieces[pieces.length - 1];
    const at = last.bottom > this.box.getBoundingClientRect().bottom ? pieces[0] : last;
    const { width, height } = this.tip.getBoundingClientRect();
    const isBelow = at.bottom + 8 + height <= window.innerHeight;
    this.tip.style.left = `${Math.max(8, Math.min(at.left, window.innerWidth - width - 8))}px`;
    this.tip.style.top = `${isBelow ? at.bottom + 8 : Math.max(8, at.top - height - 8)}px`;
  }

  hide() { if (this.tip.matches(":popover-open")) this.tip.hidePopover(); }
}

const strips = new WeakMap();

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".root");
  if (!strips.has(root)) strips.set(root, new Strip(root));
  const strip = strips.get(root);
  const back = getComputedStyle(root).getPropertyValue("--st-background-color").trim();
  root.classList.toggle("dark", [1, 3, 5].reduce((sum, start) => sum + parseInt(back.slice(start, start + 2), 16), 0) < 384);
  strip.draw(data, setTriggerValue);
  return () => strip.hide();
}

// The strip: one span a token, drawn once for a prompt; a new colour restyles it, a new selection moves one class. Of a long prompt the beginning,
// which fills the box several times over, is drawn at once and the rest while the browser has nothing else to do, or when it is asked for.
// Texts come from files of others: they are only ever set as text.
const AT_ONCE = 800; // tokens
const STRENGTH = 0.75; // of the heat at its strongest: text stays above 4.5 to 1 on it, on white and on the dark theme
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}\p{Zs}]/u;
const NOTHING = "∅"; // a token whose text is empty, part of a character for one, can still be pointed at
const SIGNS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };

function appendText(parent, text) {
  let plain = "";
  const flush = () => {
    if (plain) parent.appendChild(document.createTextNode(plain));
    plain = "";
  };
  for (const character of text) {
    const isQuiet = character in SIGNS;
    if (!isQuiet && !UNPRINTABLE.test(character)) {
      plain += character;
      continue;
    }
    flush();
    const sign = document.createElement("i");
    sign.textContent = isQuiet ? SIGNS[character] : "\\x" + character.codePointAt(0).toString(16).padStart(2, "0");
    parent.appendChild(sign);
    if (character === "\n") parent.appendChild(document.createTextNode("\n"));
  }
  flush();
}

const shown = (text) =>
  [...text].map((c) => SIGNS[c] ?? (UNPRINTABLE.test(c) ? "\\x" + c.codePointAt(0).toString(16).padStart(2, "0") : c)).join("");
const count = (value) => (value === null ? "undefined" : value.toLocaleString("en-US"));
const number = (value) => {
  if (value === null) return "undefined";
  const isTiny = value !== 0 && Math.abs(value) < 1e-4; // written as the tables write it
  return isTiny ? value.toExponential().replace(/e-(\d)$/, "e-0$1") : value.toLocaleString("en-US", { maximumFractionDigits: 20 });
};

class Strip {
  constructor(root) {
    this.box = root.querySelector(".strip");
    this.legend = root.querySelector(".legend");
    this.tip = root.querySelector(".tip");
    this.spans = [];
    this.later = null;
    this.stamp = "";
    this.selected = -1;
    this.reachable = -1; // the token that Tab reaches
    this.box.addEventListener("click", (event) => this.clicked(event));
    this.box.addEventListener("keydown", (event) => this.pressed(event));
    this.box.addEventListener("pointerover", (event) => this.pointed(event));
    this.box.addEventListener("pointerleave", () => this.hide());
    this.box.addEventListener("focusin", (event) => this.show(this.placeOf(event)));
    this.box.addEventListener("focusout", () => this.hide());
    this.box.addEventListener("scroll", () => this.hide(), { passive: true });
    this.hear = (event) => this.select(event.detail);
    document.addEventListener("ulpscope:position", this.hear);
  }

  close() {
    document.removeEventListener("ulpscope:position", this.hear);
    this.rest();
    this.hide();
  }

  draw({ stamp, columns }) {
    const isNew = this.stamp !== stamp;
    if (this.columns !== columns) {
      this.columns = columns;
      this.data = JSON.parse(columns);
    }
    if (isNew) {
      this.stamp = stamp;
      this.selected = this.reachable = -1;
      this.build();
    } else this.paint();
    this.drawLegend();
    const here = window.ulpscopePosition; // what the stepper said before this strip was there
    if (isNew && here) this.select(here);
    if (this.reachable < 0) this.reach(0);
  }

  build() {
    this.rest();
    this.spans = [];
    this.box.replaceChildren();
    this.grow(AT_ONCE);
    this.box.scrollTop = 0;
    this.goOn();
  }

  rest() {
    clearTimeout(this.later);
    this.later = null;
  }

  goOn() {
    if (this.spans.length >= this.data.heat.length) return;
    this.later = setTimeout(() => {
      this.grow(this.spans.length + AT_ONCE);
      this.goOn();
    }, 50);
  }

  grow(stop) {
    const { texts, ids, flip, odd, heat } = this.data;
    const start = this.spans.length;
    const parts = document.createDocumentFragment();
    for (let place = start; place < Math.min(stop, heat.length); place++) {
      const span = document.createElement("span");
      span.setAttribute("role", "option");
      span.setAttribute("aria-selected", "false");
      span.className = "token" + (flip[place] ? " flip" : "") + (odd[place] ? " odd" : "") + (texts ? "" : " number");
      span.dataset.position = place;
      if (texts) appendText(span, texts[place] || NOTHING);
      else span.textContent = ids ? "#" + ids[place] : String(place);
      parts.appendChild(span);
      if (!texts) parts.appendChild(document.createTextNode(" "));
      this.spans.push(span);
    }
    this.paint(start);
    this.box.appendChild(parts);
  }

  have(place) {
    if (place >= this.spans.length && place < this.data.heat.length) this.grow(place + AT_ONCE);
    return this.spans[place];
  }

  paint(start = 0) {
    const { heat } = this.data;
    for (let place = start; place < this.spans.length; place++)
      this.spans[place].style.backgroundColor = heat[place] ? `rgba(213, 94, 0, ${((heat[place] / 100) * STRENGTH).toFixed(3)})` : "";
  }

  drawLegend() {
    const { legend, flip, odd } = this.data;
    const parts = [];
    const add = (name, text, parent) => {
      const part = document.createElement("span");
      part.className = name;
      part.textContent = text;
      (parent ?? { append: (p) => parts.push(p) }).append(part);
      return part;
    };
    const scale = add("scale", "");
    add("unit", legend.unit, scale);
    if (legend.low !== null) add("end", legend.low, scale);
    const bar = add("bar", "", scale);
    bar.style.backgroundImage = `linear-gradient(to right, ${legend.stops
      .map((stop) => `rgba(213, 94, 0, ${(stop / 100) * STRENGTH})`)
      .join(", ")})`;
    if (legend.high !== null) add("end", legend.high, scale);
    if (flip.some(Boolean)) add("token flip sign", "flip");
    if (odd.some(Boolean)) add("token odd sign", "NaN or infinity on one side only");
    this.legend.replaceChildren(...parts);
  }

  select({ stamp, position }) {
    if (stamp !== this.stamp || position === this.selected || !this.have(position)) return;
    const before = this.spans[this.selected];
    if (before) {
      before.classList.remove("here");
      before.setAttribute("aria-selected", "false");
    }
    const here = this.spans[position];
    here.classList.add("here");
    here.setAttribute("aria-selected", "true");
    this.selected = position;
    if (this.box.getRootNode().activeElement?.closest?.(".strip") !== this.box) this.reach(position);
    this.reveal(here);
  }

  reveal(span) {
    const above = span.offsetTop - this.box.offsetTop;
    if (above < this.box.scrollTop + 4 || above > this.box.scrollTop + this.box.clientHeight - 32)
      this.box.scrollTop = above - this.box.clientHeight / 2;
  }

  reach(place) {
    this.spans[this.reachable]?.removeAttribute("tabindex");
    this.spans[place]?.setAttribute("tabindex", "0");
    this.reachable = place;
  }

  focus(place) {
    const span = this.have(place);
    if (!span) return;
    this.reach(place);
    span.setAttribute("aria-label", this.lines(place).join(", "));
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
    this.select({ stamp: this.stamp, position });
    document.dispatchEvent(new CustomEvent("ulpscope:go", { detail: { stamp: this.stamp, position } }));
  }

  clicked(event) {
    const place = this.placeOf(event);
    this.box.getRootNode().activeElement?.blur(); // so that the arrow keys go on stepping the selection
    this.choose(place);
  }

  pressed(event) {
    const place = this.placeOf(event);
    if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.data.heat.length - 1;
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

  lineBeside(place, way) {
    // The token of the next line that is nearest to this one's left edge.
    const start = this.spans[place].getClientRects()[0];
    let best = place;
    let nearest = Infinity;
    let line = null;
    for (let other = place + way; this.have(other); other += way) {
      const at = this.spans[other].getClientRects()[0];
      if (Math.abs(at.top - start.top) < start.height / 2) continue;
      line ??= at.top;
      if (Math.abs(at.top - line) > start.height / 2) break;
      if (Math.abs(at.left - start.left) < nearest) [best, nearest] = [other, Math.abs(at.left - start.left)];
    }
    return best;
  }

  pointed(event) {
    const place = this.placeOf(event);
    if (place >= 0) this.show(place);
    else this.hide();
  }

  rows(place) {
    const { data } = this;
    const name = (token) => (token === null ? "none (all NaN)" : (data.names[token] === undefined ? "token " : shown(data.names[token]) + "  ") + `(${token})`);
    const rows = [];
    if (data.flip[place]) rows.push(["FLIP", `${name(data.reference[place])} → ${name(data.variant[place])}`]);
    else rows.push(["argmax of both", name(data.reference[place])]);
    if (data.odd[place]) rows.push(["NaN or infinity on one side", count(data.odd[place])]);
    rows.push(
      ["largest difference", `${number(data.max_abs[place])} logits`],
      ["max ULPs", count(data.max_ulps[place])],
      ["mean ULPs", number(data.mean_ulps[place])],
      ["max row ULPs", number(data.max_row_ulps[place])],
      ["differing logits", `${count(data.neq[place])} of ${count(data.vocab)}`],
      ["margins", `${count(data.reference_margin[place])} / ${count(data.variant_margin[place])} ULPs${data.near[place] ? ", near tie" : ""}`],
      ["KL", `${number(data.kl[place])} nats`],
    );
    return rows;
  }

  title(place) {
    const { texts, ids } = this.data;
    const token = (texts ? shown(texts[place]) : "") + (ids ? `${texts ? "  (" : "token "}${ids[place]}${texts ? ")" : ""}` : "");
    return `position ${place}${token ? ", after " + token : ""}`;
  }

  lines(place) {
    return [this.title(place), ...this.rows(place).map(([name, value]) => `${name} ${value}`)];
  }

  show(place) {
    if (place < 0 || !this.spans[place]) return;
    const head = document.createElement("b");
    head.textContent = this.title(place);
    const list = document.createElement("dl");
    for (const [name, value] of this.rows(place)) {
      const term = document.createElement("dt");
      const figure = document.createElement("dd");
      term.textContent = name;
      figure.textContent = value;
      if (name === "FLIP") term.className = figure.className = "flipped";
      list.append(term, figure);
    }
    const unit = document.createElement("small");
    unit.textContent = `ULPs of ${this.data.dtype}`;
    this.tip.replaceChildren(head, list, unit);
    this.tip.dataset.position = place;
    if (!this.tip.matches(":popover-open")) this.tip.showPopover();
    const pieces = this.spans[place].getClientRects();
    const at = pieces[pieces.length - 1].bottom > this.box.getBoundingClientRect().bottom ? pieces[0] : pieces[pieces.length - 1];
    const { width, height } = this.tip.getBoundingClientRect();
    const below = at.bottom + 8 + height <= window.innerHeight;
    this.tip.style.left = `${Math.max(8, Math.min(at.left, window.innerWidth - width - 8))}px`;
    this.tip.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - height - 8)}px`;
  }

  hide() {
    if (this.tip.matches(":popover-open")) this.tip.hidePopover();
  }
}

const strips = new WeakMap();

export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".root");
  if (!strips.has(root)) strips.set(root, new Strip(root));
  const strip = strips.get(root);
  const back = getComputedStyle(root).getPropertyValue("--st-background-color").trim();
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(back.slice(start, start + 2), 16));
  root.classList.toggle("dark", red + green + blue < 384);
  strip.draw(data);
  return () => {
    strip.close();
    strips.delete(root);
  };
}

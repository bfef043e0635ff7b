// The heatmap's canvas: tiles of raw cells from the server, pooled by maximum into pixels, coloured here.
// Nothing is ever set as HTML: token texts are of others.
// The files next to this one are one script with it: colours, tiles, drawing, axes, pointing, then this.

class Heatmap extends Pointing {
  constructor(root) {
    super();
    this.root = root;
    this.tiles = new Map();
    this.fetching = new Map();
    this.failed = new Map();
    this.emitted = new Map();
    this.pointers = new Map();
    this.serial = Math.random().toString(36).slice(2, 8);
    this.count = 0;
    this.view = null;
    this.build();
    this.watch = new ResizeObserver(() => this.changed(false));
    this.watch.observe(this.canvas);
  }

  build() {
    const bar = made("div", "bar", this.root);
    const choice = (name, label, options) => {
      const group = made("div", "group", bar);
      group.setAttribute("role", "group");
      group.setAttribute("aria-label", label);
      made("span", "name", group, label);
      return Object.fromEntries(options.map(([value, text]) => [value, button(group, text, () => this.choose({ [name]: value }))]));
    };
    this.choices = {
      order: choice("order", "Columns", [["rank", "rank"], ["id", "token id"]]),
      measure: choice("measure", "Cells", [["row_ulps", "row ULPs"], ["ulps", "max ULPs"], ["difference", "largest difference"]]),
      scale: choice("scale", "Color", [["log", "log"], ["linear", "linear"]]),
    };
    const zoom = made("div", "group", bar);
    button(zoom, "−", () => this.zoom(2), "Zoom out");
    button(zoom, "+", () => this.zoom(0.5), "Zoom in");
    button(zoom, "At the position", () => this.around(), "Rows at the position");
    this.wholeButton = button(zoom, "Whole run", () => this.whole());
    this.saveButton = button(zoom, "PNG", () => this.save(), "Save the map as PNG");
    this.saveButton.title = "Saves what is seen, with its axes and its scale";
    this.status = made("div", "status", this.root);
    this.status.setAttribute("aria-live", "polite");
    const frame = made("div", "frame", this.root);
    const canvas = (this.canvas = made("canvas", "", frame));
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.dataset.state = "loading";
    this.tip = made("div", "tip", frame);
    this.tip.setAttribute("aria-live", "polite");
    this.tip.hidden = true;
    canvas.onwheel = (event) => this.wheel(event);
    canvas.onpointerdown = (event) => this.down(event);
    canvas.onpointermove = (event) => this.move(event);
    canvas.onpointerup = (event) => this.up(event);
    canvas.onpointercancel = (event) => this.pointers.delete(event.pointerId);
    canvas.onpointerleave = () => this.hideTip();
    canvas.onkeydown = (event) => this.key(event);
    canvas.onblur = () => { this.crosshair = false; this.hideTip(); this.paintSoon(); };
  }

  update(data, setTriggerValue) {
    const isOther = this.data?.address !== data.address || this.data.stamp !== data.stamp;
    this.data = data;
    this.choices.order.id.textContent = data.words.column;
    this.trigger = setTriggerValue;
    if (isOther) {
      this.view = this.texts = null;
      this.hideTip();
    }
    // What comes back from our own message is not adopted: the view may have moved on. A link, Back or another run's window is.
    const { window } = data;
    const said = JSON.stringify(window);
    const isNews = this.received !== data.serial + said && this.emitted.get(data.serial) !== said;
    this.received = data.serial + said;
    if (!this.view || isNews) {
      const { order, measure, scale, rows: [y0, y1], columns: [x0, x1] } = window;
      Object.assign(this, { order, measure, scale, view: { y0, y1, x0, x1 }, last: said });
      clearTimeout(this.saying);
    }
    this.canvas.setAttribute("aria-label", data.label);
    this.changed(false);
  }

  close() {
    this.watch.disconnect();
    for (const one of this.fetching.values()) one.abort();
    for (const timer of [this.saying, this.fetchTimer, this.asking, this.arrivals]) clearTimeout(timer);
  }

  get isLog() { return this.scale === "log" || (this.scale === "auto" && (this.measure !== "row_ulps" || this.data.is_skewed)); }
  get isRank() { return this.order === "rank"; } // ranks are counted from 1, the columns of the view from 0
  get floor() { return this.measure === "row_ulps" ? this.data.floor_row_ulps : null; }
  get unit() { return { row_ulps: `row ULPs of ${this.data.dtype}`, ulps: `ULPs of ${this.data.dtype}`, difference: this.data.words.unit }[this.measure]; }
  get isWhole() {
    const { view, data } = this;
    return view.y0 <= 0 && view.x0 <= 0 && view.y1 >= data.rows && view.x1 >= data.columns;
  }

  window() {
    const { view, data, order, measure, scale } = this;
    const both = (low, high, size) => {
      const first = clamp(Math.floor(low + 1e-6), 0, size - 1);
      return [first, clamp(Math.ceil(high - 1e-6), first + 1, size)];
    };
    return { rows: both(view.y0, view.y1, data.rows), columns: both(view.x0, view.x1, data.columns), order, measure, scale };
  }

  inWords(rows, columns) {
    const [what, first] = this.isRank ? ["ranks", 1] : [this.data.words.columns, 0];
    return `${rows[1] - rows[0] === 1 ? "row" : "rows"} ${span(rows[0], rows[1] - 1)}, ${what} ${span(columns[0] + first, columns[1] - 1 + first)}`;
  }

  setView(y0, y1, x0, x1) {
    const { data } = this;
    const fit = (low, high, size, least) => {
      const length = clamp(high - low, Math.min(least, size), size);
      const start = clamp((low + high - length) / 2, 0, size - length);
      return [start, start + length];
    };
    const [top, bottom] = fit(y0, y1, data.rows, SPAN.rows);
    const [left, right] = fit(x0, x1, data.columns, SPAN.columns);
    this.view = { y0: top, y1: bottom, x0: left, x1: right };
    this.changed(true);
  }

  zoom(factor, px = 0.5, py = 0.5, axes = "both") {
    const { y0, y1, x0, x1 } = this.view;
    const fy = axes === "columns" ? 1 : factor;
    const fx = axes === "rows" ? 1 : factor;
    const cy = y0 + (y1 - y0) * py;
    const cx = x0 + (x1 - x0) * px;
    this.setView(cy - (cy - y0) * fy, cy + (y1 - cy) * fy, cx - (cx - x0) * fx, cx + (x1 - cx) * fx);
  }

  whole() { this.setView(0, this.data.rows, 0, this.data.columns); }

  around() {
    const { row } = this.data.selected;
    const [left, right] = this.isRank ? [0, this.data.ranks / 4] : [this.view.x0, this.view.x1];
    this.setView(row - 8, row + 9, left, right);
  }

  choose(what) {
    Object.assign(this, what);
    this.hideTip();
    if (!what.order) return this.changed(true);
    const { data, view: { y0, y1 } } = this;
    const [rows, columns] = this.isRank ? [data.most_read / data.columns, data.ranks] : [data.rows, data.columns];
    const middle = y1 - y0 > rows ? data.selected.row : (y0 + y1) / 2;
    const half = Math.min(y1 - y0, rows) / 2;
    this.setView(middle - half, middle + half, 0, columns);
  }

  changed(isOurs) {
    if (!this.view) return;
    this.plan();
    this.paintSoon();
    clearTimeout(this.fetchTimer);
    if (this.missing.length) this.canvas.dataset.state = "loading";
    this.fetchTimer = setTimeout(() => {
      this.missing.filter((tile) => !this.fetching.has(tile.key)).forEach((tile) => this.fetchTile(tile));
      this.fetchTexts();
    }, FETCH_AFTER);
    if (isOurs) this.saySoon();
  }

  saySoon() {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => {
      if (this.pointers.size) this.saySoon();
      else if (JSON.stringify(this.window()) !== this.last) this.say({});
    }, SAY_AFTER);
  }

  say(what) {
    clearTimeout(this.saying);
    const window = this.window();
    const serial = `${this.serial}-${++this.count}`;
    this.last = JSON.stringify(window);
    this.emitted.set(serial, this.last);
    this.trigger("said", { ...what, window, serial });
  }
}

const instances = new WeakMap();

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector("#heatmap");
  if (!instances.has(root)) instances.set(root, new Heatmap(root));
  const instance = instances.get(root);
  instance.update(data, setTriggerValue);
  return () => {
    instance.close();
    instances.delete(root);
  };
}

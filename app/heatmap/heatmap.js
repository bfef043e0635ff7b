// The heatmap's canvas: tiles of raw cells from the server, pooled by maximum into pixels, coloured here.
// Nothing is ever set as HTML: token texts are of others.
// The parts beside this file are one script: colours, tiles, drawing, axes, pointing, then this.

class Heatmap extends Pointing {
  constructor(root) {
    super();
    this.root = root;
    this.tiles = new Map();
    this.tileBytes = 0;
    this.fetching = new Map();
    this.failed = new Map();
    this.answers = new Map();
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
    this.choices = {
      order: this.choice(bar, "Columns", [["id", "token id"], ["rank", "rank"]], (value) => this.choose({ order: value })),
      measure: this.choice(bar, "Cells", [["row_ulps", "row ULPs"], ["ulps", "max ULPs"], ["difference", "largest difference"]], (value) =>
        this.choose({ measure: value })),
      scale: this.choice(bar, "Color", [["log", "log"], ["linear", "linear"]], (value) => this.prefer({ scale: value })),
      range: this.choice(bar, "Scale", [["pair", "whole pair"], ["view", "this view"]], (value) => this.prefer({ range: value })),
    };
    const zoom = made("div", "group", bar);
    for (const [label, name, act] of [
      ["−", "Zoom out", () => this.zoom(2)],
      ["+", "Zoom in", () => this.zoom(0.5)],
      ["At the position", "Rows at the position", () => this.around()],
      ["Whole run", "Whole run", () => this.whole()],
    ]) {
      const button = made("button", "", zoom);
      button.type = "button";
      button.textContent = label;
      button.setAttribute("aria-label", name);
      button.onclick = act;
      if (name === "Whole run") this.wholeButton = button;
    }
    this.saveButton = made("button", "save", made("div", "group", bar));
    this.saveButton.type = "button";
    this.saveButton.textContent = "PNG";
    this.saveButton.title = "Saves what is seen, with its axes and its scale";
    this.saveButton.setAttribute("aria-label", "Save the map as PNG");
    this.saveButton.onclick = () => this.save();
    this.status = made("div", "status", this.root);
    this.status.setAttribute("aria-live", "polite");
    this.frame = made("div", "frame", this.root);
    const below = made("div", "below", this.root);
    this.hint = made("div", "hint", below);
    this.hint.hidden = true;
    this.hintText = made("span", "", this.hint);
    const offer = (label, act) => {
      const button = made("button", "", this.hint);
      button.type = "button";
      button.textContent = label;
      button.onclick = act;
      return button;
    };
    this.hintDifference = offer("Show the largest difference", () => this.choose({ measure: "difference" }));
    this.hintView = offer("Scale to this view", () => this.prefer({ range: "view" }));
    this.canvas = made("canvas", "", this.frame);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.dataset.state = "loading";
    this.tip = made("div", "tip", this.frame);
    this.tip.setAttribute("aria-live", "polite");
    this.tip.hidden = true;
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.onpointerdown = (event) => this.down(event);
    canvas.onpointermove = (event) => this.move(event);
    canvas.onpointerup = (event) => this.up(event);
    canvas.onpointercancel = (event) => this.pointers.delete(event.pointerId);
    canvas.onpointerleave = () => this.hideTip();
    canvas.onkeydown = (event) => this.key(event);
    canvas.onblur = () => { this.crosshair = false; this.hideTip(); this.paintSoon(); };
  }

  choice(parent, name, options, act) {
    const group = made("div", "group", parent);
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", name);
    made("span", "name", group).textContent = name;
    const buttons = {};
    for (const [value, label] of options) {
      const button = made("button", "", group);
      button.type = "button";
      button.textContent = label;
      button.onclick = () => act(value);
      buttons[value] = button;
    }
    return buttons;
  }

  update(data, setTriggerValue) {
    const isOther = !this.data || this.data.address !== data.address || this.data.stamp !== data.stamp;
    this.data = data;
    this.trigger = setTriggerValue;
    if (isOther) {
      this.view = null;
      this.answers.clear();
      this.hideTip();
      for (const one of this.fetching.values()) one.abort();
      this.fetching.clear();
    }
    // What comes back from our own message is not adopted: the view may have moved on. A link, Back or another run's window is.
    const said = JSON.stringify(data.window);
    const isNews = this.received !== data.serial + said && this.emitted.get(data.serial) !== said;
    this.received = data.serial + said;
    if (!this.view || isNews) {
      this.order = data.order;
      this.measure = data.measure;
      this.scale = data.window.scale;
      this.range = data.window.range;
      this.view = { y0: data.window.rows[0], y1: data.window.rows[1], x0: data.window.columns[0], x1: data.window.columns[1] };
      this.last = said;
      clearTimeout(this.saying);
      this.saying = 0;
    }
    this.canvas.setAttribute("aria-label", data.label);
    this.changed(false);
  }

  close() {
    this.watch.disconnect();
    for (const one of this.fetching.values()) one.abort();
    for (const timer of [this.saying, this.fetchTimer, this.asking, this.arrivals]) clearTimeout(timer);
  }

  // What is shown ------------------------------------------------------------------------------------------------------------

  get isFloat() { return this.measure !== "ulps"; } // cells are the bits of float32 numbers
  get isLog() { return this.scale === "log" || (this.scale === "auto" && this.measure !== "row_ulps"); }
  get floor() { return this.measure === "row_ulps" ? this.data.floor_row_ulps : null; }
  get scaleUnit() { return this.floor > 0 ? this.floor : 1; } // row ULPs, or what a cell counts, per unit of the scale
  get unit() { return { row_ulps: `row ULPs of ${this.data.dtype}`, ulps: `ULPs of ${this.data.dtype}`, difference: "logits" }[this.measure]; }
  get isWhole() {
    const { view, data } = this;
    return view.y0 <= 0 && view.x0 <= 0 && view.y1 >= data.rows && view.x1 >= data.columns;
  }

  window() {
    const { view, data } = this;
    const both = (low, high, size) => {
      const first = clamp(Math.floor(low + 1e-6), 0, size - 1);
      return [first, clamp(Math.ceil(high - 1e-6), first + 1, size)];
    };
    return {
      rows: both(view.y0, view.y1, data.rows), columns: both(view.x0, view.x1, data.columns), order: this.order, measure: this.measure,
      scale: this.scale, range: this.range,
    };
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
    const { x0, x1 } = this.view;
    const row = this.data.selected.row;
    const low = clamp(row - 8, 0, this.data.rows);
    this.setView(low, Math.min(low + 17, this.data.rows), x0, x1);
  }

  choose(what) {
    const before = this.order;
    Object.assign(this, what);
    this.hideTip();
    this.answers.clear();
    if (this.order !== before) this.setView(this.view.y0, this.view.y1, 0, this.data.columns);
    else this.changed(true);
  }

  prefer(what) {
    Object.assign(this, what);
    this.changed(true);
  }

  changed(isOurs) {
    if (!this.view) return;
    this.plan();
    this.paintSoon();
    clearTimeout(this.fetchTimer);
    if (this.missing.length) {
      this.canvas.dataset.state = "loading";
      this.fetchTimer = setTimeout(() => this.fetchMissing(), FETCH_AFTER);
    }
    if (isOurs) this.saySoon();
  }

  saySoon() {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => {
      this.saying = 0;
      if (this.pointers.size) this.saySoon();
      else if (JSON.stringify(this.window()) !== this.last) this.say({});
    }, SAY_AFTER);
  }

  say(what) {
    clearTimeout(this.saying);
    this.saying = 0;
    const window = this.window();
    const serial = `${this.serial}-${++this.count}`;
    this.last = JSON.stringify(window);
    this.emitted.set(serial, this.last);
    if (this.emitted.size > 40) this.emitted.delete(this.emitted.keys().next().value);
    this.trigger("said", { ...what, window, serial });
  }

}

const instances = new WeakMap();

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  let instance = instances.get(parentElement);
  if (instance && !instance.root.isConnected) {
    instance.close();
    instance = null;
  }
  if (!instance) {
    instance = new Heatmap(parentElement.querySelector("#heatmap"));
    instances.set(parentElement, instance);
  }
  instance.update(data, setTriggerValue);
  return () => {
    instance.close();
    instances.delete(parentElement);
  };
}

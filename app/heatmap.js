// The heatmap's canvas: tiles of raw cells from the server, pooled by maximum into pixels, coloured here.
// Nothing is ever set as HTML: token texts are of others.

const MISMATCH = 0xffffffff;
const KEPT_BYTES = 48 * 2 ** 20; // of tiles, here in the browser
const SPARSE = 400; // as many differing cells are drawn as points of at least POINT pixels
const POINT = 5;
const FETCH_AFTER = 40; // ms of rest: a turn of the wheel passes through levels nobody looks at
const SAY_AFTER = 400; // ms of rest until the address bar learns of the window: each is a step of the browser's history
const ASK_AFTER = 70;
const ARRIVALS_AFTER = 120; // tiles that come meanwhile are drawn together: drawing takes the time that the rest needs
const MARGIN = { left: 66, top: 34, right: 40, bottom: 100 };
const SCALE = 280; // of the legend, px at most
const BESIDE = SCALE + 330; // from this width of the plot on, what colours mean stands beside the scale, else beneath it
const LINE = 18; // px
const DEPTH = 256; // below the largest difference: how far a logarithmic scale of differences reaches; less is drawn like that
const SPAN = { rows: 4, columns: 8 }; // the smallest window
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

function made(kind, className, parent) {
  const element = document.createElement(kind);
  element.className = className;
  parent.appendChild(element);
  return element;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const grouped = (value) => Math.round(value).toLocaleString("en-US");
const span = (first, last) => (first === last ? grouped(first) : `${grouped(first)}–${grouped(last)}`);

// A cell's value as the index of its colour: exact below 32768, eleven bits of it beyond; of float32 bits the upper 17.
function keyOf(value, isDifference) {
  if (isDifference) return value >>> 15;
  if (value < 32768) return value;
  const power = 31 - Math.clz32(value);
  return 32768 + (power - 15) * 2048 + ((value >>> (power - 11)) & 2047);
}

function valueOf(key, isDifference) {
  if (isDifference) return floatOf(key << 15);
  if (key < 32768) return key;
  const power = 15 + Math.floor((key - 32768) / 2048);
  return (2048 + ((key - 32768) % 2048)) * 2 ** (power - 11);
}
const KEYS = 32768 + 17 * 2048;

const bits = new Uint32Array(1);
const float = new Float32Array(bits.buffer);
function floatOf(pattern) {
  bits[0] = pattern;
  return float[0];
}

function shown(value) {
  if (value >= 1e5 || (value > 0 && value < 1e-3)) return value.toExponential(1).replace(".0", "").replace("+", "");
  return value >= 1 ? grouped(value) : String(Number(value.toPrecision(2)));
}

class Heatmap {
  constructor(root) {
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
      measure: this.choice(bar, "Cells", [["ulps", "max ULPs"], ["difference", "largest difference"]], (value) =>
        this.choose({ measure: value })),
      scale: this.choice(bar, "Colour", [["log", "log"], ["linear", "linear"]], (value) => this.prefer({ scale: value })),
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

  get isDifference() { return this.measure === "difference"; }
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

  // Tiles --------------------------------------------------------------------------------------------------------------------

  geometry() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(this.canvas.clientWidth, 160);
    const height = this.canvas.clientHeight || 560;
    const room = Math.max(40, width - MARGIN.left - MARGIN.right);
    const bottom = MARGIN.bottom + (room > BESIDE ? 0 : LINE);
    const plot = { left: MARGIN.left, top: MARGIN.top, width: room, height: height - MARGIN.top - bottom };
    return { ratio, width, height, plot, W: Math.max(1, Math.round(plot.width * ratio)), H: Math.max(1, Math.round(plot.height * ratio)) };
  }

  plan() {
    const { data, view } = this;
    this.shape = this.geometry();
    const { W, H } = this.shape;
    const level = (length, pixels, most) => clamp(Math.round(Math.log2(length / pixels)), 0, most);
    const finest = data.finest[this.order][this.measure];
    const r = level(view.y1 - view.y0, H, finest.length - 1);
    // Single logits are read as whole rows: of too many rows, cells of 32 columns are drawn a little wider instead.
    const least = (view.y1 - view.y0) * data.columns > data.most_read ? data.group_level : 0;
    const c = Math.min(Math.max(level(view.x1 - view.x0, W, data.column_levels), finest[r], least), data.column_levels);
    const tall = data.tile_rows * 2 ** r;
    const wide = data.tile_columns * 2 ** c;
    this.level = [r, c];
    this.wanted = [];
    for (let row = Math.floor(view.y0 / tall); row * tall < view.y1; row++)
      for (let column = Math.floor(view.x0 / wide); column * wide < view.x1; column++) this.wanted.push(this.place(r, c, row, column));
    this.missing = this.wanted.filter((tile) => !this.tiles.has(tile.key));
    const keys = new Set(this.wanted.map((tile) => tile.key));
    for (const [key, one] of this.fetching) {
      if (!keys.has(key)) {
        one.abort();
        this.fetching.delete(key);
      }
    }
    this.canvas.dataset.window = `${view.y0}:${view.y1},${view.x0}:${view.x1}`;
    this.canvas.dataset.plot = Object.values(this.shape.plot).join(",");
    this.canvas.dataset.level = `${r},${c}`;
  }

  place(r, c, row, column) {
    const { data } = this;
    const kind = `${data.address} ${data.stamp} ${this.order} ${this.measure}`;
    const tall = 2 ** r;
    const wide = 2 ** c;
    const y = row * data.tile_rows * tall;
    const x = column * data.tile_columns * wide;
    return {
      key: `${kind} ${r},${c} ${row},${column}`, kind, tall, wide, x, y,
      rows: Math.min(data.tile_rows, Math.ceil((data.rows - y) / tall)),
      columns: Math.min(data.tile_columns, Math.ceil((data.columns - x) / wide)),
      query: `order=${this.order}&measure=${this.measure}&level=${r},${c}&tile=${row},${column}&v=${data.stamp}`,
    };
  }

  fetchMissing() {
    const { view } = this;
    const middle = [(view.y0 + view.y1) / 2, (view.x0 + view.x1) / 2];
    const away = (tile) => Math.abs(tile.y + (tile.rows * tile.tall) / 2 - middle[0]) / (view.y1 - view.y0)
      + Math.abs(tile.x + (tile.columns * tile.wide) / 2 - middle[1]) / (view.x1 - view.x0);
    for (const tile of [...this.missing].sort((a, b) => away(a) - away(b)))
      if (!this.fetching.has(tile.key)) this.fetchTile(tile);
  }

  async fetchTile(tile) {
    const control = new AbortController();
    this.fetching.set(tile.key, control);
    try {
      const answer = await fetch(`${this.data.address}?${tile.query}`, { signal: control.signal });
      if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
      const body = await answer.arrayBuffer();
      this.keep(tile, body);
      this.failed.delete(tile.key);
    } catch (error) {
      if (control.signal.aborted) return;
      this.failed.set(tile.key, error.message || "the server did not answer");
    }
    if (this.fetching.get(tile.key) === control) this.fetching.delete(tile.key);
    this.missing = this.wanted.filter((one) => !this.tiles.has(one.key));
    if (!this.missing.length || !this.fetching.size) this.paintSoon();
    else this.arrivals ||= setTimeout(() => { this.arrivals = 0; this.paintSoon(); }, ARRIVALS_AFTER);
  }

  keep(tile, body) {
    const cells = tile.rows * tile.columns;
    if (body.byteLength === 4 * cells) tile.cells = new Uint32Array(body);
    else if (body.byteLength === 2 * cells) {
      tile.cells = new Uint32Array(new Uint16Array(body));
      for (let i = 0; i < cells; i++) if (tile.cells[i] === 0xffff) tile.cells[i] = MISMATCH;
    } else if (body.byteLength === 0) tile.cells = null;
    else throw new Error(`${body.byteLength} bytes arrived for ${cells} cells`);
    tile.bytes = tile.cells ? tile.cells.byteLength : 64;
    this.tiles.set(tile.key, tile);
    this.tileBytes += tile.bytes;
    const needed = new Set(this.wanted.map((one) => one.key));
    for (const [key, old] of this.tiles) {
      if (this.tileBytes <= KEPT_BYTES) break;
      if (needed.has(key)) continue;
      this.tiles.delete(key);
      this.tileBytes -= old.bytes;
    }
  }

  touch(tile) {
    this.tiles.delete(tile.key);
    this.tiles.set(tile.key, tile);
  }

  // What there is in place of a tile that has not come: the finest one that covers it, else all finer parts of it.
  standIns(missing) {
    const end = (tile) => [tile.y + tile.rows * tile.tall, tile.x + tile.columns * tile.wide];
    const [bottom, right] = end(missing);
    let covering = null;
    const parts = [];
    for (const tile of this.tiles.values()) {
      if (tile.kind !== missing.kind) continue;
      const [tileBottom, tileRight] = end(tile);
      if (tile.y >= bottom || tileBottom <= missing.y || tile.x >= right || tileRight <= missing.x) continue;
      const covers = tile.y <= missing.y && tile.x <= missing.x && tileBottom >= Math.min(bottom, this.data.rows)
        && tileRight >= Math.min(right, this.data.columns);
      if (!covers) parts.push(tile);
      else if (!covering || tile.tall * tile.wide < covering.tall * covering.wide) covering = tile;
    }
    return covering ? [covering] : parts;
  }

  // Drawing ------------------------------------------------------------------------------------------------------------------

  paintSoon() {
    if (this.frameAsked) return;
    this.frameAsked = true;
    requestAnimationFrame(() => {
      this.frameAsked = false;
      if (this.view && this.root.isConnected) this.paint();
    });
  }

  pool() {
    const { W, H } = this.shape;
    if (!this.grid || this.grid.length !== W * H) {
      this.grid = new Uint32Array(W * H);
      this.known = new Uint8Array(W * H);
    } else {
      this.grid.fill(0);
      this.known.fill(0);
    }
    this.sparse = [];
    this.odd = [];
    this.isSparse = true;
    for (const wanted of this.wanted) {
      const here = this.tiles.get(wanted.key);
      if (here) {
        this.touch(here);
        this.poolTile(here, wanted);
      } else for (const standIn of this.standIns(wanted)) this.poolTile(standIn, wanted);
    }
  }

  // The cells of `tile` inside the rectangle of `region` into pixels, each pixel the maximum of the cells that touch it: a cell is
  // never less than a pixel, so no cell that differs is lost between two pixels.
  poolTile(tile, region) {
    const { view, grid, known } = this;
    const { W, H } = this.shape;
    const sx = W / (view.x1 - view.x0);
    const sy = H / (view.y1 - view.y0);
    const pixels = (low, high, origin, scale, most) => {
      const first = clamp(Math.round((low - origin) * scale), 0, most - 1);
      return [first, clamp(Math.round((high - origin) * scale), first + 1, most)];
    };
    const overlap = (first, size, count, low, length, from, to, end) => {
      const start = Math.max(first, low, from);
      const stop = Math.min(first + size * count, low + length, to, end);
      return [clamp(Math.floor((start - first) / size), 0, count), clamp(Math.ceil((stop - first) / size), 0, count), start, stop];
    };
    const [r0, r1, top, bottom] = overlap(
      tile.y, tile.tall, tile.rows, region.y, region.rows * region.tall, view.y0, view.y1, this.data.rows);
    const [c0, c1, left, right] = overlap(
      tile.x, tile.wide, tile.columns, region.x, region.columns * region.wide, view.x0, view.x1, this.data.columns);
    if (r0 >= r1 || c0 >= c1 || top >= bottom || left >= right) return;
    const [Y0, Y1] = pixels(top, bottom, view.y0, sy, H);
    const [X0, X1] = pixels(left, right, view.x0, sx, W);
    for (let y = Y0; y < Y1; y++) known.fill(1, y * W + X0, y * W + X1);
    if (!tile.cells) return;
    const starts = new Int32Array(c1 - c0);
    const stops = new Int32Array(c1 - c0);
    for (let c = c0; c < c1; c++) {
      const [a, b] = pixels(tile.x + c * tile.wide, tile.x + (c + 1) * tile.wide, view.x0, sx, W);
      starts[c - c0] = clamp(a, X0, X1 - 1);
      stops[c - c0] = clamp(b, starts[c - c0] + 1, X1);
    }
    for (let r = r0; r < r1; r++) {
      let [a, b] = pixels(tile.y + r * tile.tall, tile.y + (r + 1) * tile.tall, view.y0, sy, H);
      a = clamp(a, Y0, Y1 - 1);
      b = clamp(b, a + 1, Y1);
      const line = r * tile.columns;
      for (let c = c0; c < c1; c++) {
        const value = tile.cells[line + c];
        if (value === 0) continue;
        const from = starts[c - c0];
        const to = stops[c - c0];
        for (let y = a; y < b; y++)
          for (let i = y * W + from; i < y * W + to; i++) if (grid[i] < value) grid[i] = value;
        const cell = { value, x0: from, x1: to, y0: a, y1: b, rows: [tile.y + r * tile.tall, tile.tall], columns: [tile.x + c * tile.wide, tile.wide] };
        if (value === MISMATCH && this.odd.length <= SPARSE) this.odd.push(cell);
        if (this.isSparse) {
          this.sparse.push(cell);
          this.isSparse = this.sparse.length <= SPARSE;
        }
      }
    }
  }

  // Colours by key, and what the scale goes from and to.
  colours(largest) {
    const { data, isDifference } = this;
    const whole = isDifference ? data.max_abs : data.max_ulps;
    const high = Math.max(this.range === "pair" ? whole : largest, isDifference ? 1e-30 : 1);
    const low = isDifference ? high / DEPTH : 1;
    const isLog = this.scale === "log";
    const name = `${isDifference} ${high} ${isLog} ${data.palette.flat().join()}`;
    this.ends = { low: isLog ? low : 0, high, isLog };
    if (this.lutName === name) return this.lut;
    const stops = data.palette.map(([at, colour]) => [at, [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16))]);
    const lut = new Uint32Array(KEYS);
    for (let key = 0; key < KEYS; key++) {
      const t = this.share(valueOf(key, isDifference));
      let i = 1;
      while (i < stops.length - 1 && stops[i][0] < t) i++;
      const within = clamp((t - stops[i - 1][0]) / (stops[i][0] - stops[i - 1][0]), 0, 1);
      const [red, green, blue] = [0, 1, 2].map((j) => Math.round(stops[i - 1][1][j] + within * (stops[i][1][j] - stops[i - 1][1][j])));
      lut[key] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
    }
    this.lut = lut;
    this.lutName = name;
    return lut;
  }

  share(value) {
    const { low, high, isLog } = this.ends;
    if (!(value > 0)) return 0;
    if (isLog && high <= low) return 0; // one value: one colour
    return clamp(isLog ? Math.log2(value / low) / Math.log2(high / low) : value / high, 0, 1);
  }

  colourOf(value) {
    return value === MISMATCH ? this.data.mismatch_colour : css(this.lut[keyOf(value, this.isDifference)]);
  }

  paint() {
    this.plan();
    this.pool();
    const { data, shape, grid, known, isDifference, view } = this;
    const { W, H, ratio, plot } = shape;
    const rowMax = new Uint32Array(H);
    const columnMax = new Uint32Array(W);
    let largest = 0;
    for (let y = 0; y < H; y++) {
      for (let x = 0, i = y * W; x < W; x++, i++) {
        const value = grid[i];
        if (value === 0) continue;
        if (value > rowMax[y]) rowMax[y] = value;
        if (value > columnMax[x]) columnMax[x] = value;
        if (value > largest && value !== MISMATCH) largest = value;
      }
    }
    const lut = this.colours(isDifference ? floatOf(largest) : largest);
    const style = getComputedStyle(this.root);
    const colour = (name, other) => style.getPropertyValue(name).trim() || other;
    const text = colour("--st-text-color", "#444444");
    const border = colour("--st-border-color", "#999999");
    const unknown = abgr(colour("--st-secondary-background-color", "#eeeeee"));
    const red = abgr(data.mismatch_colour);
    const { canvas } = this;
    const size = [Math.round(shape.width * ratio), Math.round(shape.height * ratio)];
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    const draw = canvas.getContext("2d");
    draw.setTransform(1, 0, 0, 1, 0, 0);
    draw.clearRect(0, 0, canvas.width, canvas.height);
    const left = Math.round(plot.left * ratio);
    const top = Math.round(plot.top * ratio);
    if (!this.image || this.image.width !== W || this.image.height !== H) this.image = draw.createImageData(W, H);
    const pixels = new Uint32Array(this.image.data.buffer);
    for (let i = 0; i < grid.length; i++) {
      const value = grid[i];
      pixels[i] = value === 0 ? (known[i] ? 0 : unknown) : value === MISMATCH ? red : lut[keyOf(value, isDifference)];
    }
    draw.putImageData(this.image, left, top);
    // What differs alone is drawn large enough to be seen; NaN and infinity always are, on top.
    const point = POINT * ratio;
    for (const cell of [...(this.isSparse ? this.sparse : []), ...(this.odd.length <= SPARSE ? this.odd : [])]) {
      const width = Math.max(cell.x1 - cell.x0, point);
      const height = Math.max(cell.y1 - cell.y0, point);
      if (width === cell.x1 - cell.x0 && height === cell.y1 - cell.y0) continue;
      draw.fillStyle = this.colourOf(cell.value);
      const x = clamp((cell.x0 + cell.x1 - width) / 2, 0, W - width);
      const y = clamp((cell.y0 + cell.y1 - height) / 2, 0, H - height);
      draw.fillRect(Math.round(left + x), Math.round(top + y), Math.round(width), Math.round(height));
    }
    this.paintMargins(draw, rowMax, columnMax);
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paintAxes(draw, text, border, colour("--st-font", "sans-serif"));
    this.paintLegend(draw, text, border);
    this.wholeButton.disabled = this.isWhole;
    for (const [name, chosen] of [["order", this.order], ["measure", this.measure], ["scale", this.scale], ["range", this.range]]) {
      for (const [value, button] of Object.entries(this.choices[name])) {
        button.setAttribute("aria-pressed", String(value === chosen));
        button.disabled = (name === "order" && value === "rank" && !data.is_rank_offered) || (name === "measure" && value === "difference" && !data.is_difference_offered);
      }
    }
    const window = this.window();
    const what = this.order === "rank" ? "ranks" : "tokens";
    const shift = this.order === "rank" ? 1 : 0; // ranks are told from 1
    const cell = `a cell is ${2 ** this.level[0]} × ${2 ** this.level[1]} logits`;
    const trouble = this.missing.map((tile) => this.failed.get(tile.key)).find(Boolean);
    const says = `rows ${span(window.rows[0], window.rows[1] - 1)} of ${grouped(data.rows)}, ${what} ${span(window.columns[0] + shift, window.columns[1] - 1 + shift)} of ${grouped(data.columns)}; ${cell}`;
    const waits = this.missing.length ? ` · ${this.wanted.length - this.missing.length} of ${this.wanted.length} tiles` : "";
    this.says = says;
    this.saveButton.disabled = this.missing.length > 0;
    this.status.textContent = trouble ? `${says} · ${trouble}` : says + waits;
    canvas.dataset.state = !this.missing.length ? "drawn" : trouble && !this.fetching.size ? "failed" : "loading";
    canvas.dataset.view = JSON.stringify(view);
  }

  // A picture of the map as it is seen, under a heading; not before all its tiles have come.
  async save() {
    if (this.missing.length) return;
    const { crosshair } = this;
    this.crosshair = false;
    this.paint();
    this.crosshair = crosshair;
    const { data } = this;
    const { ratio, width, height } = this.shape;
    const head = 50;
    const picture = document.createElement("canvas");
    [picture.width, picture.height] = [Math.round(width * ratio), Math.round((height + head) * ratio)];
    const draw = picture.getContext("2d");
    const style = getComputedStyle(this.root);
    draw.fillStyle = style.getPropertyValue("--st-background-color").trim() || "#ffffff";
    draw.fillRect(0, 0, picture.width, picture.height);
    draw.drawImage(this.canvas, 0, Math.round(head * ratio));
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw.fillStyle = style.getPropertyValue("--st-text-color").trim() || "#444444";
    draw.textBaseline = "top";
    const shows = `${this.isDifference ? "largest difference, logits" : `max ULPs of ${data.dtype}`}; ${this.says}`;
    [data.title, shows].forEach((text, line) => {
      draw.font = line ? this.font : `bold ${this.font}`;
      draw.fillText(text, 8, 10 + 18 * line, width - 16);
    });
    const blob = await new Promise((done) => picture.toBlob(done, "image/png"));
    const { rows, columns } = this.window();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${data.file}-${this.measure}-by-${this.order}-rows${rows[0]}-${rows[1] - 1}-columns${columns[0]}-${columns[1] - 1}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    this.paintSoon();
  }

  paintMargins(draw, rowMax, columnMax) {
    const { ratio, plot, W, H } = this.shape;
    const gap = Math.round(3 * ratio);
    const left = Math.round(plot.left * ratio);
    const top = Math.round(plot.top * ratio);
    const tall = Math.round((MARGIN.top - 8) * ratio) - gap;
    const wide = Math.round((MARGIN.right - 8) * ratio) - gap;
    const share = (value) => (value === MISMATCH ? 1 : this.share(this.isDifference ? floatOf(value) : value));
    for (let x = 0; x < W; x++) {
      if (!columnMax[x]) continue;
      const height = Math.max(3 * ratio, share(columnMax[x]) * tall);
      draw.fillStyle = this.colourOf(columnMax[x]);
      draw.fillRect(left + x, top - gap - height, 1, height);
    }
    for (let y = 0; y < H; y++) {
      if (!rowMax[y]) continue;
      draw.fillStyle = this.colourOf(rowMax[y]);
      draw.fillRect(left + W + gap, top + y, Math.max(3 * ratio, share(rowMax[y]) * wide), 1);
    }
  }

  paintAxes(draw, text, border, font) {
    const { data, view, shape } = this;
    const { plot } = shape;
    draw.font = `12px ${font}`;
    this.font = draw.font;
    draw.strokeStyle = border;
    draw.lineWidth = 1;
    draw.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
    draw.fillStyle = text;
    const shift = this.order === "rank" ? 1 : 0;
    const x = (value) => plot.left + ((value - view.x0) / (view.x1 - view.x0)) * plot.width;
    const y = (value) => plot.top + ((value - view.y0) / (view.y1 - view.y0)) * plot.height;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const tick of ticks(view.y0, view.y1, plot.height / 55, 0)) {
      const place = y(tick + 0.5);
      if (place < plot.top || place > plot.top + plot.height) continue;
      draw.fillText(grouped(tick), plot.left - 14, place);
      draw.fillRect(plot.left - 5, Math.round(place), 4, 1);
    }
    draw.textAlign = "center";
    draw.textBaseline = "top";
    for (const tick of ticks(view.x0 + shift, view.x1 + shift, plot.width / 90, shift)) {
      const place = x(tick - shift + 0.5);
      if (place < plot.left || place > plot.left + plot.width) continue;
      draw.fillText(grouped(tick), place, plot.top + plot.height + 14);
      draw.fillRect(Math.round(place), plot.top + plot.height + 1, 1, 4);
    }
    draw.fillText(this.order === "rank" ? "rank in the reference's row" : "token id", plot.left + plot.width / 2, plot.top + plot.height + 31);
    draw.save();
    draw.translate(11, plot.top + plot.height / 2);
    draw.rotate(-Math.PI / 2);
    draw.textBaseline = "middle";
    draw.fillText(data.prompt_starts.length > 1 ? "row: prompts one after another" : "position", 0, 0);
    draw.restore();
    // Borders of prompts, where there is room between them.
    const starts = data.prompt_starts.filter((start) => start > view.y0 && start < view.y1);
    draw.save();
    draw.strokeStyle = text;
    draw.globalAlpha = 0.55;
    draw.setLineDash([6, 4]);
    if (starts.length * 6 < plot.height) {
      for (const start of starts) {
        draw.beginPath();
        draw.moveTo(plot.left, Math.round(y(start)) - 0.5);
        draw.lineTo(plot.left + plot.width, Math.round(y(start)) - 0.5);
        draw.stroke();
      }
    }
    draw.restore();
    // Beside the map, not across it: a line would cover the very row one looks for.
    draw.fillStyle = data.selected_colour;
    const mark = (place, low, length, points) => {
      if (place < low - 1 || place > low + length + 1) return;
      draw.beginPath();
      points.forEach(([px, py], i) => (i ? draw.lineTo(px, py) : draw.moveTo(px, py)));
      draw.closePath();
      draw.fill();
    };
    const row = y(data.selected.row + 0.5);
    mark(row, plot.top, plot.height, [[plot.left - 1, row], [plot.left - 10, row - 6], [plot.left - 10, row + 6]]);
    const column = data.selected[this.order === "rank" ? "rank" : "token"];
    if (column !== null) {
      const at = x(column + 0.5);
      const base = plot.top + plot.height;
      mark(at, plot.left, plot.width, [[at, base + 1], [at - 6, base + 10], [at + 6, base + 10]]);
    }
    if (this.crosshair) {
      const cx = plot.left + plot.width / 2;
      const cy = plot.top + plot.height / 2;
      draw.strokeStyle = text;
      draw.beginPath();
      for (const [dx, dy] of [[-12, 0], [12, 0], [0, -12], [0, 12]]) {
        draw.moveTo(cx + dx / 3, cy + dy / 3);
        draw.lineTo(cx + dx, cy + dy);
      }
      draw.stroke();
    }
  }

  paintLegend(draw, text, border) {
    const { data, shape, ends: range } = this;
    const { plot } = shape;
    const isOne = range.isLog && range.high <= range.low; // a swatch, no scale: no other value is in the pair
    const width = isOne ? 20 : Math.min(SCALE, plot.width - 20);
    const left = plot.left;
    const top = plot.top + plot.height + 55;
    for (let i = 0; i < width; i++) {
      const t = (i + 0.5) / width;
      const value = range.isLog ? range.low * (range.high / range.low) ** t : range.high * t;
      float[0] = value;
      draw.fillStyle = css(this.lut[keyOf(this.isDifference ? bits[0] : Math.max(1, Math.round(value)), this.isDifference)]);
      draw.fillRect(left + i, top, 1.2, 9);
    }
    draw.fillStyle = text;
    draw.textBaseline = "top";
    draw.textAlign = "center";
    const end = shown(range.high);
    const room = width - draw.measureText(end).width - 10;
    draw.textAlign = "left";
    for (const value of this.legendTicks()) {
      const place = this.share(value) * width;
      const label = shown(value);
      if (place + draw.measureText(label).width > room) continue;
      draw.fillRect(left + place, top + 9, 1, 3);
      draw.fillText(label, left + place, top + 13);
    }
    draw.textAlign = isOne ? "center" : "right";
    draw.fillText(end, isOne ? left + width / 2 : left + width, top + 13);
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    const unit = this.isDifference ? "logits" : `ULPs of ${data.dtype}`;
    const isUnitBeside = plot.width > width + 110;
    if (isUnitBeside) draw.fillText(unit, left + width + 12, top + 5);
    else draw.fillText(unit, left, top + 35);
    const isBeside = plot.width > BESIDE;
    const swatches = [[null, "all equal"], [data.mismatch_colour, "NaN or infinity on one side"]];
    const long = swatches.reduce((sum, [, says]) => sum + 30 + draw.measureText(says).width, 0);
    // Beneath, to the left of the plot where it is as narrow as a telephone.
    let place = isBeside ? left + width + 24 + draw.measureText(unit).width : Math.max(4, Math.min(left, shape.width - long));
    const line = isBeside ? top : top + (isUnitBeside ? 30 : 30 + LINE);
    for (const [colour, says] of swatches) {
      draw.strokeStyle = border;
      draw.fillStyle = colour || "transparent";
      draw.fillRect(place, line, 9, 9);
      draw.strokeRect(place + 0.5, line + 0.5, 9, 9);
      draw.fillStyle = text;
      draw.fillText(says, place + 15, line + 5);
      place += 30 + draw.measureText(says).width;
    }
  }

  // Values worth a label, from low to high without it.
  legendTicks() {
    const { low, high, isLog } = this.ends;
    const found = [];
    if (!isLog) {
      const raw = high / 4;
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
      for (let i = 0; i * step < high; i++) found.push(i * step);
      return found;
    }
    const steps = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const step of steps) if (step * 10 ** power >= low && step * 10 ** power < high) found.push(step * 10 ** power);
    return found;
  }

  // Pointer and keys ---------------------------------------------------------------------------------------------------------

  where(event) {
    const box = this.canvas.getBoundingClientRect();
    const { plot } = this.shape;
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    return { x, y, px: (x - plot.left) / plot.width, py: (y - plot.top) / plot.height };
  }

  wheel(event) {
    const { px, py } = this.where(event);
    const isOut = event.deltaY > 0;
    if (!event.deltaY || (isOut && this.isWhole)) return; // the page may scroll on
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 33 : event.deltaMode === 2 ? 400 : 1;
    const factor = Math.exp(clamp(event.deltaY * lines, -400, 400) * 0.0028);
    const axes = event.shiftKey || py > 1 || py < 0 ? "columns" : event.altKey || px < 0 || px > 1 ? "rows" : "both";
    this.crosshair = false;
    this.zoom(factor, clamp(px, 0, 1), clamp(py, 0, 1), axes);
    this.hideTip();
  }

  down(event) {
    if (event.button > 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.where(event));
    this.start = { ...this.where(event), view: this.view, moved: this.pointers.size > 1 };
    this.startPoints = [...this.pointers.values()];
  }

  move(event) {
    if (!this.view) return;
    const here = this.where(event);
    if (!this.pointers.has(event.pointerId)) {
      this.crosshair = false;
      if (here.px >= 0 && here.px < 1 && here.py >= 0 && here.py < 1) this.ask(here);
      else this.hideTip();
      return;
    }
    this.pointers.set(event.pointerId, here);
    const { view } = this.start;
    const { plot } = this.shape;
    if (this.pointers.size === 2) {
      const [a, b] = this.startPoints;
      const [p, q] = [...this.pointers.values()];
      const factor = Math.hypot(a.x - b.x, a.y - b.y) / Math.max(20, Math.hypot(p.x - q.x, p.y - q.y));
      const cy = view.y0 + (view.y1 - view.y0) * ((a.py + b.py) / 2);
      const cx = view.x0 + (view.x1 - view.x0) * ((a.px + b.px) / 2);
      const height = (view.y1 - view.y0) * factor;
      const width = (view.x1 - view.x0) * factor;
      const y0 = cy - height * ((p.py + q.py) / 2);
      const x0 = cx - width * ((p.px + q.px) / 2);
      this.start.moved = true;
      this.setView(y0, y0 + height, x0, x0 + width);
      return;
    }
    const dx = here.x - this.start.x;
    const dy = here.y - this.start.y;
    if (!this.start.moved && Math.hypot(dx, dy) < 4) return;
    this.start.moved = true;
    this.hideTip();
    this.canvas.style.cursor = "grabbing";
    const right = (dx / plot.width) * (view.x1 - view.x0);
    const down = (dy / plot.height) * (view.y1 - view.y0);
    this.setView(view.y0 - down, view.y1 - down, view.x0 - right, view.x1 - right);
  }

  up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    this.canvas.style.cursor = "";
    const { start } = this;
    const here = this.where(event);
    if (this.pointers.size) this.start = { ...[...this.pointers.values()][0], view: this.view, moved: true };
    else if (!start.moved && here.px >= 0 && here.px < 1 && here.py >= 0 && here.py < 1) this.pick(here);
  }

  key(event) {
    const { y0, y1, x0, x1 } = this.view;
    const step = event.shiftKey ? 0.5 : 0.1;
    const by = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (by) {
      const down = Math.sign(by[0]) * Math.max(Math.abs(by[0]) * (y1 - y0), by[0] ? 1 : 0);
      const right = Math.sign(by[1]) * Math.max(Math.abs(by[1]) * (x1 - x0), by[1] ? 1 : 0);
      this.setView(y0 + down, y1 + down, x0 + right, x1 + right);
    } else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.whole();
    else if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation(); // Streamlit has keys of its own
    this.crosshair = true;
    const { plot } = this.shape;
    const middle = { x: plot.left + plot.width / 2, y: plot.top + plot.height / 2, px: 0.5, py: 0.5 };
    if (event.key === "Enter") this.pick(middle);
    else this.ask(middle);
    this.paintSoon();
  }

  // Rows and columns under a place of the canvas, and the largest value there: of the pixel, or of a point drawn larger than its cell.
  under(here) {
    const { view, data, shape, grid } = this;
    const { W, H, ratio } = shape;
    const px = clamp(Math.floor(here.px * W), 0, W - 1);
    const py = clamp(Math.floor(here.py * H), 0, H - 1);
    const [tall, wide] = this.level.map((level) => 2 ** level);
    const near = (cell) => Math.max(cell.x0 - px, px - cell.x1 + 1, cell.y0 - py, py - cell.y1 + 1, 0);
    const points = [...(this.isSparse ? this.sparse : []), ...(this.odd.length <= SPARSE ? this.odd : [])]
      .filter((cell) => near(cell) <= (POINT / 2 + 1) * ratio).sort((a, b) => near(a) - near(b));
    const cut = (first, length, size) => [first, Math.min(first + length, size)];
    if (points.length) return { rows: cut(...points[0].rows, data.rows), columns: cut(...points[0].columns, data.columns), value: points[0].value };
    // All cells that were pooled into this pixel, by the same rounding as in poolTile.
    const both = (pixel, pixels, low, high, cell, size) => {
      const scale = pixels / (high - low);
      let first = null;
      let last = null;
      for (let k = Math.max(0, Math.floor((low + (pixel - 1) / scale) / cell)); k * cell < Math.min(size, low + (pixel + 2) / scale); k++) {
        const from = clamp(Math.round((k * cell - low) * scale), 0, pixels - 1);
        const to = clamp(Math.round(((k + 1) * cell - low) * scale), from + 1, pixels);
        if (from > pixel || to <= pixel || (k + 1) * cell <= low) continue;
        if (first === null) first = k * cell;
        last = Math.min((k + 1) * cell, size);
      }
      return first === null ? [size - 1, size] : [first, last];
    };
    return {
      rows: both(py, H, view.y0, view.y1, tall, data.rows), columns: both(px, W, view.x0, view.x1, wide, data.columns), value: grid[py * W + px],
    };
  }

  async largest(place, control) {
    const query = `rows=${place.rows.join(":")}&columns=${place.columns.join(":")}&order=${this.order}&measure=${this.measure}`;
    if (this.answers.has(query)) return this.answers.get(query);
    const answer = await fetch(`${this.data.address}/largest?${query}`, { signal: control.signal });
    if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
    const found = await answer.json();
    if (this.answers.size > 500) this.answers.clear();
    this.answers.set(query, found);
    return found;
  }

  ask(here) {
    clearTimeout(this.asking);
    this.asking = setTimeout(async () => {
      const place = this.under(here);
      const [rows, columns] = [place.rows, place.columns];
      const count = (rows[1] - rows[0]) * (columns[1] - columns[0]);
      try {
        if (count > 1 && !place.value) {
          const shift = this.order === "rank" ? 1 : 0;
          const what = this.order === "rank" ? "ranks" : "tokens";
          this.tell(here, [`${rows[1] - rows[0] === 1 ? "row" : "rows"} ${span(rows[0], rows[1] - 1)}, ${what} ${span(columns[0] + shift, columns[1] - 1 + shift)}`, `${grouped(count)} logits, all equal`]);
          return;
        }
        if (this.question) this.question.abort();
        const question = (this.question = new AbortController());
        const found = await this.largest(place, question);
        if (question.signal.aborted) return;
        this.tell(here, [
          ...(count > 1 ? [`furthest apart of ${grouped(count)} logits:`] : []), found.where, found.text, `${this.data.names[0]}: ${found.reference}`,
          `${this.data.names[1]}: ${found.variant}`, [found.apart, found.difference].filter(Boolean).join(", "), `ranks ${found.ranks}`,
        ]);
      } catch (error) {
        if (error.name !== "AbortError") this.tell(here, [error.message]);
      }
    }, ASK_AFTER);
  }

  tell(here, lines) {
    this.tip.replaceChildren();
    for (const line of lines) made("div", "", this.tip).textContent = line;
    this.tip.hidden = false;
    const width = this.tip.offsetWidth;
    const height = this.tip.offsetHeight;
    const left = here.x + 16 + width > this.shape.width ? here.x - width - 12 : here.x + 16;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${here.y + 16 + height > this.shape.height ? Math.max(0, here.y - height - 12) : here.y + 16}px`;
  }

  hideTip() {
    clearTimeout(this.asking);
    if (this.question) this.question.abort();
    this.tip.hidden = true;
  }

  async pick(here) {
    if (this.picking) this.picking.abort();
    this.picking = new AbortController();
    try {
      const found = await this.largest(this.under(here), this.picking);
      this.say({ row: found.row, token: found.token });
    } catch (error) {
      if (error.name !== "AbortError") this.tell(here, [error.message]);
    }
  }
}

function ticks(low, high, most, start) {
  const raw = Math.max(1, (high - low) / Math.max(1, most));
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(1, Math.round([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power));
  const found = [];
  for (let value = Math.ceil(low / step) * step; value < high; value += step) if (value >= start) found.push(value);
  return found;
}

function css(packed) {
  return `rgb(${packed & 255}, ${(packed >>> 8) & 255}, ${(packed >>> 16) & 255})`;
}

function abgr(colour) {
  const found = /^#([0-9a-f]{6})/i.exec(colour);
  if (found) {
    const value = parseInt(found[1], 16);
    return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >>> 16)) >>> 0;
  }
  const parts = (colour.match(/[\d.]+/g) || [128, 128, 128]).map(Number);
  return ((255 << 24) | (parts[2] << 16) | (parts[1] << 8) | parts[0]) >>> 0;
}

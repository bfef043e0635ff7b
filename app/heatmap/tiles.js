// Which tiles a view needs, fetching and keeping them, and their cells pooled by maximum into pixels.
class Tiles {
  geometry() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(this.canvas.clientWidth, 160);
    const height = this.canvas.clientHeight || 560;
    const room = Math.max(40, width - MARGIN.left - MARGIN.right);
    const bottom = MARGIN.bottom + (room > BESIDE ? 0 : LINE * (this.floor === null ? 1 : 2));
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

  pool() {
    const { W, H } = this.shape;
    if (!this.grid || this.grid.length !== W * H) {
      this.grid = new Uint32Array(W * H);
      this.known = new Uint8Array(W * H);
    } else {
      this.grid.fill(0);
      this.known.fill(0);
    }
    this.few = [];
    this.odd = [];
    this.isFew = true;
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
        if (value === MISMATCH && this.odd.length <= POINTS) this.odd.push(cell);
        if (this.isFew) {
          this.few.push(cell);
          this.isFew = this.few.length <= POINTS;
        }
      }
    }
  }

}

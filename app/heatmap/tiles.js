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
    // Single logits are read as whole rows: of too many rows, cells of 32 tokens are drawn a little wider instead.
    const least = !this.isRank && (view.y1 - view.y0) * data.columns > data.most_read ? data.group_level : 0;
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
      if (keys.has(key)) continue;
      one.abort();
      this.fetching.delete(key);
    }
    this.canvas.dataset.window = `${view.y0}:${view.y1},${view.x0}:${view.x1}`;
    this.canvas.dataset.plot = Object.values(this.shape.plot).join(",");
    this.canvas.dataset.level = `${r},${c}`;
  }

  place(r, c, row, column) {
    const { data } = this;
    const kind = `${data.address} ${data.stamp} ${this.order} ${this.measure}`;
    const [tall, wide] = [2 ** r, 2 ** c];
    const y = row * data.tile_rows * tall;
    const x = column * data.tile_columns * wide;
    return {
      key: `${kind} ${r},${c} ${row},${column}`, kind, tall, wide, x, y, isCounted: this.measure === "ulps",
      rows: Math.min(data.tile_rows, Math.ceil((data.rows - y) / tall)),
      columns: Math.min(data.tile_columns, Math.ceil((data.columns - x) / wide)),
      query: `order=${this.order}&measure=${this.measure}&level=${r},${c}&tile=${row},${column}&v=${data.stamp}`,
    };
  }

  async fetchTile(tile) {
    const control = new AbortController();
    this.fetching.set(tile.key, control);
    try {
      const answer = await answerOf(`${this.data.address}?${tile.query}`, control);
      this.keep(tile, await answer.arrayBuffer());
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

  // Tokens of what is in sight once its cells have room for a text: of every cell by rank, of the first row by token id.
  async fetchTexts() {
    const { data, isRank, order, measure } = this;
    const { rows: [top, bottom], columns } = this.window();
    const place = `rows=${top}:${isRank ? bottom : top + 1}&columns=${columns.join(":")}`;
    const address = `${data.address}/tokens?${place}&order=${order}&measure=${measure}&v=${data.stamp}`;
    if (!this.isRoomy || this.textsAt === address) return;
    this.textsAt = address;
    const answer = await fetch(address).catch(() => null);
    if (!answer?.ok || this.textsAt !== address) return; // the tiles report errors; or others are requested by now
    this.texts = { order, top, left: columns[0], tokens: await answer.json() };
    this.paintSoon();
  }

  get isRoomy() {
    const { view, shape: { plot } } = this;
    return plot.width >= TEXT.wide * (view.x1 - view.x0) && (!this.isRank || plot.height >= TEXT.tall * (view.y1 - view.y0));
  }

  // Counts of ULPs, of two bytes or four, become floats as other cells are.
  keep(tile, body) {
    const values = body.byteLength === 2 * tile.rows * tile.columns ? new Uint16Array(body) : new Uint32Array(body);
    const mismatch = 2 ** (8 * values.BYTES_PER_ELEMENT) - 1;
    tile.cells = tile.isCounted ? Uint32Array.from(values, (value) => (value === mismatch ? MISMATCH : bitsOf(value))) : values;
    this.tiles.set(tile.key, tile);
    this.arrived = (this.arrived ?? 0) + 1;
    for (const key of this.tiles.keys()) {
      if (this.tiles.size <= KEPT_TILES) break;
      if (!this.wanted.some((one) => one.key === key)) this.tiles.delete(key);
    }
  }

  // What there is in place of a tile that has not come: the finest one that covers it, else all finer parts of it.
  standIns(missing) {
    const bottom = (tile) => Math.min(tile.y + tile.rows * tile.tall, this.data.rows);
    const right = (tile) => Math.min(tile.x + tile.columns * tile.wide, this.data.columns);
    const others = [...this.tiles.values()].filter((tile) => tile.kind === missing.kind);
    const covering = others
      .filter((tile) => tile.y <= missing.y && tile.x <= missing.x && bottom(tile) >= bottom(missing) && right(tile) >= right(missing))
      .sort((a, b) => a.tall * a.wide - b.tall * b.wide);
    return covering.length ? covering.slice(0, 1) : others;
  }

  pool() {
    const { W, H } = this.shape;
    this.grid = new Uint32Array(W * H);
    this.known = new Uint8Array(W * H);
    this.few = [];
    this.odd = [];
    this.isFew = true;
    for (const wanted of this.wanted) {
      const here = this.tiles.get(wanted.key);
      for (const tile of here ? [here] : this.standIns(wanted)) this.poolTile(tile, wanted);
      if (here) {
        this.tiles.delete(here.key); // the last to go
        this.tiles.set(here.key, here);
      }
    }
  }

  // The cells of `tile` inside the rectangle of `region` into pixels, each pixel the maximum of the cells that touch it: a cell is
  // never less than a pixel, so no cell that differs is lost between two pixels.
  poolTile(tile, region) {
    const { view, grid, known } = this;
    const { W, H } = this.shape;
    const sx = W / (view.x1 - view.x0);
    const sy = H / (view.y1 - view.y0);
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
    const [Y0, Y1] = pixelsOf(top, bottom, view.y0, sy, H);
    const [X0, X1] = pixelsOf(left, right, view.x0, sx, W);
    for (let y = Y0; y < Y1; y++) known.fill(1, y * W + X0, y * W + X1);
    if (!tile.cells.length) return;
    const within = (cell, origin, size, start, scale, from, to, most) => {
      const [a, b] = pixelsOf(origin + cell * size, origin + (cell + 1) * size, start, scale, most);
      const first = clamp(a, from, to - 1);
      return [first, clamp(b, first + 1, to)];
    };
    const across = [];
    for (let c = c0; c < c1; c++) across.push(within(c, tile.x, tile.wide, view.x0, sx, X0, X1, W));
    for (let r = r0; r < r1; r++) {
      const [a, b] = within(r, tile.y, tile.tall, view.y0, sy, Y0, Y1, H);
      for (let c = c0; c < c1; c++) {
        const value = tile.cells[r * tile.columns + c];
        if (value === 0) continue;
        const [from, to] = across[c - c0];
        for (let y = a; y < b; y++)
          for (let i = y * W + from; i < y * W + to; i++) if (grid[i] < value) grid[i] = value;
        const isOdd = value === MISMATCH && this.odd.length <= POINTS;
        if (!isOdd && !this.isFew) continue;
        const cell = { value, x0: from, x1: to, y0: a, y1: b, rows: [tile.y + r * tile.tall, tile.tall], columns: [tile.x + c * tile.wide, tile.wide] };
        if (isOdd) this.odd.push(cell);
        if (this.isFew) this.isFew = this.few.push(cell) <= POINTS;
      }
    }
  }

  // Cells that are drawn larger than they are.
  get points() { return [...(this.isFew ? this.few : []), ...(this.odd.length <= POINTS ? this.odd : [])]; }
}

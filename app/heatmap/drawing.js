// The map, its margins and the picture that is saved of it.
class Drawing extends Tiles {
  paintSoon() {
    if (this.frameAsked) return;
    this.frameAsked = true;
    requestAnimationFrame(() => {
      this.frameAsked = false;
      if (this.view && this.root.isConnected) this.paint();
    });
  }

  // Colours by key, and what the scale goes from and to: of a view, from the least value in it that is not 0.
  colours(least, largest) {
    const { data, isFloat } = this;
    const whole = data.largest[this.measure];
    const isOfPair = this.range === "pair";
    const reach = isOfPair && this.floor !== null ? FLOORS * this.floor : 0;
    const high = Math.max(isOfPair ? whole : largest, reach, isFloat ? 1e-30 : 1);
    const low = Math.max(isOfPair ? 0 : least, isFloat ? high / DEPTH : 1);
    const { isLog } = this;
    const name = `${isFloat} ${low} ${high} ${isLog} ${data.palette.flat().join()}`;
    this.ends = { low: isLog ? low : 0, high, isLog };
    if (this.lutName === name) return this.lut;
    const stops = data.palette.map(([at, colour]) => [at, [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16))]);
    const lut = new Uint32Array(KEYS);
    this.tops = new Uint8Array(KEYS);
    for (let key = 0; key < KEYS; key++) {
      const t = this.share(valueOf(key, isFloat));
      this.tops[key] = t > TOP;
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
    return value === MISMATCH ? this.data.mismatch_colour : css(this.lut[keyOf(value, this.isFloat)]);
  }

  paint() {
    this.plan();
    this.pool();
    const { data, shape, grid, known, isFloat, view } = this;
    const { W, H, ratio, plot } = shape;
    const rowMax = new Uint32Array(H);
    const columnMax = new Uint32Array(W);
    let largest = 0;
    let least = MISMATCH;
    for (let y = 0; y < H; y++) {
      for (let x = 0, i = y * W; x < W; x++, i++) {
        const value = grid[i];
        if (value === 0) continue;
        if (value > rowMax[y]) rowMax[y] = value;
        if (value > columnMax[x]) columnMax[x] = value;
        if (value === MISMATCH) continue;
        if (value > largest) largest = value;
        if (value < least) least = value;
      }
    }
    if (!largest) least = 0;
    const lut = this.colours(...(isFloat ? [least, largest].map(floatOf) : [least, largest]));
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
      pixels[i] = value === 0 ? (known[i] ? 0 : unknown) : value === MISMATCH ? red : lut[keyOf(value, isFloat)];
    }
    draw.putImageData(this.image, left, top);
    // What differs alone is drawn large enough to be seen; NaN and infinity always are, on top.
    const point = POINT * ratio;
    for (const cell of [...(this.isFew ? this.few : []), ...(this.odd.length <= POINTS ? this.odd : [])]) {
      const width = Math.max(cell.x1 - cell.x0, point);
      const height = Math.max(cell.y1 - cell.y0, point);
      if (width === cell.x1 - cell.x0 && height === cell.y1 - cell.y0) continue;
      draw.fillStyle = this.colourOf(cell.value);
      const x = clamp((cell.x0 + cell.x1 - width) / 2, 0, W - width);
      const y = clamp((cell.y0 + cell.y1 - height) / 2, 0, H - height);
      draw.fillRect(Math.round(left + x), Math.round(top + y), Math.round(width), Math.round(height));
    }
    this.advise(least, largest);
    this.paintMargins(draw, rowMax, columnMax);
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paintAxes(draw, text, border, colour("--st-font", "sans-serif"));
    this.paintLegend(draw, text, border);
    this.wholeButton.disabled = this.isWhole;
    const pressed = [["order", this.order], ["measure", this.measure], ["scale", this.isLog ? "log" : "linear"], ["range", this.range]];
    for (const [name, chosen] of pressed) {
      for (const [value, button] of Object.entries(this.choices[name])) {
        button.setAttribute("aria-pressed", String(value === chosen));
        button.disabled = (name === "order" && value === "rank" && !data.is_rank_offered) || (name === "measure" && !data.offered.includes(value));
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

  // Where nearly every cell that differs has the colour of the scale's top, as ULPs have where each covers a logit near 0, the map says nothing: say so.
  advise(least, largest) {
    const { grid } = this;
    let count = 0;
    let high = 0;
    let higher = 0; // on a scale of this view alone
    const [from, to] = this.isFloat ? [least, largest].map(floatOf) : [least, largest];
    let edge = from * (to / from) ** TOP;
    if (this.isFloat) {
      float[0] = edge;
      [edge] = bits; // bits of floats above 0 are in their order
    }
    for (let i = 0; i < grid.length; i++) {
      const value = grid[i];
      if (value === 0 || value === MISMATCH) continue;
      count++;
      high += this.tops[keyOf(value, this.isFloat)];
      higher += value > edge;
    }
    const isFlat = !this.missing.length && count >= FEW && high > 0.9 * count && !(this.ends.high <= this.ends.low);
    const isDifferenceBetter = isFlat && !this.isFloat && this.data.offered.includes("difference");
    const isViewBetter = isFlat && this.range === "pair" && this.isLog && to > from && higher < 0.75 * count;
    this.hint.hidden = !isDifferenceBetter && !isViewBetter;
    const why = this.isFloat ? "." : ": somewhere in each is a logit near 0, many ULPs apart at a small difference.";
    this.hintText.textContent = `Nearly every cell is at the top of this scale${why}`;
    this.hintDifference.hidden = !isDifferenceBetter;
    this.hintView.hidden = !isViewBetter;
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
    const shows = `largest of each cell, ${this.unit}; ${this.says}`;
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
    const share = (value) => (value === MISMATCH ? 1 : this.share(this.isFloat ? floatOf(value) : value));
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

}

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

  // Colours by the upper bits of a cell. The scale reaches the largest value in sight, and one noise floor at least.
  colours(least, largest) {
    const { data, isLog } = this;
    const isCounted = this.measure === "ulps";
    const high = Math.max(largest, this.floor ?? 0, isCounted ? 1 : 1e-30);
    const low = isLog ? Math.max(least, isCounted ? 1 : high / DEPTH) : 0;
    this.ends = { low, high, isLog };
    const name = `${low} ${high} ${isLog}`;
    if (this.lutName === name) return;
    const draw = new OffscreenCanvas(256, 1).getContext("2d");
    draw.fillStyle = gradient(draw, data.palette, 0.5, 255);
    draw.fillRect(0, 0, 256, 1);
    const shades = new Uint32Array(draw.getImageData(0, 0, 256, 1).data.buffer);
    this.lut = Uint32Array.from({ length: KEYS }, (_, key) => shades[Math.round(255 * this.share(floatOf(key << 15)))]);
    this.lutName = name;
  }

  share(value) {
    const { low, high, isLog } = this.ends;
    if (!(value > 0) || (isLog && high <= low)) return 0; // of one value: one colour
    return clamp(isLog ? Math.log2(value / low) / Math.log2(high / low) : value / high, 0, 1);
  }

  colourOf(cell) { return cell === MISMATCH ? this.data.mismatch_colour : css(this.lut[keyOf(cell)]); }

  // Black or white, the readable one on the colour of a cell.
  inkOn(cell) {
    const [red, green, blue] = cell === MISMATCH ? [0, 0, 0] : [0, 8, 16].map((shift) => (this.lut[keyOf(cell)] >>> shift) & 255);
    return 0.3 * red + 0.59 * green + 0.11 * blue > 115 ? "#000000" : "#FFFFFF";
  }

  // The cells in sight as pixels of their colours.
  pixels(unknown) {
    this.pool();
    const { data, grid, known, shape: { W, H } } = this;
    let largest = 0;
    let least = MISMATCH;
    for (const value of grid) {
      if (value === 0 || value === MISMATCH) continue;
      if (value > largest) largest = value;
      if (value < least) least = value;
    }
    this.colours(largest && floatOf(least), floatOf(largest));
    const { lut } = this;
    const red = packed(data.mismatch_colour);
    const colour = (value, i) => (value === 0 ? (known[i] ? 0 : unknown) : value === MISMATCH ? red : lut[keyOf(value)]);
    const pixels = new Uint32Array(grid.length);
    for (let i = 0; i < grid.length; i++) pixels[i] = colour(grid[i], i);
    return new ImageData(new Uint8ClampedArray(pixels.buffer), W, H);
  }

  paint() {
    this.plan();
    const { data, shape, canvas } = this;
    const { W, H, ratio, plot } = shape;
    const style = getComputedStyle(this.root);
    const [text, border, back, font] = ["text-color", "border-color", "secondary-background-color", "font"].map((name) => style.getPropertyValue(`--st-${name}`).trim());
    const [map, view] = [[this.arrived, this.order, this.measure, this.scale, W, H, back].join(), this.view];
    if (this.map !== map || this.mapped !== view) Object.assign(this, { map, mapped: view, image: this.pixels(packed(back)) });
    const size = [Math.round(shape.width * ratio), Math.round(shape.height * ratio)];
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    const draw = canvas.getContext("2d");
    draw.setTransform(1, 0, 0, 1, 0, 0);
    draw.clearRect(0, 0, canvas.width, canvas.height);
    const left = Math.round(plot.left * ratio);
    const top = Math.round(plot.top * ratio);
    draw.putImageData(this.image, left, top);
    // What differs alone is drawn large enough to be seen; NaN and infinity always are, on top.
    for (const cell of this.points) {
      const width = Math.max(cell.x1 - cell.x0, POINT * ratio);
      const height = Math.max(cell.y1 - cell.y0, POINT * ratio);
      draw.fillStyle = this.colourOf(cell.value);
      const x = clamp((cell.x0 + cell.x1 - width) / 2, 0, W - width);
      const y = clamp((cell.y0 + cell.y1 - height) / 2, 0, H - height);
      draw.fillRect(Math.round(left + x), Math.round(top + y), Math.round(width), Math.round(height));
    }
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paintTexts(draw, text, font);
    this.paintAxes(draw, text, border, font);
    this.paintLegend(draw, text, border);
    if (this.crosshair) {
      draw.font = `32px ${font}`;
      draw.textAlign = "center";
      draw.fillText("+", plot.left + plot.width / 2, plot.top + plot.height / 2);
    }
    this.wholeButton.disabled = this.isWhole;
    const pressed = { order: this.order, measure: this.measure, scale: this.isLog ? "log" : "linear" };
    for (const [name, chosen] of Object.entries(pressed)) {
      for (const [value, one] of Object.entries(this.choices[name])) {
        one.setAttribute("aria-pressed", String(value === chosen));
        one.disabled = (value === "rank" && !data.is_rank_offered) || (name === "measure" && !data.offered.includes(value));
      }
    }
    const { rows, columns } = this.window();
    const trouble = this.missing.map((tile) => this.failed.get(tile.key)).find(Boolean);
    const waits = this.missing.length ? ` · ${this.wanted.length - this.missing.length} of ${this.wanted.length} tiles` : "";
    this.says = `${this.inWords(rows, columns)} of ${grouped(data.rows)} × ${grouped(data.columns)}; a cell is ${2 ** this.level[0]} × ${2 ** this.level[1]} ${data.words.elements}`;
    this.saveButton.disabled = this.missing.length > 0;
    this.status.textContent = this.says + (trouble ? ` · ${trouble}` : waits);
    canvas.dataset.state = !this.missing.length ? "drawn" : trouble && !this.fetching.size ? "failed" : "loading";
  }

  // A picture of the map as it is seen, under a heading; not before all its tiles have come.
  async save() {
    this.crosshair = false;
    this.paint();
    const { data, shape: { ratio, width, height } } = this;
    const head = 50;
    const picture = new OffscreenCanvas(Math.round(width * ratio), Math.round((height + head) * ratio));
    const draw = picture.getContext("2d");
    const style = getComputedStyle(this.root);
    draw.fillStyle = style.getPropertyValue("--st-background-color");
    draw.fillRect(0, 0, picture.width, picture.height);
    draw.drawImage(this.canvas, 0, Math.round(head * ratio));
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw.fillStyle = style.getPropertyValue("--st-text-color");
    draw.textBaseline = "top";
    [data.title, `largest of each cell, ${this.unit}; ${this.says}`].forEach((text, line) => {
      draw.font = line ? this.font : `bold ${this.font}`;
      draw.fillText(text, 8, 10 + 18 * line, width - 16);
    });
    const { rows, columns } = this.window();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await picture.convertToBlob());
    link.download = `${data.file}-${this.measure}-by-${this.order}-rows${rows[0]}-${rows[1] - 1}-columns${columns[0]}-${columns[1] - 1}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
}

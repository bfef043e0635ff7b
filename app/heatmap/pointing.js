// Wheel, pointer, keys; the text on the cell under them.
class Pointing extends Axes {
  where(event) {
    const box = this.canvas.getBoundingClientRect();
    const { plot } = this.shape;
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const [px, py] = [(x - plot.left) / plot.width, (y - plot.top) / plot.height];
    return { x, y, px, py, isInside: px >= 0 && px < 1 && py >= 0 && py < 1 };
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
    const here = this.where(event);
    this.pointers.set(event.pointerId, here);
    this.start = { ...here, view: this.view, isMoved: this.pointers.size > 1, points: [...this.pointers.values()] };
  }

  move(event) {
    if (!this.view) return;
    const here = this.where(event);
    if (!this.pointers.has(event.pointerId)) {
      this.crosshair = false;
      if (here.isInside) this.ask(here);
      else this.hideTip();
      return;
    }
    this.pointers.set(event.pointerId, here);
    const { start } = this;
    const { y0, y1, x0, x1 } = start.view;
    if (this.pointers.size === 2) {
      const [a, b] = start.points;
      const [p, q] = [...this.pointers.values()];
      const factor = Math.hypot(a.x - b.x, a.y - b.y) / Math.max(20, Math.hypot(p.x - q.x, p.y - q.y));
      const [height, width] = [(y1 - y0) * factor, (x1 - x0) * factor];
      const top = y0 + ((y1 - y0) * (a.py + b.py) - height * (p.py + q.py)) / 2; // what was between the fingers stays there
      const left = x0 + ((x1 - x0) * (a.px + b.px) - width * (p.px + q.px)) / 2;
      this.setView(top, top + height, left, left + width);
      return;
    }
    if (!start.isMoved && Math.hypot(here.x - start.x, here.y - start.y) < 4) return;
    start.isMoved = true;
    this.hideTip();
    this.canvas.style.cursor = "grabbing";
    const right = (here.px - start.px) * (x1 - x0);
    const down = (here.py - start.py) * (y1 - y0);
    this.setView(y0 - down, y1 - down, x0 - right, x1 - right);
  }

  up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    this.canvas.style.cursor = "";
    const here = this.where(event);
    if (this.pointers.size) this.start = { ...[...this.pointers.values()][0], view: this.view, isMoved: true };
    else if (!this.start.isMoved && here.isInside) this.pick(here);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { y0, y1, x0, x1 } = this.view;
    const step = (length) => Math.max(length * (event.shiftKey ? 0.5 : 0.1), 1);
    const way = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (way) {
      const [down, right] = [way[0] * step(y1 - y0), way[1] * step(x1 - x0)];
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
    const { view, data, shape: { W, H, ratio } } = this;
    const px = clamp(Math.floor(here.px * W), 0, W - 1);
    const py = clamp(Math.floor(here.py * H), 0, H - 1);
    const [tall, wide] = this.level.map((level) => 2 ** level);
    const near = (cell) => Math.max(cell.x0 - px, px - cell.x1 + 1, cell.y0 - py, py - cell.y1 + 1, 0);
    const points = this.points.filter((cell) => near(cell) <= (POINT / 2 + 1) * ratio).sort((a, b) => near(a) - near(b));
    const cut = (first, length, size) => [first, Math.min(first + length, size)];
    if (points.length) return { rows: cut(...points[0].rows, data.rows), columns: cut(...points[0].columns, data.columns), value: points[0].value };
    // All cells that were pooled into this pixel.
    const both = (pixel, pixels, low, high, cell, size) => {
      const scale = pixels / (high - low);
      const covered = [];
      for (let first = Math.max(0, Math.floor((low + (pixel - 1) / scale) / cell)) * cell; first < Math.min(size, low + (pixel + 2) / scale); first += cell) {
        const [from, to] = pixelsOf(first, first + cell, low, scale, pixels);
        if (from <= pixel && to > pixel && first + cell > low) covered.push(first);
      }
      return covered.length ? [covered[0], Math.min(covered.at(-1) + cell, size)] : [size - 1, size];
    };
    return {
      rows: both(py, H, view.y0, view.y1, tall, data.rows), columns: both(px, W, view.x0, view.x1, wide, data.columns), value: this.grid[py * W + px],
    };
  }

  async largest(place, control) {
    const query = `rows=${place.rows.join(":")}&columns=${place.columns.join(":")}&order=${this.order}&measure=${this.measure}&v=${this.data.stamp}`;
    return (await answerOf(`${this.data.address}/largest?${query}`, control)).json();
  }

  ask(here) {
    clearTimeout(this.asking);
    this.asking = setTimeout(async () => {
      const place = this.under(here);
      const [rows, columns] = [place.rows, place.columns];
      const count = (rows[1] - rows[0]) * (columns[1] - columns[0]);
      try {
        if (count > 1 && !place.value) return this.tell(here, [this.inWords(rows, columns), `${grouped(count)} ${this.data.words.elements}, all equal`]);
        this.question?.abort();
        const question = (this.question = new AbortController());
        const found = await this.largest(place, question);
        if (question.signal.aborted) return;
        const [reference, variant] = this.data.names;
        this.tell(here, [
          ...(count > 1 ? [`largest difference of ${grouped(count)} ${this.data.words.elements}:`] : []), found.where, found.text, `${reference}: ${found.reference}`,
          `${variant}: ${found.variant}`, [found.apart, found.difference].filter(Boolean).join(", "), ...(found.ranks ? [`ranks (1 = argmax) ${found.ranks}`] : []),
        ]);
      } catch (error) {
        if (error.name !== "AbortError") this.tell(here, [error.message]);
      }
    }, ASK_AFTER);
  }

  tell(here, lines) {
    this.tip.replaceChildren();
    for (const line of lines) made("div", "", this.tip, line);
    this.tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const left = here.x + 16 + width > this.shape.width ? here.x - width - 12 : here.x + 16;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${here.y + 16 + height > this.shape.height ? Math.max(0, here.y - height - 12) : here.y + 16}px`;
  }

  hideTip() {
    clearTimeout(this.asking);
    this.question?.abort();
    this.tip.hidden = true;
  }

  async pick(here) {
    this.picking?.abort();
    this.picking = new AbortController();
    try {
      const found = await this.largest(this.under(here), this.picking);
      this.say({ row: found.row, token: found.token });
    } catch (error) {
      if (error.name !== "AbortError") this.tell(here, [error.message]);
    }
  }
}

// Wheel, pointer, keys; what is told of the place under them.
class Pointing extends Axes {
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
    const points = [...(this.isFew ? this.few : []), ...(this.odd.length <= POINTS ? this.odd : [])]
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
          `${this.data.names[1]}: ${found.variant}`, [found.apart, found.difference].filter(Boolean).join(", "), `ranks (1 = argmax) ${found.ranks}`,
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

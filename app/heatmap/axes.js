// What stands around the map: axes, marks of the selection, the legend.
class Axes extends Drawing {
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
    draw.fillText(this.order === "rank" ? "rank in the reference's row (1 = argmax)" : "token id", plot.left + plot.width / 2, plot.top + plot.height + 31);
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
      draw.fillStyle = css(this.lut[keyOf(this.isFloat ? bits[0] : Math.max(1, Math.round(value)), this.isFloat)]);
      draw.fillRect(left + i, top, 1.2, 9);
    }
    draw.fillStyle = text;
    draw.textBaseline = "top";
    draw.textAlign = "center";
    const end = shown(range.high / this.scaleUnit);
    const room = width - draw.measureText(end).width - 10;
    draw.textAlign = "left";
    const start = range.isLog && !isOne ? shown(range.low / this.scaleUnit) : "";
    draw.fillText(start, left, top + 13);
    for (const value of this.legendTicks()) {
      const place = this.share(value) * width;
      const label = shown(value / this.scaleUnit);
      if (label === start || place + draw.measureText(label).width > room || place < (start ? draw.measureText(start).width + 6 : 0)) continue;
      draw.fillRect(left + place, top + 9, 1, 3);
      draw.fillText(label, left + place, top + 13);
    }
    draw.textAlign = isOne ? "center" : "right";
    draw.fillText(end, isOne ? left + width / 2 : left + width, top + 13);
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    const unit = this.floor > 0 ? "noise floors" : this.unit;
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
    if (this.floor === null) return;
    const at = left + this.share(this.floor) * width;
    draw.beginPath();
    for (const [x, y] of [[at, top + 1], [at - 5, top - 7], [at + 5, top - 7]]) draw.lineTo(x, y);
    draw.closePath();
    draw.fill();
    const beyond = this.floor > range.high ? ", beyond this scale" : "";
    const says = `▼ 1 noise floor: 99.9% of its logits are within ${Number(this.floor.toPrecision(3)).toLocaleString("en-US")} row ULPs${beyond}`;
    draw.fillText(says, Math.max(4, Math.min(left, shape.width - draw.measureText(says).width)), isBeside ? top + 37 : line + 5 + LINE);
  }

  // Values worth a label, from low to high without it.
  legendTicks() {
    const { scaleUnit: unit } = this;
    const { isLog } = this.ends;
    const [low, high] = [this.ends.low / unit, this.ends.high / unit];
    const found = [];
    if (!isLog) {
      const raw = high / 4;
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
      for (let i = 0; i * step < high; i++) found.push(i * step * unit);
      return found;
    }
    const steps = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const step of steps) if (step * 10 ** power >= low && step * 10 ** power < high) found.push(step * 10 ** power * unit);
    return found;
  }

}

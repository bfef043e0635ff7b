// Around the map: axes, marks of the selection, the legend.
const ROOM = 60; // pixels that the name of a prompt takes

class Axes extends Drawing {
  // Texts of tokens: in their cells by rank, beneath the ids by token id.
  paintTexts(draw, text, font) {
    const { texts, view, grid, isRank, data: { selected, selected_colour }, shape: { plot, W, H } } = this;
    const isShown = this.isRoomy && texts?.order === this.order;
    this.isTitled = isRank || !isShown; // else the texts are where the title was
    if (!isShown) return;
    const [wide, tall] = [plot.width / (view.x1 - view.x0), isRank ? plot.height / (view.y1 - view.y0) : 0];
    draw.save();
    draw.beginPath();
    draw.rect(plot.left, plot.top, plot.width, plot.height + (isRank ? 0 : 50));
    draw.clip();
    draw.font = `11px ${font}`;
    draw.textAlign = "center";
    draw.textBaseline = "middle";
    texts.tokens.forEach((row, y) => row.forEach(([id, token], x) => {
      const across = (texts.left + x + 0.5 - view.x0) * wide;
      const down = isRank ? (texts.top + y + 0.5 - view.y0) * tall : plot.height + 37;
      const cell = isRank && grid[clamp(Math.floor((down / plot.height) * H), 0, H - 1) * W + clamp(Math.floor((across / plot.width) * W), 0, W - 1)];
      draw.fillStyle = cell ? this.inkOn(cell) : text;
      draw.fillText(token.slice(0, Math.floor((wide - 4) / TEXT.letter)), plot.left + across, plot.top + down);
      if (!isRank || id !== selected.token) return;
      draw.strokeStyle = selected_colour;
      draw.lineWidth = 2;
      draw.strokeRect(plot.left + across - wide / 2 + 1, plot.top + down - tall / 2 + 1, wide - 2, tall - 2);
    }));
    draw.restore();
  }

  // What the axis of rows counts on its own: each prompt in view if all have room, else all rows.
  blocks() {
    const { data: { prompt_starts: starts, words }, view, shape: { plot } } = this;
    if (starts.length < 2) return [{ title: words.row, start: 0, from: view.y0, to: view.y1 }];
    const blocks = starts
      .map((start, prompt) => ({ title: `prompt ${prompt}`, start, from: Math.max(start, view.y0), to: Math.min(starts[prompt + 1] ?? Infinity, view.y1) }))
      .filter(({ from, to }) => from < to);
    const hasRoom = blocks.every(({ from, to }) => ((to - from) / (view.y1 - view.y0)) * plot.height > ROOM);
    return hasRoom ? blocks : [{ title: "row: prompts one after another", start: 0, from: view.y0, to: view.y1 }];
  }

  paintAxes(draw, text, border, font) {
    const { data, view, shape: { plot } } = this;
    const [right, bottom] = [plot.left + plot.width, plot.top + plot.height];
    draw.font = `12px ${font}`;
    this.font = draw.font;
    draw.strokeStyle = border;
    draw.lineWidth = 1;
    draw.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
    draw.fillStyle = text;
    const shift = this.isRank ? 1 : 0;
    const x = (value) => plot.left + ((value - view.x0) / (view.x1 - view.x0)) * plot.width;
    const y = (value) => plot.top + ((value - view.y0) / (view.y1 - view.y0)) * plot.height;
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    const blocks = this.blocks();
    for (const { start, from, to } of blocks) {
      for (const tick of ticks(from - start, to - start, (y(to) - y(from)) / 55)) {
        const place = y(start + tick + 0.5);
        if (place > bottom) continue;
        draw.fillText(grouped(tick), plot.left - 14, place);
        draw.fillRect(plot.left - 5, Math.round(place), 4, 1);
      }
    }
    draw.textAlign = "center";
    draw.textBaseline = "top";
    for (const tick of ticks(view.x0 + shift, view.x1 + shift, plot.width / 60)) {
      const place = x(tick - shift + 0.5);
      if (place > right) continue;
      draw.fillText(grouped(tick), place, bottom + 14);
      draw.fillRect(Math.round(place), bottom + 1, 1, 4);
    }
    if (this.isTitled) draw.fillText(this.isRank ? "rank in the reference's row (1 = argmax)" : data.words.column, plot.left + plot.width / 2, bottom + 31);
    draw.textBaseline = "middle";
    for (const { title, from, to } of blocks) {
      draw.save();
      draw.translate(11, (y(from) + y(to)) / 2);
      draw.rotate(-Math.PI / 2);
      draw.fillText(title, 0, 0);
      draw.restore();
    }
    // Borders of prompts, if there is room between them.
    const starts = data.prompt_starts.filter((start) => start > view.y0 && start < view.y1);
    draw.save();
    draw.strokeStyle = text;
    draw.globalAlpha = 0.55;
    draw.setLineDash([6, 4]);
    draw.beginPath();
    for (const start of starts.length * 6 < plot.height ? starts : []) {
      draw.moveTo(plot.left, Math.round(y(start)) - 0.5);
      draw.lineTo(right, Math.round(y(start)) - 0.5);
    }
    draw.stroke();
    draw.restore();
    // Next to the map, not across it: a line would cover the row that is looked for.
    draw.fillStyle = data.selected_colour;
    draw.font = `18px ${font}`;
    const { row, token, rank } = data.selected;
    const column = this.isRank ? rank : token;
    if (row + 0.5 >= view.y0 && row + 0.5 <= view.y1) draw.fillText("►", plot.left - 6, y(row + 0.5));
    if (column !== null && column + 0.5 >= view.x0 && column + 0.5 <= view.x1) draw.fillText("▲", x(column + 0.5), bottom + 7);
    draw.font = this.font;
  }

  paintLegend(draw, text, border) {
    if (!this.known.includes(1)) return; // no tile has come, so the scale has no ends
    const { data, shape, shape: { plot }, ends, floor } = this;
    const isOne = ends.isLog && ends.high <= ends.low; // a swatch, no scale: no other value is in the pair
    const width = isOne ? 20 : Math.min(SCALE, plot.width - 20);
    const { left } = plot;
    const top = plot.top + plot.height + 55;
    draw.fillStyle = isOne ? data.palette[0][1] : gradient(draw, data.palette, left, width);
    draw.fillRect(left, top, width, 9);
    draw.fillStyle = text;
    draw.textBaseline = "top";
    draw.textAlign = "left";
    const wide = (label) => draw.measureText(label).width;
    const end = shown(ends.high);
    const start = ends.isLog && !isOne ? shown(ends.low) : "";
    draw.fillText(start, left, top + 13);
    let free = start ? wide(start) + 6 : 0; // from where on there is room for a label
    for (const value of this.legendTicks()) {
      const place = this.share(value) * width;
      const label = shown(value);
      if (place < free || place + wide(label) > width - wide(end) - 10) continue;
      free = place + wide(label) + 6;
      draw.fillRect(left + place, top + 9, 1, 3);
      draw.fillText(label, left + place, top + 13);
    }
    draw.textAlign = isOne ? "center" : "right";
    draw.fillText(end, isOne ? left + width / 2 : left + width, top + 13);
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    const { unit } = this;
    const isUnitBeside = plot.width > width + 110;
    if (isUnitBeside) draw.fillText(unit, left + width + 12, top + 5);
    else draw.fillText(unit, left, top + 35);
    const isBeside = plot.width > BESIDE;
    const swatches = [["transparent", "all equal"], [data.mismatch_colour, "NaN or infinity on one side"]];
    const long = swatches.reduce((sum, [, says]) => sum + 30 + wide(says), 0);
    // Below, to the left of the plot if it is as narrow as a phone.
    let place = isBeside ? left + width + 24 + wide(unit) : Math.max(4, Math.min(left, shape.width - long));
    const line = isBeside ? top : top + (isUnitBeside ? 30 : 30 + LINE);
    draw.strokeStyle = border;
    for (const [colour, says] of swatches) {
      draw.fillStyle = colour;
      draw.fillRect(place, line, 9, 9);
      draw.strokeRect(place + 0.5, line + 0.5, 9, 9);
      draw.fillStyle = text;
      draw.fillText(says, place + 15, line + 5);
      place += 30 + wide(says);
    }
    if (floor === null) return;
    draw.textAlign = "center";
    draw.fillText("▼", left + this.share(floor) * width, top - 4);
    draw.textAlign = "left";
    const beyond = floor > ends.high ? ", beyond this scale" : "";
    const says = `▼ noise floor: 99.9% of ${data.words.elements} move by at most ${Number(floor.toPrecision(3)).toLocaleString("en-US")} row ULPs${beyond}`;
    draw.fillText(says, Math.max(4, Math.min(left, shape.width - wide(says))), isBeside ? top + 37 : line + 5 + LINE);
  }

  // Values worth a label, from low to high without it.
  legendTicks() {
    const [low, high] = [this.ends.low, this.ends.high];
    if (!this.ends.isLog) return [0, 1, 2, 3, 4].map((i) => i * stepOf(high / 4)).filter((value) => value < high);
    const factors = Math.log10(high / low) < 2 ? [1, 2, 5] : [1];
    const powers = Array.from({ length: 80 }, (_, i) => 10 ** (i - 40));
    return powers.flatMap((power) => factors.map((factor) => factor * power)).filter((value) => value >= low && value < high);
  }
}

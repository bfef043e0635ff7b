// A figure, drawn by plotly: what is in sight first, the rest while the browser is idle, and nothing again that did not change.
const PATIENCE = 300; // ms that a figure out of sight waits at most for an idle browser
const LINE = 17; // px, above a saved figure
const figures = new WeakMap();
const waiting = new Set();
let isAsked = false;
let library = null;

function plotly(address) {
  library ??= new Promise((done, refused) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = () => done(window.Plotly);
    script.onerror = () => {
      script.remove();
      library = null;
      refused(new Error("the code that draws figures did not arrive; reload the page"));
    };
    document.head.append(script);
  });
  return library;
}

// From the top of the window downwards, what is above it last.
const away = (figure) => {
  const { top, bottom } = figure.root.getBoundingClientRect();
  return bottom < 0 ? 1e6 - bottom : top;
};

function drawSoon(figure) {
  waiting.add(figure);
  if (isAsked) return;
  isAsked = true;
  setTimeout(drawNext);
}

async function drawNext() {
  const first = () => [...waiting].sort((a, b) => away(a) - away(b))[0];
  if (waiting.size && away(first()) > window.innerHeight) await new Promise((idle) => (window.requestIdleCallback ?? setTimeout)(idle, { timeout: PATIENCE }));
  const next = first(); // another may have come into sight
  if (!next) {
    isAsked = false;
    return;
  }
  waiting.delete(next);
  await next.draw();
  setTimeout(drawNext);
}

// Colours as plotly wants them; plotly knows no color-mix.
const channels = (colour) => {
  const found = /^#([0-9a-f]{6})/i.exec(colour);
  return found ? [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) : (colour.match(/[\d.]+/g) ?? [128, 128, 128]).slice(0, 3).map(Number);
};
const mixed = (colour, share, other) => {
  const [a, b] = [channels(colour), channels(other)];
  return `rgb(${a.map((value, i) => Math.round(value * share + b[i] * (1 - share))).join(", ")})`;
};

function themed(root, family) {
  const style = getComputedStyle(root);
  const said = (name, other) => style.getPropertyValue(name).trim() || other;
  const text = said("--st-text-color", "#0E1621");
  const back = said("--st-background-color", "#FFFFFF");
  const quiet = mixed(text, 0.72, back); // 4.5 to 1 and more on either theme
  const faint = mixed(text, 0.12, back);
  const font = { family: family ?? said("--st-font", "sans-serif"), size: 12, color: quiet };
  const axis = {
    gridcolor: faint, zerolinecolor: faint, tickcolor: faint, tickfont: font, minor: { gridcolor: faint }, automargin: true,
    title: { font: { ...font, size: 13 } },
  };
  return {
    data: { scatter: [{ marker: { line: { width: 0 } } }] },
    layout: {
      font, paper_bgcolor: back, plot_bgcolor: back,
      title: { font: { ...font, size: 15, color: text }, x: 0, xanchor: "left", pad: { l: 4 } },
      legend: { font: { ...font, color: mixed(text, 0.9, back) }, borderwidth: 0, title: { font } },
      xaxis: { ...axis, showgrid: false, zeroline: false, title: { ...axis.title, standoff: 18 } },
      yaxis: { ...axis, ticklabelposition: "outside", title: { ...axis.title, standoff: 22 } },
      margin: { pad: 7 },
      hoverlabel: { bgcolor: back, bordercolor: said("--st-border-color", "#D9DDE3"), font: { ...font, color: text } },
    },
  };
}

const WIDE = {
  width: 600, height: 600,
  path: "M60 60h170v60H120v110H60zM370 60h170v170h-60V120H370zM60 370h60v110h110v60H60zM480 370h60v170H370v-60h110z",
};

class Figure {
  constructor(root) {
    this.root = root;
    this.plot = root.querySelector(".plot");
    this.says = root.querySelector(".says");
    this.watch = new ResizeObserver(() => this.fit());
    this.watch.observe(root);
    this.watch.observe(this.plot);
    this.plot.addEventListener("toggle", () => {
      if (!this.isWide) this.plot.removeAttribute("popover"); // one that is closed is not displayed
      this.fit();
    });
  }

  close() {
    waiting.delete(this);
    this.watch.disconnect();
    this.plot.removeAttribute("popover");
    if (this.isDrawn) window.Plotly.purge(this.plot);
    this.isDrawn = false;
  }

  update(data, trigger) {
    this.data = data;
    this.trigger = trigger;
    this.template = themed(this.root);
    const wish = JSON.stringify([data.spec, data.revision, this.template]);
    if (wish === this.wish) return this.mark();
    this.wish = wish;
    this.root.dataset.state = "waiting";
    plotly(data.library).catch(() => null); // loads while the page is built; draw() reports errors
    drawSoon(this);
  }

  mark() {
    if (this.isDrawn && this.marks !== this.data.shapes) window.Plotly.relayout(this.plot, { shapes: JSON.parse(this.data.shapes) });
    this.marks = this.data.shapes;
  }

  get isWide() { return this.plot.matches(":popover-open"); }
  get size() { return this.isWide ? [window.innerWidth - 32, window.innerHeight - 32] : [this.root.clientWidth, this.data.height]; }

  async draw() {
    const { data, wish } = this;
    try {
      const library = await plotly(data.library);
      if (!this.root.isConnected) return;
      const spec = data.spec[0] === "{" ? data.spec : await (await fetch(data.spec)).text();
      const isDark = channels(this.template.layout.paper_bgcolor)[0] < 128; // on which blue and red are too dim
      const { data: traces, layout } = JSON.parse(isDark ? spec.replaceAll('"#0072B2"', '"#3D8FE0"').replaceAll('"#E3000F"', '"#FF5A5F"') : spec);
      const [width, height] = this.size;
      const ours = {
        template: this.template, width, height, clickmode: data.is_picked ? "event" : "none",
        uirevision: data.revision, shapes: JSON.parse(data.shapes),
      };
      await library.react(this.plot, traces, { ...layout, ...ours }, this.config(library));
      if (!this.isDrawn) this.listen();
      this.isDrawn = true;
      this.marks = data.shapes;
      this.mark(); // another may have come meanwhile
      this.says.textContent = "";
      if (this.wish === wish) this.root.dataset.state = "drawn";
      this.fit();
    } catch (error) {
      this.wish = null; // it is tried again when it is sent again
      this.says.textContent = `No figure: ${error.message}.`;
      this.root.dataset.state = "failed";
    }
  }

  // One object for as long as it says the same: plotly begins anew with another, and a zoom would be lost.
  config(library) {
    const camera = { icon: library.Icons.camera };
    const svg = { ...camera, name: "svg", title: "Save as SVG", click: () => this.save("svg") };
    const png = { ...camera, name: "png", title: "Save as PNG", click: () => this.save("png") };
    const wide = { name: "wide", title: "Whole window", icon: WIDE, click: () => this.widen() };
    const zooms = [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]];
    // without a pointer that hovers, plotly would always show the buttons, over the legend
    const displayModeBar = matchMedia("(hover: none)").matches ? false : "hover";
    const modeBarButtons = [[svg, png], ...zooms, [wide]];
    return (this.configured ??= { displaylogo: false, scrollZoom: false, displayModeBar, modeBarButtons });
  }

  listen() {
    this.plot.on("plotly_click", (event) => {
      const point = event.points.find((one) => one.customdata !== undefined && one.customdata !== null);
      if (point && this.data.is_picked) this.trigger("picked", Array.from(point.customdata));
    });
  }

  fit() {
    if (!this.isDrawn || this.isFitting) return;
    const [width, height] = this.size;
    const now = this.plot.layout;
    if (!width || (now.width === width && now.height === height)) return;
    this.isFitting = true;
    requestAnimationFrame(async () => {
      if (this.isDrawn) await window.Plotly.relayout(this.plot, { width, height });
      this.isFitting = false;
      this.fit();
    });
  }

  // The figure over the whole window, in the browser's top layer; Escape or the button brings it back.
  widen() {
    this.plot.setAttribute("popover", "auto");
    this.plot.togglePopover();
  }

  // A picture is used outside of the page: its subject is above it, and its font is one that every program has, for it
  // is drawn without the page's own.
  save(format) {
    const { filename, of: lines } = this.data.picture;
    const scale = format === "svg" ? 1 : 2; // twice as sharp as the screen
    const [width, height] = this.size;
    const above = 8 + 5 * (lines.length - 1); // plotly sets the lines around the place of the first
    const head = lines.length * LINE + above;
    const { layout, _fullLayout: drawn, data } = this.plot;
    const title = { text: lines.join("<br>"), font: { size: 12 }, x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { l: 8, t: above } };
    const margin = { ...layout.margin, t: drawn._size.t + head }; // with what the legend had pushed away
    const picture = { data, layout: { ...layout, template: themed(this.root, "sans-serif"), title, margin, width, height: height + head } };
    window.Plotly.downloadImage(picture, { format, filename, scale, width, height: height + head });
  }
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".ulpscope-figure");
  if (!figures.has(root)) figures.set(root, new Figure(root));
  const figure = figures.get(root);
  root.style.height = `${data.height}px`;
  figure.update(data, setTriggerValue);
  return () => {
    figure.close();
    figures.delete(root);
  };
}

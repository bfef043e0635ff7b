// Values of cells as colours and as text, and what all parts of the map share. A cell holds the bits of a float32.
const MISMATCH = 0xffffffff;
const KEPT_TILES = 192; // here in the browser, of 256 KB
const POINTS = 400; // as many differing cells are drawn as points of at least POINT pixels
const POINT = 5;
const FETCH_AFTER = 40; // ms of rest: a turn of the wheel passes through levels that are not looked at
const SAY_AFTER = 400; // ms of rest until the address bar learns of the window: each is a step of the browser's history
const ASK_AFTER = 70;
const ARRIVALS_AFTER = 120; // tiles that come meanwhile are drawn together: drawing takes the time that the rest needs
const MARGIN = { left: 66, top: 8, right: 14, bottom: 100 };
const SCALE = 280; // of the legend, px at most
const BESIDE = SCALE + 330; // from this plot width on, the legend is next to the scale, else below
const LINE = 18; // px
const DEPTH = 256; // below the largest difference: how far a logarithmic scale of differences reaches; less is drawn like that
const TEXT = { wide: 36, tall: 13, letter: 6.5 }; // px: the smallest cell that has its token's text, and what a letter takes
const SPAN = { rows: 4, columns: 8 }; // the smallest window

function made(kind, className, parent, text = "") {
  const element = document.createElement(kind);
  element.className = className;
  element.textContent = text;
  parent.appendChild(element);
  return element;
}

function button(parent, text, act, name = text) {
  const element = made("button", "", parent, text);
  element.type = "button";
  element.setAttribute("aria-label", name);
  element.onclick = act;
  return element;
}

// What the server answers, or its sentence as an error.
async function answerOf(address, control) {
  const answer = await fetch(address, { signal: control.signal });
  if (answer.ok) return answer;
  throw new Error((await answer.json()).error);
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const grouped = (value) => Math.round(value).toLocaleString("en-US");
const span = (first, last) => (first === last ? grouped(first) : `${grouped(first)}–${grouped(last)}`);

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);
function floatOf(pattern) {
  bits[0] = pattern;
  return float[0];
}
function bitsOf(value) {
  float[0] = value;
  return bits[0]; // of floats above 0 in their order
}
const KEYS = 2 ** 16; // of colours: the upper bits of a cell
const keyOf = (value) => value >>> 15;

function shown(value) {
  if (value >= 1e5 || (value > 0 && value < 1e-3)) return value.toExponential(1).replace(".0", "").replace("+", "");
  return value >= 10 ? grouped(value) : String(Number(value.toPrecision(2)));
}

// 1, 2 or 5 times a power of ten.
function stepOf(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999) * power;
}

function ticks(low, high, most) {
  const step = stepOf(Math.max(1, (high - low) / Math.max(1, most)));
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.ceil(high / step) - first) }, (_, i) => (first + i) * step);
}

// Pixels from `low` to `high`, one at least, of a view that begins at `origin`.
function pixelsOf(low, high, origin, scale, most) {
  const first = clamp(Math.round((low - origin) * scale), 0, most - 1);
  return [first, clamp(Math.round((high - origin) * scale), first + 1, most)];
}

const css = (packed) => `rgb(${packed & 255}, ${(packed >>> 8) & 255}, ${(packed >>> 16) & 255})`;

function packed(colour) {
  const value = parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >>> 16)) >>> 0;
}

function gradient(draw, palette, left, width) {
  const colours = draw.createLinearGradient(left, 0, left + width, 0);
  for (const [place, colour] of palette) colours.addColorStop(place, colour);
  return colours;
}

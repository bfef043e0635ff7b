// Values of cells as colours and as text, and what all parts of the map share.
const MISMATCH = 0xffffffff;
const KEPT_BYTES = 48 * 2 ** 20; // of tiles, here in the browser
const POINTS = 400; // as many differing cells are drawn as points of at least POINT pixels
const POINT = 5;
const FETCH_AFTER = 40; // ms of rest: a turn of the wheel passes through levels nobody looks at
const SAY_AFTER = 400; // ms of rest until the address bar learns of the window: each is a step of the browser's history
const ASK_AFTER = 70;
const ARRIVALS_AFTER = 120; // tiles that come meanwhile are drawn together: drawing takes the time that the rest needs
const MARGIN = { left: 66, top: 34, right: 40, bottom: 100 };
const SCALE = 280; // of the legend, px at most
const BESIDE = SCALE + 330; // from this width of the plot on, what colours mean stands beside the scale, else beneath it
const LINE = 18; // px
const DEPTH = 256; // below the largest difference: how far a logarithmic scale of differences reaches; less is drawn like that
const TOP = 0.75; // of a scale
const FLOORS = 4; // the least that a scale in noise floors reaches: a clean pair stays at its lower end
const FEW = 2000; // pixels: a map of fewer that differ speaks for itself
const SPAN = { rows: 4, columns: 8 }; // the smallest window


function made(kind, className, parent) {
  const element = document.createElement(kind);
  element.className = className;
  parent.appendChild(element);
  return element;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const grouped = (value) => Math.round(value).toLocaleString("en-US");
const span = (first, last) => (first === last ? grouped(first) : `${grouped(first)}–${grouped(last)}`);

// A cell's value as the index of its colour: exact below 32768, eleven bits of it beyond; of float32 bits the upper 17.
function keyOf(value, isFloat) {
  if (isFloat) return value >>> 15;
  if (value < 32768) return value;
  const power = 31 - Math.clz32(value);
  return 32768 + (power - 15) * 2048 + ((value >>> (power - 11)) & 2047);
}

function valueOf(key, isFloat) {
  if (isFloat) return floatOf(key << 15);
  if (key < 32768) return key;
  const power = 15 + Math.floor((key - 32768) / 2048);
  return (2048 + ((key - 32768) % 2048)) * 2 ** (power - 11);
}
const KEYS = 32768 + 17 * 2048;

const bits = new Uint32Array(1);
const float = new Float32Array(bits.buffer);
function floatOf(pattern) {
  bits[0] = pattern;
  return float[0];
}

function shown(value) {
  if (value >= 1e5 || (value > 0 && value < 1e-3)) return value.toExponential(1).replace(".0", "").replace("+", "");
  return value >= 1 ? grouped(value) : String(Number(value.toPrecision(2)));
}


function ticks(low, high, most, start) {
  const raw = Math.max(1, (high - low) / Math.max(1, most));
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(1, Math.round([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power));
  const found = [];
  for (let value = Math.ceil(low / step) * step; value < high; value += step) if (value >= start) found.push(value);
  return found;
}

function css(packed) {
  return `rgb(${packed & 255}, ${(packed >>> 8) & 255}, ${(packed >>> 16) & 255})`;
}

function abgr(colour) {
  const found = /^#([0-9a-f]{6})/i.exec(colour);
  if (found) {
    const value = parseInt(found[1], 16);
    return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >>> 16)) >>> 0;
  }
  const parts = (colour.match(/[\d.]+/g) || [128, 128, 128]).map(Number);
  return ((255 << 24) | (parts[2] << 16) | (parts[1] << 8) | parts[0]) >>> 0;
}

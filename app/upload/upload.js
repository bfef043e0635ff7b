// Sends files to PUT /api/uploads/ID in parts, and on at the offset the server has after any break.
// The rows live in `window`: an upload continues while other pages are open. Names are set as text only.
const LEAST_PART = 256 * 2 ** 10; // bytes
const WAITS = [1, 2, 4, 8, 15]; // seconds between attempts
const KEY = "ulpscope.uploads"; // localStorage: "name size mtime" -> {id, name, size}
const shared = (window.ulpscopeUploads ??= { rows: [], draw: null, part: 8 * 2 ** 20, queue: Promise.resolve() });

export default function ({ parentElement, data, setStateValue }) {
  const [zone, field, list, status] = [".zone", "input", "ul", ".status"].map((name) => parentElement.querySelector(name));
  let chosen = null;
  shared.address = data.address;
  shared.draw = (text) => {
    if (text) status.textContent = text;
    const ids = shared.rows.filter((row) => row.state === "arrived").map((row) => row.id);
    if (ids.join() !== chosen) setStateValue("arrived", ids);
    chosen = ids.join();
    list.hidden = !shared.rows.length;
    const elements = shared.rows.map((row) => (row.element ??= rowElement(row)));
    if (elements.length !== list.children.length || elements.some((each, at) => each !== list.children[at])) list.replaceChildren(...elements);
    shared.rows.forEach(drawRow);
  };
  const add = (files) => {
    for (const file of files) addFile(file);
    shared.draw();
  };
  const over = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // or the browser opens the file in place of the page
    zone.classList.toggle("over", event.type === "dragover");
    if (event.type === "drop") add(event.dataTransfer.files);
  };
  parentElement.querySelector(".choose").onclick = () => field.click();
  field.onchange = () => {
    add(field.files);
    field.value = ""; // the same file may be chosen again
  };
  const events = ["dragover", "drop"];
  for (const name of events) document.addEventListener(name, over);
  if (shared.serial !== data.serial || list.children.length !== shared.rows.length) refresh(); // or back from another page
  shared.serial = data.serial;
  return () => {
    shared.draw = null;
    for (const name of events) document.removeEventListener(name, over);
  };
}

const stored = () => JSON.parse(localStorage.getItem(KEY) || "{}");
const keyOf = (file) => `${file.name} ${file.size} ${file.lastModified}`;
const draw = (text) => shared.draw?.(text);
const size = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} KB`);

function keep(row, isKept = true) {
  const all = stored();
  if (isKept) all[row.key] = { id: row.id, name: row.name, size: row.size };
  else delete all[row.key];
  localStorage.setItem(KEY, JSON.stringify(all));
}

function addFile(file) {
  const key = keyOf(file);
  let row = shared.rows.find((each) => each.key === key);
  if (row && row.state !== "unfinished" && row.state !== "failed") return;
  if (!row) {
    const random = crypto.getRandomValues(new Uint32Array(4));
    row = { key, id: [...random].map((word) => word.toString(16)).join(""), name: file.name, size: file.size, received: 0, isNew: true };
    shared.rows.push(row);
    keep(row);
  }
  Object.assign(row, { file, state: "waiting", message: "" });
  shared.queue = shared.queue.then(() => row.state === "waiting" && send(row));
}

async function call(row, method, options = {}, query = "") {
  const response = await fetch(`${shared.address}/${row.id}${query}`, { method, signal: row.abort?.signal, ...options });
  const answer = await response.json().catch(() => ({}));
  return [response.status, answer];
}

// The offset is requested after every break.
async function send(row) {
  Object.assign(row, { state: "sending", abort: new AbortController(), began: null });
  for (let attempt = row.isNew ? 0 : 1; row.state === "sending"; ) {
    try {
      if (attempt) {
        const [status, answer] = await call(row, "GET");
        if (status !== 200 && status !== 404) throw new Error(answer.error || `the server answers with ${status}`);
        row.received = answer.received ?? 0;
      }
      row.isNew = false;
      row.began ??= { at: performance.now(), received: row.received };
      while (row.received < row.size) {
        const end = Math.min(row.size, row.received + shared.part);
        const [status, answer] = await call(
          row, "PUT", { headers: { "Content-Range": `bytes ${row.received}-${end - 1}/${row.size}` }, body: row.file.slice(row.received, end) },
          `?keep=1&file=${encodeURIComponent(row.name)}`,
        );
        if (status === 413 && !answer.error && shared.part > LEAST_PART) shared.part /= 2; // of a proxy that takes small bodies
        else if ([400, 413, 507].includes(status)) return fail(row, answer.error || `the server answers with ${status}`);
        else if (status !== 200) throw new Error(answer.error || `the server answers with ${status}`);
        else row.received = answer.received;
        row.message = "";
        attempt = 0;
        draw();
      }
      row.state = row.size ? "arrived" : "failed";
      row.message = row.size ? "" : "the file is empty";
      draw(`${row.name} has arrived`);
    } catch (error) {
      if (row.state !== "sending") return; // cancelled
      const isReadable = await row.file.slice(0, 1).arrayBuffer().then(() => true, () => false);
      if (!isReadable) return fail(row, "the file cannot be read: it changed, or is a folder; choose it again");
      const wait = WAITS[Math.min(attempt++, WAITS.length - 1)];
      row.message = `${error instanceof TypeError ? "the server cannot be reached" : error.message}; next attempt in ${wait} s`;
      draw();
      await new Promise((done) => setTimeout(done, wait * 1000));
    }
  }
}

function fail(row, message) {
  Object.assign(row, { state: "failed", message });
  draw(`${row.name}: ${message}`);
}

function remove(row) {
  row.state = "removed";
  row.abort?.abort();
  delete row.abort;
  shared.rows = shared.rows.filter((each) => each !== row);
  keep(row, false);
  draw(`${row.name} is removed`);
  call(row, "DELETE", { keepalive: true }).catch(() => {}); // purged after a day
}

// What the server has of the files that this browser sent before: after a reload, and after an import began or ended.
async function refresh() {
  for (const [key, entry] of Object.entries(stored())) {
    const known = shared.rows.find((row) => row.key === key);
    if (known?.state === "sending" || known?.state === "waiting") continue;
    const row = known ?? { key, ...entry };
    const [status, answer] = await call(row, "GET").catch(() => [0, {}]);
    if (status === 404 || answer.state === "done") {
      if (known?.state === "failed") continue;
      keep(row, false);
      shared.rows = shared.rows.filter((each) => each !== known);
    } else if (status === 200) {
      const state = { receiving: "unfinished", importing: "importing" }[answer.state] ?? "arrived";
      Object.assign(row, { received: answer.received, state });
      if (!known) shared.rows.push(row);
    }
  }
  draw();
  clearTimeout(shared.timer);
  if (shared.rows.some((row) => row.state === "importing")) shared.timer = setTimeout(refresh, 2000);
}

function rowElement(row) {
  const element = document.createElement("li");
  element.innerHTML = '<div class="top"><b></b><button type="button"></button></div><progress max="1"></progress><div class="line"></div>';
  element.querySelector("b").textContent = row.name;
  element.querySelector("progress").setAttribute("aria-label", `Upload of ${row.name}`);
  element.querySelector("button").onclick = () => remove(row);
  return element;
}

function drawRow(row) {
  const [bar, button, text] = ["progress", "button", ".line"].map((name) => row.element.querySelector(name));
  const label = ["waiting", "sending"].includes(row.state) ? "Cancel" : "Remove";
  button.textContent = label;
  button.setAttribute("aria-label", `${label} ${row.name}`);
  button.hidden = row.state === "importing";
  bar.value = row.size ? row.received / row.size : 0;
  bar.hidden = !["waiting", "sending", "unfinished"].includes(row.state);
  const share = `${size(row.received)} of ${size(row.size)}`;
  const seconds = row.began ? (performance.now() - row.began.at) / 1000 : 0;
  const rate = seconds > 0.5 ? (row.received - row.began.received) / seconds : 0;
  const pace = rate > 0 ? `, ${size(rate)}/s, about ${Math.ceil((row.size - row.received) / rate)} s left` : "";
  text.textContent = {
    waiting: `${size(row.size)}, waiting`,
    sending: `${share}${row.message ? `; ${row.message}` : pace}`,
    unfinished: `${share}, unfinished: choose or drop the same file again, and it continues`,
    arrived: `${size(row.size)}, arrived`,
    importing: `${size(row.size)}, being saved`,
    failed: `${share}; ${row.message}`,
  }[row.state];
}

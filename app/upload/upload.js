// Files go to the server in pieces (tus-js-client), and on where they were after any break: a pause, a lost network, a closed tab, a restarted server.
// How long to wait, how large a piece, when to begin anew or give up, and what to say meanwhile is decided here.
// What is under way lives in `window`, not in the page: it goes on while other pages of the dashboard are looked at. Names are set as text only.

const PIECE = { first: 32 * 2 ** 20, least: 256 * 2 ** 10 }; // bytes a request; halved where something between refuses so many
const AT_ONCE = 2;
const WAITS = [1, 2, 4, 8, 15, 30]; // seconds between attempts
const RATE_OVER = 8000; // ms
const DRAW_AFTER = 200;
const LOOK_AGAIN = 4000; // at uploads that another tab sends or that are being saved
const ENGINE = "ulpscopeUploads";
const DROPPED = "ulpscopeDropped"; // files that were dropped on another page
const BROWSER_KEY = "ulpscope.browser";
const CHOSEN_KEY = "ulpscope.chosen";
const panels = new WeakMap();

export default function (component) {
  const { parentElement, data, setStateValue } = component;
  let panel = panels.get(parentElement);
  if (!panel || !panel.root.isConnected) {
    panel?.close();
    panel = new Panel(parentElement.querySelector(".root"));
    panels.set(parentElement, panel);
  }
  panel.update(data, setStateValue);
  return () => {
    panel.close();
    panels.delete(parentElement);
  };
}

const size = (bytes) => {
  for (const [unit, worth] of [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) if (bytes >= worth) return `${(bytes / worth).toFixed(1)} ${unit}`;
  return `${Math.round(bytes)} B`;
};

function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// Storage may be refused, as in some private windows: then an upload is found again by its name and size alone.
function stored(storage, key) {
  try {
    return window[storage].getItem(key);
  } catch {
    return null;
  }
}

function store(storage, key, value) {
  try {
    window[storage].setItem(key, value);
  } catch {
    /* it is only a convenience */
  }
}

function browserId() {
  let id = stored("localStorage", BROWSER_KEY);
  if (!id) {
    id = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    store("localStorage", BROWSER_KEY, id);
  }
  return id;
}

let library = null;

function tusClient(address) {
  library ??= new Promise((done, refused) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = () => done(window.tus);
    script.onerror = () => {
      script.remove();
      library = null;
      refused(new Error("the server cannot be reached"));
    };
    document.head.append(script);
  });
  return library;
}

function sentenceOf(answer) {
  if (!answer) return "the server cannot be reached";
  if (answer.getStatus() === 401) return "you are not signed in any more; sign in in another tab, then retry";
  try {
    return String(JSON.parse(answer.getBody()).error || "");
  } catch {
    return "";
  }
}

class Engine {
  constructor() {
    this.rows = [];
    this.watchers = new Set();
    this.address = "";
    this.piece = PIECE.first;
    this.browser = browserId();
    this.chosenBefore = new Set(JSON.parse(stored("sessionStorage", CHOSEN_KEY) || "[]"));
    this.serial = 0;
    window.addEventListener("online", () => this.rows.filter((row) => row.state === "retrying").forEach((row) => this.resume(row)));
    window.addEventListener("beforeunload", (event) => {
      if (this.rows.some((row) => ["sending", "waiting", "retrying"].includes(row.state))) event.preventDefault();
    });
  }

  changed(said = "") {
    store("sessionStorage", CHOSEN_KEY, JSON.stringify(this.chosen()));
    for (const watcher of this.watchers) watcher(said);
  }

  chosen() {
    return this.rows.filter((row) => row.state === "complete" && row.isChosen).map((row) => row.id);
  }

  add(files) {
    for (const file of files) {
      const modified = String(file.lastModified || "");
      const isSame = (row) => row.name === file.name && row.size === file.size && (row.modified === modified || !row.modified);
      const known = this.rows.find((row) => isSame(row) && row.state !== "busy");
      if (!known) {
        this.rows.push(this.row({ file, name: file.name, size: file.size, modified, isMine: true }));
        continue;
      }
      if (known.state === "complete") known.isChosen = true;
      else if (!known.file || known.state === "failed") {
        Object.assign(known, { file, isMine: true, state: "waiting", message: "" });
      }
    }
    this.changed();
    this.pump();
  }

  row(values) {
    return {
      key: ++this.serial, id: "", file: null, sent: 0, live: 0, state: "waiting", message: "", isChosen: false, isMine: false, attempts: 0,
      retryAt: 0, timer: null, upload: null, samples: [], ...values,
    };
  }

  pump() {
    while (this.rows.filter((row) => row.state === "sending").length < AT_ONCE) {
      const next = this.rows.find((row) => row.state === "waiting");
      if (!next) return;
      next.state = "sending";
      next.message = "";
      this.send(next);
    }
  }

  async send(row) {
    Object.assign(row, { samples: [], upload: null });
    try {
      await new Promise((done, refused) => this.begin(row, done, refused));
      if (row.state !== "sending") return;
      Object.assign(row, { state: "complete", isChosen: true, arrived: performance.now(), message: "" });
      this.changed(`${row.name} has arrived`);
    } catch (error) {
      await this.failed(row, error);
    }
    this.pump();
  }

  async begin(row, done, refused) {
    const { Upload } = await tusClient(this.library).catch(refused) ?? {};
    if (row.state !== "sending" || row.upload || !Upload) return; // paused, and perhaps resumed, while the library was on its way
    const upload = (row.upload = new Upload(row.file, {
      ...(row.id ? { uploadUrl: this.of(row) } : { endpoint: this.address }), // with both, any refusal of what is there would begin it anew
      metadata: { filename: row.name, modified: row.modified, browser: this.browser },
      chunkSize: this.piece,
      retryDelays: null,
      storeFingerprintForResuming: false, // the server lists what it has
      onUploadUrlAvailable: () => {
        row.id = upload.url.split("/").pop();
        if (row.state === "removed") this.forget(row); // taken back while it was being announced
      },
      onProgress: (live) => {
        if (!row.samples.length) row.sent = live; // before a byte of it has gone out: where the server is
        this.moved(row, live);
      },
      onChunkComplete: (_, sent) => Object.assign(row, { sent, attempts: 0 }),
      onSuccess: done,
      onError: refused,
    }));
    upload.start();
  }

  of(row) {
    return `${this.address}/${row.id}`;
  }

  moved(row, live) {
    row.live = live;
    const now = performance.now();
    row.samples.push([now, live]);
    while (row.samples.length > 2 && now - row.samples[0][0] > RATE_OVER) row.samples.shift();
    this.changed();
  }

  async failed(row, error) {
    if (row.state !== "sending") return;
    if (library && !error.originalRequest) return this.give_up(row, String(error.message || error)); // a fault of the code
    const answer = error.originalResponse;
    const [status, message, wait] = [answer?.getStatus() ?? 0, sentenceOf(answer), Number(answer?.getHeader("Retry-After")) || 0];
    const isReadable = await row.file.slice(0, 1).arrayBuffer().then(() => true, () => false);
    if (row.state !== "sending") return;
    if (!isReadable) return this.give_up(row, "the file cannot be read (any more); it may have changed, or be a folder. Choose it again");
    if (status === 413 && row.id && this.piece > PIECE.least) {
      this.piece = Math.max(PIECE.least, this.piece / 2); // not our server's answer, but of something before it that takes small bodies only
      return this.again(row, status, message, 0.2);
    }
    if ((status === 404 || status === 410) && row.id && row.attempts < WAITS.length) {
      Object.assign(row, { id: "", sent: 0, live: 0 }); // expired, or removed from elsewhere
      return this.again(row, status, message, 0.2);
    }
    if (status === 409) return this.again(row, status, message, 0.3);
    if (status === 0 || status === 408 || status === 423 || (status >= 500 && status !== 507)) return this.again(row, status, message, wait);
    this.give_up(row, message || `the server answers with ${status}`);
  }

  again(row, status, message, least) {
    const wait = Math.max(least, least && least < 1 && row.attempts < 20 ? least : WAITS[Math.min(row.attempts, WAITS.length - 1)] * (0.8 + 0.4 * Math.random()));
    row.attempts += 1;
    Object.assign(row, { state: "retrying", message: message || `the server answers with ${status}`, live: row.sent });
    row.retryAt = performance.now() + wait * 1000;
    row.timer = setTimeout(() => this.resume(row), wait * 1000);
    this.changed();
  }

  give_up(row, sentence) {
    Object.assign(row, { state: "failed", message: sentence, live: row.sent });
    this.changed(`${row.name} was not uploaded: ${sentence}`);
  }

  pause(row) {
    clearTimeout(row.timer);
    row.state = "paused";
    row.upload?.abort();
    this.changed();
    this.pump();
  }

  resume(row) {
    clearTimeout(row.timer);
    if (!this.rows.includes(row) || !["paused", "retrying", "failed"].includes(row.state)) return;
    row.state = "waiting";
    this.pump();
    this.changed();
  }

  async remove(row) {
    clearTimeout(row.timer);
    row.state = "removed";
    row.upload?.abort();
    this.rows = this.rows.filter((each) => each !== row);
    this.changed(`${row.name} is removed`);
    this.pump();
    if (row.id) await this.forget(row);
  }

  async forget(row) {
    try {
      const answer = await fetch(this.of(row), { method: "DELETE", headers: { "Tus-Resumable": "1.0.0" }, keepalive: true }); // also if the tab is closed at once
      if (!answer.ok && answer.status !== 404) setTimeout(() => this.refresh(), 500); // it is still there: show it again
    } catch {
      /* the server is away; it is listed when it is back */
    }
  }

  // What the server has: uploads from before a reload, of a closed tab, of other browsers of the same person.
  async refresh() {
    const began = performance.now();
    let listed;
    try {
      const answer = await fetch(this.address, { headers: { Accept: "application/json" } });
      if (!answer.ok) return;
      listed = (await answer.json()).uploads;
    } catch {
      return;
    }
    const there = new Map(listed.map((each) => [each.id, each]));
    this.rows = this.rows.filter((row) => this.isKept(row, there.get(row.id), began));
    for (const each of listed) if (each.state !== "saving") this.adopt(each);
    this.chosenBefore.clear();
    this.changed();
    clearTimeout(this.looking);
    if (listed.some((each) => each.state === "saving" || this.rows.some((row) => row.id === each.id && row.state === "busy"))) {
      this.looking = setTimeout(() => this.refresh(), LOOK_AGAIN);
    }
  }

  isKept(row, listed, began) {
    if (listed) return listed.state !== "saving";
    if (row.file && row.state !== "complete") return true; // the server may not know of it yet
    return row.arrived > began;
  }

  adopt(listed) {
    const known = this.rows.find((row) => row.id === listed.id);
    if (known?.file && known.state !== "complete") return;
    const state = { complete: "complete", receiving: "busy", unfinished: "unfinished" }[listed.state];
    if (known) {
      if (known.state !== "complete") Object.assign(known, { state, sent: listed.bytes_done, live: listed.bytes_done });
      return;
    }
    const isMine = listed.browser === this.browser;
    this.rows.push(this.row({
      id: listed.id, name: listed.name, size: listed.bytes_total, modified: listed.modified, sent: listed.bytes_done, live: listed.bytes_done,
      state, isMine, isChosen: state === "complete" && isMine && this.chosenBefore.has(listed.id), expires: listed.expires,
    }));
  }
}

const WORDS = {
  waiting: "waiting", paused: "paused", complete: "arrived",
  unfinished: "unfinished: choose the same file again and it goes on, or remove it",
  busy: "another tab or browser is sending it",
};

function line(row) {
  const whole = size(row.size);
  if (row.state === "complete") return row.isChosen ? `${whole}, arrived` : `${whole}, arrived and not saved yet`;
  const share = `${size(row.live)} of ${whole}`;
  if (row.state === "sending") {
    const [first, last] = [row.samples[0], row.samples[row.samples.length - 1]];
    if (!first || last[0] - first[0] < 300) return share;
    const rate = ((last[1] - first[1]) / (last[0] - first[0])) * 1000;
    return rate > 0 ? `${share}, ${size(rate)}/s, about ${duration((row.size - row.live) / rate)} left` : share;
  }
  if (row.state === "retrying") return `${share}; ${row.message}; next attempt in ${duration((row.retryAt - performance.now()) / 1000)}`;
  if (row.state === "failed") return `${share}; ${row.message}`;
  const elsewhere = row.state === "unfinished" && !row.isMine ? ", begun in another browser" : "";
  return `${share}, ${WORDS[row.state]}${elsewhere}`;
}

function made(kind, className, parent, text = "") {
  const element = document.createElement(kind);
  if (className) element.className = className;
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

class Panel {
  constructor(root) {
    this.root = root;
    [this.zone, this.field, this.list, this.says] = [".zone", "input[type=file]", "ul", ".says"].map((what) => root.querySelector(what));
    this.drawn = new Map();
    this.told = null;
    this.engine = window[ENGINE] ??= new Engine();
    this.watcher = (said) => this.changed(said);
    this.engine.watchers.add(this.watcher);
    root.querySelector(".choose").onclick = () => this.field.click();
    this.field.onchange = () => {
      this.engine.add([...this.field.files]);
      this.field.value = ""; // so that the same file may be chosen again
    };
    this.over = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // or the browser opens the file in place of the page
      this.zone.classList.add("over");
      clearTimeout(this.leaving);
      this.leaving = setTimeout(() => this.zone.classList.remove("over"), 300); // dragover comes every 50 ms; leaving is not told reliably
    };
    this.drop = (event) => {
      this.zone.classList.remove("over");
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.engine.add([...event.dataTransfer.files]);
    };
    document.addEventListener("dragover", this.over);
    document.addEventListener("drop", this.drop);
    this.clock = setInterval(() => this.engine.rows.some((row) => row.state === "retrying") && this.draw(), 1000);
  }

  update(data, setStateValue) {
    this.setStateValue = setStateValue;
    Object.assign(this.engine, { address: data.address, library: data.library });
    tusClient(data.library).catch(() => {}); // asked for again when it is needed
    if (data.serial !== this.serial) {
      this.serial = data.serial;
      this.engine.refresh();
    }
    const dropped = window[DROPPED];
    delete window[DROPPED];
    if (dropped?.length) this.engine.add(dropped);
    this.changed("");
  }

  close() {
    clearTimeout(this.leaving);
    clearTimeout(this.later);
    clearInterval(this.clock);
    this.engine.watchers.delete(this.watcher);
    document.removeEventListener("dragover", this.over);
    document.removeEventListener("drop", this.drop);
  }

  changed(said) {
    if (said) this.says.textContent = said;
    const chosen = this.engine.chosen();
    if (this.setStateValue && JSON.stringify(chosen) !== this.told) {
      this.told = JSON.stringify(chosen);
      this.setStateValue("chosen", chosen);
    }
    if (this.later) return;
    this.draw();
    this.later = setTimeout(() => {
      this.later = null;
      this.draw();
    }, DRAW_AFTER);
  }

  draw() {
    const rows = this.engine.rows;
    for (const [key, item] of this.drawn) {
      if (rows.some((row) => row.key === key)) continue;
      const hadFocus = item.element.contains(this.root.getRootNode().activeElement);
      item.element.remove();
      this.drawn.delete(key);
      if (hadFocus) this.root.querySelector(".choose").focus();
    }
    for (const row of rows) this.drawRow(row, this.drawn.get(row.key) ?? this.newRow(row));
    this.list.hidden = rows.length === 0;
  }

  newRow(row) {
    const element = made("li", "row", this.list);
    const top = made("div", "top", element);
    const label = made("label", "use", top);
    const box = made("input", "", label);
    box.type = "checkbox";
    box.onchange = () => {
      row.isChosen = box.checked;
      this.engine.changed();
    };
    made("span", "name", label, row.name || "a file without a name");
    const actions = made("span", "actions", top);
    const item = { element, box, actions, buttons: {} };
    const action = (name, what) => {
      const button = made("button", "", actions, name);
      button.type = "button";
      button.setAttribute("aria-label", `${name} ${row.name}`);
      button.onclick = what;
      item.buttons[name] = button;
    };
    action("Pause", () => this.engine.pause(row));
    action("Resume", () => this.engine.resume(row));
    action("Retry now", () => this.engine.resume(row));
    action("Cancel", () => this.engine.remove(row));
    action("Remove", () => this.engine.remove(row));
    item.bar = made("div", "bar", element);
    item.bar.setAttribute("role", "progressbar");
    item.bar.setAttribute("aria-label", `Upload of ${row.name || "a file without a name"}`);
    item.bar.setAttribute("aria-valuemin", "0");
    item.bar.setAttribute("aria-valuemax", "100");
    item.fill = made("i", "", item.bar);
    item.line = made("div", "line", element);
    this.drawn.set(row.key, item);
    return item;
  }

  drawRow(row, item) {
    const share = row.size ? Math.min(1, row.live / row.size) : Number(row.state === "complete");
    const shown = {
      Pause: ["sending", "waiting", "retrying"], Resume: ["paused"], "Retry now": ["retrying", "failed"],
      Cancel: ["sending", "waiting", "retrying", "paused"], Remove: ["failed", "unfinished", "complete"],
    };
    const active = this.root.getRootNode().activeElement;
    const hadFocus = active && item.actions.contains(active);
    for (const [name, button] of Object.entries(item.buttons)) button.hidden = !shown[name].includes(row.state);
    if (hadFocus && active.hidden) [...item.actions.children].find((button) => !button.hidden)?.focus();
    item.element.dataset.state = row.state;
    item.box.hidden = row.state !== "complete";
    item.box.checked = row.isChosen;
    item.bar.hidden = row.state === "complete";
    item.bar.setAttribute("aria-valuenow", String(Math.round(share * 100)));
    item.fill.style.width = `${share * 100}%`;
    const text = line(row);
    if (item.line.textContent !== text) item.line.textContent = text;
  }
}

// Steps along the prompt: buttons, keys, and the one voice that says in this browser which position is selected.
//
// "ulpscope:position" tells it to whatever draws positions; "ulpscope:go" asks for another. The answer is shown at once and sent to
// the server as a position, not as a step, so that keys held down can be sent in fewer messages than they were pressed.
const PAUSE_MS = 150; // between two messages while a key is held
const PATIENCE_MS = 4000; // an asked position that was not answered for so long was lost
const AGAIN_MS = 1500; // it is asked for again before: a message sent while the page is drawn anew can get lost
const TRIES = 3;
const TYPING = "input, textarea, select, [contenteditable]:not([contenteditable='false']), [role=textbox], [role=combobox], [role=dialog]";
const ARROWS =
  "canvas, video, audio, iframe, [role=listbox], [role=grid], [role=slider], [role=spinbutton], [role=radiogroup], [role=tablist], [role=menu], [role=tree], [role=application], [data-testid=stDataFrame]";

const within = (event, what) => event.composedPath().some((node) => node.matches?.(what));
const next = (places, from, way) =>
  way > 0 ? places.find((place) => place > from) : places.findLast((place) => place < from);

class Stepper {
  constructor(root) {
    this.root = root;
    this.rows = root.querySelector(".rows");
    this.position = 0;
    this.sent = 0; // number of the newest message
    this.answered = true;
    this.sentAt = 0;
    this.timer = null;
    this.again = null;
    this.onKey = (event) => this.pressed(event);
    this.onGo = (event) => {
      if (event.detail.stamp === this.data.stamp) this.go(event.detail.position);
    };
    document.addEventListener("keydown", this.onKey);
    document.addEventListener("ulpscope:go", this.onGo);
  }

  close() {
    document.removeEventListener("keydown", this.onKey);
    document.removeEventListener("ulpscope:go", this.onGo);
    clearTimeout(this.timer);
    clearTimeout(this.again);
    window.ulpscopePosition = null;
  }

  adopt(data, setTriggerValue) {
    const isOther = this.data?.stamp !== data.stamp;
    this.data = data;
    this.trigger = setTriggerValue;
    const isSettled = !this.timer && (data.handled === this.sent || performance.now() - this.sentAt > PATIENCE_MS);
    if (isOther || this.answered || isSettled) {
      this.answered = true;
      clearTimeout(this.timer);
      clearTimeout(this.again);
      this.timer = null;
      this.position = data.position;
    }
    this.draw();
    this.tell();
  }

  tell() {
    window.ulpscopePosition = { stamp: this.data.stamp, position: this.position };
    document.dispatchEvent(new CustomEvent("ulpscope:position", { detail: window.ulpscopePosition }));
  }

  go(position) {
    if (position === undefined || position === this.position || position < this.data.first || position > this.data.last) return;
    this.position = position;
    this.answered = false;
    this.draw();
    this.tell();
    if (this.timer) return; // it goes out with the next message
    const wait = Math.max(0, this.sentAt + PAUSE_MS - performance.now());
    this.timer = setTimeout(() => this.send(), wait);
  }

  send(tries = TRIES) {
    this.timer = null;
    clearTimeout(this.again);
    if (tries > 1) this.again = setTimeout(() => this.ask(tries), AGAIN_MS);
    this.sent = Date.now(); // grows from one mount to the next as well
    this.sentAt = performance.now();
    this.trigger("go", { stamp: this.data.stamp, position: this.position, number: this.sent });
  }

  ask(tries) {
    const isBusy = document.querySelector("[data-testid=stApp]")?.getAttribute("data-test-script-state") === "running";
    if (isBusy) this.again = setTimeout(() => this.ask(tries), AGAIN_MS); // an answer is on its way
    else if (!this.timer) this.send(tries - 1);
  }

  step(kind, way) {
    const places = this.data.kinds.find((one) => one.name === kind)?.places;
    if (places) this.go(next(places, this.position, way));
  }

  pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || within(event, TYPING)) return;
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (way && within(event, ARROWS)) return;
    if (!way && within(event, "canvas, [role=grid], [role=application], [data-testid=stDataFrame]")) return;
    const letter = event.key.length === 1 ? event.key.toLowerCase() : "";
    if (way) event.shiftKey ? this.step("flip", way) : this.go(Math.min(Math.max(this.position + way, 0), this.data.last));
    else if (letter === "n") this.step("flip", 1);
    else if (letter === "p") this.step("flip", -1);
    else if (letter === "t") this.step("near tie", event.shiftKey ? -1 : 1);
    else if (letter === "x") this.step("NaN or infinity", event.shiftKey ? -1 : 1);
    else if (letter === "w") this.go(this.data.worst);
    else return;
    event.preventDefault();
  }

  draw() {
    const shape = JSON.stringify(this.data.kinds.map((kind) => kind.name));
    if (this.shape !== shape) {
      this.shape = shape;
      this.rows.replaceChildren();
      this.drawn = this.data.kinds.map((kind) => this.row(kind.name));
      this.worst = this.button("", () => this.go(this.data.worst));
      this.worst.className = "worst";
      this.rows.append(this.worst);
    }
    this.data.kinds.forEach((kind, number) => {
      const { before, label, after } = this.drawn[number];
      const index = kind.places.indexOf(this.position);
      const total = kind.places.length.toLocaleString("en-US");
      label.textContent = index < 0 ? `${total} ${kind.name}${kind.places.length === 1 || kind.name === "NaN or infinity" ? "" : "s"}` : `${kind.name} ${(index + 1).toLocaleString("en-US")} of ${total}`;
      label.classList.toggle("at", index >= 0);
      before.disabled = next(kind.places, this.position, -1) === undefined;
      after.disabled = next(kind.places, this.position, 1) === undefined;
    });
    const isThere = this.position === this.data.worst;
    this.worst.textContent = isThere ? "at the largest difference" : `largest difference: ${this.data.worst.toLocaleString("en-US")}`;
    this.worst.disabled = isThere;
    this.worst.title = `position ${this.data.worst}, ${this.data.worst_logits} logits; key W`;
    this.worst.hidden = this.data.worst_logits === "0";
  }

  row(name) {
    const row = document.createElement("div");
    row.className = "row";
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", `Steps from ${name} to ${name}`);
    const keys = { flip: ["P", "N"], "near tie": ["Shift+T", "T"], "NaN or infinity": ["Shift+X", "X"] }[name];
    const before = this.button("‹", () => this.step(name, -1), `previous ${name}`, keys[0]);
    const after = this.button("›", () => this.step(name, 1), `next ${name}`, keys[1]);
    const label = document.createElement("span");
    label.className = "label";
    row.append(before, label, after);
    this.rows.append(row);
    return { before, label, after };
  }

  button(text, act, name, key) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    if (name) {
      button.setAttribute("aria-label", name);
      button.title = `${name}; key ${key}`;
    }
    button.addEventListener("click", act);
    return button;
  }
}

const steppers = new WeakMap();

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".steps");
  if (!steppers.has(root)) steppers.set(root, new Stepper(root));
  steppers.get(root).adopt(data, setTriggerValue);
  return () => {
    steppers.get(root)?.close();
    steppers.delete(root);
  };
}

// After clipboard.js. A text to be copied as it is; where the browser refuses to, it is marked, so that one key copies it.
const timers = new WeakMap();

export default function (component) {
  const root = component.parentElement;
  const [block, button, says] = ["code", "button", "[role=status]"].map((what) => root.querySelector(what));
  block.textContent = component.data.text;
  root.querySelector("pre").classList.toggle("wraps", component.data.wraps);
  const say = (what) => {
    button.firstChild.textContent = what || "Copy";
    says.textContent = what;
  };
  button.onclick = async () => {
    const copied = await isCopied(block.textContent);
    button.focus();
    if (!copied) window.getSelection().selectAllChildren(block);
    say(copied ? "Copied" : "Marked");
    clearTimeout(timers.get(button));
    timers.set(button, setTimeout(say, LONG_ENOUGH_MS, ""));
  };
  return () => clearTimeout(timers.get(button));
}

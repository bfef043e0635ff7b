// After clipboard.js. A text to be copied as it is; where the browser refuses to, it is marked, so that one key copies it.
const shown = new WeakMap();

export default function (component) {
  const root = component.parentElement;
  const [block, button] = ["code", "button"].map((what) => root.querySelector(what));
  block.textContent = component.data.text;
  root.querySelector("pre").classList.toggle("wraps", component.data.wraps);
  const says = (what) => {
    button.textContent = what;
    clearTimeout(shown.get(button));
    shown.set(button, setTimeout(() => (button.textContent = "Copy"), LONG_ENOUGH_MS));
  };
  button.onclick = async () => {
    const copied = await isCopied(block.textContent);
    button.focus();
    if (!copied) window.getSelection().selectAllChildren(block);
    says(copied ? "Copied" : "Marked: copy it");
  };
  return () => clearTimeout(shown.get(button));
}

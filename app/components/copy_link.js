// Copies the address bar. Browsers refuse the clipboard on plain http: then the address is shown, selected, to be copied by hand.
const SHOWN_MS = 2500;

export default function (component) {
  const root = component.parentElement;
  const [button, says, field] = ["button", ".says", "input"].map((what) => root.querySelector(what));
  let timer = null;
  button.onclick = async () => {
    const { origin, pathname, search } = window.location;
    const link = origin + pathname + search;
    clearTimeout(timer);
    try {
      await navigator.clipboard.writeText(link);
      field.hidden = true;
      says.textContent = "Copied";
      timer = setTimeout(() => (says.textContent = ""), SHOWN_MS);
    } catch {
      field.hidden = false;
      field.value = link;
      field.focus();
      field.select();
      says.textContent = "Copy it from here:";
    }
  };
  return () => clearTimeout(timer);
}

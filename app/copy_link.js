// Copies the address as it stands in the address bar. Browsers refuse the clipboard on plain http: then an older way, then by hand.
const LONG_ENOUGH_MS = 2500;

function copiedTheOldWay(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.style.position = "fixed";
  field.style.opacity = "0";
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    field.remove();
  }
}

async function isCopied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedTheOldWay(text);
  }
}

export default function (component) {
  const root = component.parentElement;
  const [button, says, field] = ["button", ".says", "input"].map((what) => root.querySelector(what));
  let timer = null;
  button.onclick = async () => {
    const { origin, pathname, search } = window.location;
    const link = origin + pathname + search;
    clearTimeout(timer);
    field.hidden = await isCopied(link);
    button.focus();
    says.textContent = field.hidden ? "Copied" : "Copy it from here:";
    if (field.hidden) timer = setTimeout(() => (says.textContent = ""), LONG_ENOUGH_MS);
    else {
      field.value = link;
      field.focus();
      field.select();
    }
  };
  return () => clearTimeout(timer);
}

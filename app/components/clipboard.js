// Copies a text. Browsers refuse the clipboard on plain http: then an older way, which they may refuse too.
const LONG_ENOUGH_MS = 2500; // that it was copied is said

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

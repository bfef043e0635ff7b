// Makes the whole page take files. They cannot pass through Python: they are kept in `window`, which outlives a change of the page, and the
// upload page's panel (app/upload/upload.js) takes them from there.
const DROPPED = "ulpscopeDropped";

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

export default function (component) {
  const { parentElement, setTriggerValue } = component;
  const [veil, field] = [".veil", "input[type=file]"].map((what) => parentElement.querySelector(what));
  let leaving = null;
  const hide = () => (veil.hidden = true);
  const handOver = (files) => {
    if (!files.length) return;
    window[DROPPED] = [...files];
    setTriggerValue("dropped", files.length);
  };
  const over = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault(); // or the browser opens the file in place of the page
    veil.hidden = false;
    clearTimeout(leaving);
    leaving = setTimeout(hide, 300); // dragover comes every 50 ms; leaving the window is not told reliably
  };
  const drop = (event) => {
    hide();
    if (!hasFiles(event)) return;
    event.preventDefault();
    handOver(event.dataTransfer.files);
  };
  parentElement.querySelector(".choose").onclick = () => field.click();
  field.onchange = () => handOver(field.files);
  document.addEventListener("dragover", over);
  document.addEventListener("drop", drop);
  return () => {
    clearTimeout(leaving);
    document.removeEventListener("dragover", over);
    document.removeEventListener("drop", drop);
  };
}

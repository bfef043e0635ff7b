// Makes the whole page take files: what is dropped beside the uploader is put into its input, as if it had been dropped there.
const FIELD = ".st-key-drop_zone input[type=file]";
const ZONE = ".st-key-drop_zone [data-testid=stFileUploaderDropzone]";

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
const isInZone = (event) => event.composedPath().some((node) => node instanceof Element && node.matches(ZONE));

export default function (component) {
  const veil = component.parentElement.querySelector(".veil");
  let leaving = null;
  const hide = () => (veil.hidden = true);
  const over = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault(); // or the browser opens the file in place of the page
    veil.hidden = isInZone(event);
    clearTimeout(leaving);
    leaving = setTimeout(hide, 300); // dragover comes every 50 ms; leaving the window is not told reliably
  };
  const drop = (event) => {
    hide();
    if (!hasFiles(event) || isInZone(event)) return;
    event.preventDefault();
    const field = document.querySelector(FIELD);
    if (!field) return;
    const files = new DataTransfer();
    for (const file of event.dataTransfer.files) files.items.add(file);
    field.files = files.files;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  };
  document.addEventListener("dragover", over);
  document.addEventListener("drop", drop);
  return () => {
    clearTimeout(leaving);
    document.removeEventListener("dragover", over);
    document.removeEventListener("drop", drop);
  };
}

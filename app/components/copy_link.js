// After clipboard.js. Copies the address as it stands in the address bar; where no way is left, it is shown to be copied by hand.
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

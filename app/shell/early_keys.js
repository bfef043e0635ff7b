// Keys pressed while the page still stands up: kept here, in the document itself, until the steps along the prompt are there to follow them.
(() => {
  const STEPS = new Set(["ArrowLeft", "ArrowRight", "n", "p", "t", "x", "w"]);
  const FRESH = 10000; // ms: who pressed a key longer ago has long looked elsewhere
  const keys = [];
  const keep = (event) => {
    const { key, shiftKey, ctrlKey, metaKey, altKey } = event;
    const isStep = STEPS.has(key) || STEPS.has(key.toLowerCase());
    const isOurs = document.activeElement === document.body || !document.activeElement;
    if (isStep && isOurs && !ctrlKey && !metaKey && !altKey && keys.length < 100) keys.push({ key, shiftKey, pressed: Date.now() });
  };
  window.addEventListener("keydown", keep);
  window.ulpscopeEarlyKeys = () => {
    window.removeEventListener("keydown", keep);
    return keys.splice(0).filter(({ pressed }) => Date.now() - pressed < FRESH);
  };
})();

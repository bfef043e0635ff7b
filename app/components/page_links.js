// The list of pages: links that carry the selection, as one element. A plain click is a step of the history to the link's address, which
// Streamlit follows as it follows Back and Forward; any other click (a new tab) is the browser's own business.
const NARROW = "(max-width: 768px)"; // where the sidebar lies over the page

export default function (component) {
  const { data, parentElement } = component;
  const list = parentElement.querySelector("nav");
  const known = new Map([...list.children].map((link) => [link.dataset.page, link]));
  const links = data.pages.map(({ page, title, query }) => {
    const link = known.get(page) ?? document.createElement("a");
    const address = data.base + (page === data.first ? "" : page) + (query ? "?" + query : "");
    link.dataset.page = page;
    if (link.textContent !== title) link.textContent = title;
    if (link.getAttribute("href") !== address) link.setAttribute("href", address);
    if (page === data.here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    link.onclick = (event) => {
      if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      if (link.href === window.location.href) return;
      window.history.pushState(null, "", link.href);
      window.dispatchEvent(new PopStateEvent("popstate"));
      if (window.matchMedia(NARROW).matches) document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click();
    };
    return link;
  });
  if (links.length !== list.children.length || links.some((link, place) => link !== list.children[place])) list.replaceChildren(...links);
}

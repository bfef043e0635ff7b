// The list of pages: links that carry the selection, in groups, as one element. A plain click is a step of the history to the link's address,
// which Streamlit follows as it follows Back and Forward; any other click (a new tab) is the browser's own business.
const NARROW = "(max-width: 768px)"; // where the sidebar lies over the page

const SHORT = 5; // characters of a note that fit beside a title in half the width

export default function (component) {
  const { data, parentElement } = component;
  const list = parentElement.querySelector("nav");
  const known = new Map([...list.querySelectorAll("a")].map((link) => [link.dataset.page, link]));
  if (list.children.length !== data.groups.length) list.replaceChildren(...data.groups.map(section));
  data.groups.forEach(({ pages }, place) => {
    const links = pages.map((page) => linkTo(page, known.get(page.page) ?? document.createElement("a"), data));
    const room = list.children[place].lastElementChild;
    if (links.length !== room.children.length || links.some((link, at) => link !== room.children[at])) room.replaceChildren(...links);
  });
}

// A group's name and its line, above the room of its links.
function section({ name, line }) {
  const group = document.createElement("div");
  const head = document.createElement("p");
  head.append(Object.assign(document.createElement("b"), { textContent: name }), ` ${line}`);
  const room = document.createElement("div");
  room.className = "links";
  room.setAttribute("role", "group");
  room.setAttribute("aria-label", name);
  group.append(head, room);
  return group;
}

function linkTo({ page, title, note, query }, link, data) {
  const address = data.base + (page === data.first ? "" : page) + (query ? "?" + query : "");
  link.dataset.page = page;
  if (link.dataset.shown !== `${title}\n${note}`) {
    link.dataset.shown = `${title}\n${note}`;
    link.replaceChildren(title);
    if (note) link.append(" ", Object.assign(document.createElement("small"), { textContent: `· ${note}` }));
    link.classList.toggle("absent", Boolean(note));
    link.classList.toggle("wide", note.length > SHORT);
  }
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
}

// Elements from plain values. Text is set as text, never as HTML: some of it is from peers.

const SVG = "http://www.w3.org/2000/svg";

export function byId(id) {
  return document.getElementById(id);
}

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Writing what is already there would make screen readers say it again.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A list of [term, value, smaller text below it] as the inside of a <dl>, updated in place.
export function setFacts(list, facts) {
  while (list.children.length > facts.length) list.lastElementChild.remove();
  while (list.children.length < facts.length) {
    list.append(element("div", {}, element("dt"), element("dd")));
  }
  facts.forEach(([term, value, under], place) => {
    const [dt, dd] = list.children[place].children;
    setText(dt, term);
    if (dd.childNodes.length === 0) dd.append(element("span"), element("div", { class: "under" }));
    setText(dd.firstChild, value);
    setText(dd.lastChild, under ?? "");
  });
}

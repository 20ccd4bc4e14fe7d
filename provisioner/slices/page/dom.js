// Small helpers for the DOM. Data reaches the page as text alone: names are chosen by users.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: properties by name, attributes in `attributes`, then children (nodes or text). */
export function make(tag, { attributes = {}, ...properties } = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Return one icon of the sprite in index.html; words beside it say the same. */
export function icon(name) {
  return makeSvg("svg", { class: "icon", "aria-hidden": "true" }, makeSvg("use", { href: `#i-${name}` }));
}

/** Set a text, a property or an attribute only where it differs: what is equal costs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setProperty(node, name, value) {
  if (node[name] !== value) node[name] = value;
}

export function setTitled(node, text) {
  setText(node, text);
  setProperty(node, "title", text);
}

/** Names differ at their end most of all: where there is no room for all of one, the end stays. */
const END_LENGTH = 14;

export function setName(node, text) {
  if (node.textContent === text) return;
  node.title = text;
  if (text.length <= END_LENGTH + 4) node.textContent = text;
  else node.replaceChildren(make("span", { className: "start" }, text.slice(0, -END_LENGTH)), text.slice(-END_LENGTH));
}

export function setClass(node, name) {
  if (node.getAttribute("class") !== name) node.setAttribute("class", name);
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Set the address of a link to a query of this page. */
export function setLink(node, search) {
  setAttribute(node, "href", search);
}

/**
 * Children of a node that are known by keys: those that stay are moved and updated, never made again.
 * `create(key)` returns an object with its `node` and a method `update(item)`.
 */
export class Keyed {
  #parent;
  #create;
  #rows = new Map();

  constructor(parent, create) {
    this.#parent = parent;
    this.#create = create;
  }

  get size() {
    return this.#rows.size;
  }

  /** Show the items, [key, item] each, in this order; `isChanged(key)` tells which of those that are there to update. */
  show(items, isChanged = () => true) {
    const gone = new Map(this.#rows);
    let place = this.#parent.firstChild;
    for (const [key, item] of items) {
      let row = this.#rows.get(key);
      gone.delete(key);
      if (row === undefined) {
        row = this.#create(key);
        this.#rows.set(key, row);
        row.update(item);
      } else if (isChanged(key)) row.update(item);
      if (row.node === place) place = place.nextSibling;
      else this.#parent.insertBefore(row.node, place);
    }
    for (const [key, row] of gone) {
      row.node.remove();
      row.end?.();
      this.#rows.delete(key);
    }
  }
}

/** Show a few things that seldom change, known by their text. */
export function showTexts(parent, texts, create) {
  const mark = JSON.stringify(texts);
  if (parent._mark === mark) return;
  parent._mark = mark;
  parent.replaceChildren(...texts.map(create));
}

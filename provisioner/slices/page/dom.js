// Functions for the DOM. Users choose names, so data is added to the page only as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with properties by name, attributes by name in `attributes`, and children (nodes or text). */
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

/** Create an icon of the sprite in index.html. Screen readers ignore it, because a text next to it has the same meaning. */
export function icon(name) {
  return makeSvg("svg", { class: "icon", "aria-hidden": "true" }, makeSvg("use", { href: `#i-${name}` }));
}

/** Set a text, a property or an attribute only if its value differs, so that an equal value causes no layout. */
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

/** Number of characters at the end of a name that are always shown: names mostly differ at the end. */
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

/** Set the address of a link to this page with another query. */
export function setLink(node, search) {
  setAttribute(node, "href", search);
}

/**
 * The children of a node, by key. A child whose key remains is moved and updated, and never created again.
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

  /** Show the items, pairs of key and item, in this order. Existing children are updated only if `isChanged(key)`. */
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

/** Create the children of a parent from texts, only if the texts changed. For few children that rarely change. */
export function showTexts(parent, texts, create) {
  const mark = JSON.stringify(texts);
  if (parent._mark === mark) return;
  parent._mark = mark;
  parent.replaceChildren(...texts.map(create));
}

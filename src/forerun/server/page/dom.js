// Making elements.

export const byId = (id) => document.getElementById(id);

export function make(tag, { text, cls, ...attributes } = {}, ...inside) {
  const node = document.createElement(tag);
  return fill(node, text, cls, attributes, inside);
}

export function svg(tag, { text, cls, ...attributes } = {}, ...inside) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return fill(node, text, cls, attributes, inside);
}

function fill(node, text, cls, attributes, inside) {
  if (text !== undefined) node.textContent = text;
  if (cls) node.setAttribute("class", cls);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...inside);
  return node;
}

// Numbers as people read them.
export const short = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
export const percent = (part) => `${Math.round(100 * part)} %`;

// Text of a token with what is invisible made visible.
export const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·") || "∅";

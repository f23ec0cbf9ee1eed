// The tree of one step: what was drafted, which path of it the model kept, and the model's own token at the end of that.

import { make, svg, visible } from "./dom.js";
import { styleOf } from "./sources.js";

const WIDTH = 92, HEIGHT = 26, COLUMN = 118, ROW = 34, LETTERS = 11;

// A step in one or two sentences.
export function inWords(step) {
  const kept = step.accepted_path.length;
  const own = step.tokens.length > kept ? " and the model's own token" : "";
  const drafted = step.drafted.length;
  const by = [...new Set(step.sources)].join(" and ");
  const time = `${(step.draft_ms + step.verify_ms + step.other_ms).toFixed(1)} ms`;
  const read = step.prompt_tokens_read ? ` It also read ${step.prompt_tokens_read} tokens of the prompt.` : "";
  if (!drafted) return `Nothing was drafted: one token of the model's own, in ${time}.${read}`;
  return `${drafted} drafted by ${by} (${step.draft_ms.toFixed(1)} ms), checked in one pass `
    + `(${step.verify_ms.toFixed(1)} ms). Kept: ${kept} of them${own}, in ${time} altogether.${read}`;
}

export function drawTree(container, step, before) {
  const nodes = layOut(step);
  const columns = 1 + Math.max(0, ...nodes.map((node) => node.depth)), rows = 1 + Math.max(...nodes.map((node) => node.row));
  const picture = svg("svg", {
    width: columns * COLUMN, height: rows * ROW + 6, role: "img",
    "aria-label": nodes.slice(1).map((node) => `${node.text}: ${node.state}`).join("; "),
  });
  for (const node of nodes) {
    if (node.parent) picture.append(edge(node.parent, node));
  }
  for (const node of nodes) picture.append(box(node === nodes[0] ? { ...node, text: before } : node));
  container.replaceChildren(nodes.length > 1 ? picture : make("p", { text: "Nothing was drafted in this step." }));
}

// The root first, then all nodes with a column and a row; what was kept comes first, so that it runs along the top.
function layOut(step) {
  const path = new Set(step.accepted_path);
  const root = { text: "…", state: "text so far", cls: "root", depth: 0, children: [] };
  const drafted = step.drafted_text.map((text, index) => ({
    text, depth: 0, children: [], kept: path.has(index),
    state: path.has(index) ? `${step.sources[index]}, accepted` : `${step.sources[index]}, rejected`,
    cls: `${styleOf(step.sources[index])} ${path.has(index) ? "kept" : "rejected"}`,
  }));
  step.parents.forEach((parent, index) => {
    drafted[index].parent = parent < 0 ? root : drafted[parent];
    drafted[index].parent.children.push(drafted[index]);
  });
  const end = step.accepted_path.length ? drafted[step.accepted_path.at(-1)] : root;
  if (step.tokens.length > step.accepted_path.length) {
    const text = step.text[step.accepted_path.length] ?? "";
    end.children.push({ text, parent: end, children: [], kept: true, state: "the model's own", cls: "own kept" });
  }
  const placed = [];
  let rows = 0;
  const place = (node, depth) => {
    node.depth = depth;
    placed.push(node);
    node.children.sort((one, other) => (other.kept ?? 0) - (one.kept ?? 0));
    if (!node.children.length) node.row = rows++;
    for (const child of node.children) place(child, depth + 1);
    node.row ??= node.children[0].row;
  };
  place(root, 0);
  return placed;
}

function edge(from, to) {
  const x1 = from.depth * COLUMN + WIDTH + 2, y1 = from.row * ROW + HEIGHT / 2 + 3;
  const x2 = to.depth * COLUMN + 2, y2 = to.row * ROW + HEIGHT / 2 + 3;
  const middle = (x1 + x2) / 2;
  return svg("path", { cls: to.kept ? "edge kept" : "edge", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

function box({ text, cls, depth, row, state }) {
  const shown = visible(text), cut = shown.length > LETTERS ? `${shown.slice(0, LETTERS - 1)}…` : shown;
  const x = depth * COLUMN + 2, y = row * ROW + 3;
  return svg("g", { cls: `node ${cls}` },
    svg("title", { text: `${text} (${state})` }),
    svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6 }),
    svg("text", { x: x + WIDTH / 2, y: y + HEIGHT / 2 + 4, "text-anchor": "middle", text: cut }));
}

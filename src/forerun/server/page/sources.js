// Which color and underline stand for which drafter: given out in the order in which drafters are first seen.

import { byId, make } from "./dom.js";

const STYLES = 6;
const numbers = new Map();
const counts = new Map();

// The class of an accepted token of this drafter.
export function styleOf(source) {
  if (!numbers.has(source)) numbers.set(source, numbers.size % STYLES);
  return `from from-${numbers.get(source)}`;
}

export function count(source) {
  counts.set(source, (counts.get(source) ?? 0) + 1);
}

export function resetCounts() {
  counts.clear();
}

export function showLegend() {
  const entry = (sample, words, key) => {
    const n = counts.get(key);
    return make("li", {}, sample, make("span", { text: words }), make("b", { text: n ? String(n) : "" }));
  };
  const drafted = [...numbers.keys()].map((source) =>
    entry(make("span", { cls: `token ${styleOf(source)}`, text: source }), "accepted draft", source));
  byId("legend").replaceChildren(...drafted,
    entry(make("span", { cls: "token own", text: "model" }), "the model's own", ""));
}

// The side panel: what this server runs, and what a pass of its model costs.

import { byId, make, short } from "./dom.js";
import { linePlot } from "./plots.js";

export function showServer(told) {
  const { speculation, memory, requests } = told;
  byId("model-line").textContent = `${told.model} · the same text, in fewer passes of the model`;
  facts({
    Model: told.model,
    Drafter: speculation.draft === "none" ? "none: nothing is drafted" : speculation.draft,
    Verifier: speculation.verifier + (speculation.lossy ? ` with ${speculation.lossy}: texts may differ` : ""),
    Controller: speculation.controller,
    Backend: told.backend,
    Weights: Object.entries(told.weights).map(([type, count]) => `${type} × ${count}`).join(", "),
    Context: `${told.context} tokens`,
    Memory: memory.kv_tokens_budget === null ? "not divided" : `${memory.kv_tokens_used} of ${memory.kv_tokens_budget} tokens in use`,
    Requests: `${requests.running} running, ${requests.waiting} waiting`,
    Status: told.status,
  });
  byId("limits").replaceChildren(...told.limitations.map((text) => make("li", { text })));
  showCost(told.pass_ms);
  const chosen = byId("draft").value;
  byId("draft").replaceChildren(...speculation.drafts.map((name) => make("option", { text: name, value: name })));
  byId("draft").value = speculation.drafts.includes(chosen) ? chosen : speculation.draft;
}

function facts(found) {
  byId("facts").replaceChildren(...Object.entries(found).flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
}

function showCost(curve) {
  byId("cost").hidden = !curve;
  if (!curve) return;
  const points = curve.filter(({ rows }) => rows <= 32).map(({ rows, ms }) => [rows, ms]);
  const at = (rows) => points.find((point) => point[0] === rows)[1];
  const words = `A pass over 8 tokens costs ${short(at(8) / at(1))} times as much as a pass over one (${short(at(1))} ms)`;
  linePlot(byId("cost-plot"), [{ name: "ms", cls: "cost", points, dots: (rows, ms) => `${rows} rows: ${short(ms)} ms` }], "rows in a pass", words);
  byId("cost-words").textContent = `${words}: measured when the server started, and corrected by every pass since. Drafts are made as long as that pays.`;
}

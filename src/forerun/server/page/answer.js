// One answer as it is written: its tokens with where they came from, its steps, and how fast it came.

import { make, percent, short } from "./dom.js";
import { count, styleOf } from "./sources.js";

// Seconds over which the live rate is taken.
const WINDOW = 1;
// And the fewest over which one is told.
const LEAST = 0.2;
// Steps of which no rate is told.
const FEW = 3;

export class Answer {
  // onStep: called with (answer, index of a step) when a token is pointed at or reached.
  constructor(kind, onStep) {
    this.kind = kind;
    this.title = kind === "speculative" ? "With speculation" : "Plain";
    this.content = "";
    this.shown = "";
    this.steps = [];
    this.rates = [];
    this.arrivals = []; // when each step came, and how many tokens there were with it
    this.at = 0;
    this.state = make("span", { cls: "state", text: "waits" });
    this.rate = make("p", { cls: "rate", text: "–" });
    this.figures = make("p", { cls: "figures soft" });
    this.text = make("div", { cls: "text", role: "group", "aria-label": `${this.title}: tokens of the answer` });
    this.element = make("article", { cls: `answer ${kind}` },
      make("header", {}, make("h3", { text: this.title }), this.state), this.rate, this.text, this.figures);
    this.#listen(onStep);
  }

  begin() {
    this.started = performance.now();
    this.state.textContent = "reads the prompt …";
  }

  add(chunk) {
    // Steps that only read a part of the prompt have no tokens.
    if (chunk.step?.tokens.length) {
      this.steps.push(chunk.step);
      this.at = 0;
      this.#timed(chunk.step.tokens.length);
    }
    const [choice] = chunk.choices;
    if (choice) this.#token(choice);
    if (chunk.timings) this.end = chunk;
  }

  finish() {
    const { timings, metrics, speculation } = this.end;
    const found = metrics.speculative_decoding;
    this.state.textContent = { stop: "done", length: "done: token limit" }[this.reason] ?? `ended: ${this.reason}`;
    // The first step comes with the prompt, so neither its time nor its tokens count; a few steps alone say nothing.
    const timed = this.steps.length > FEW && timings.predicted_ms > 0;
    this.perSecond = timed ? (1e3 * (timings.predicted_n - this.steps[0].tokens.length)) / timings.predicted_ms : null;
    this.perStep = timed ? (timings.predicted_n - this.steps[0].tokens.length) / (this.steps.length - 1) : null;
    // What was written too quickly to have a course has its mean.
    if (timed && !this.rates.length) this.rates.push([0, this.perSecond], [timings.predicted_ms / 1e3, this.perSecond]);
    if (timed) this.#showRate(this.perSecond);
    else this.rate.replaceChildren("too short to time");
    this.told = speculation;
    const told = [`${timings.predicted_n} tokens in ${this.steps.length} ${this.steps.length === 1 ? "step" : "steps"}`, `first after ${short(timings.prompt_ms / 1e3)} s`];
    if (timings.cache_n) told.push(`${timings.cache_n} tokens of the prompt were read before`);
    if (timings.draft_n) {
      told.push(`${short(found.mean_acceptance_length)} tokens per drafted step`);
      told.push(`${percent(timings.draft_n_accepted / timings.draft_n)} of ${timings.draft_n} drafted accepted`);
    }
    this.figures.textContent = `${told.join(" · ")}.${this.kind === "speculative" && speculation.reason ? ` Nothing was drafted: ${speculation.reason}.` : ""}`;
  }

  broke(words) {
    this.state.textContent = words;
    this.element.classList.add("broken");
  }

  // Marks the tokens of one step.
  mark(index) {
    for (const node of this.text.querySelectorAll(".marked")) node.classList.remove("marked");
    if (index !== null) for (const node of this.text.querySelectorAll(`[data-step="${index}"]`)) node.classList.add("marked");
  }

  // The text right before a step.
  before(index) {
    let last = "";
    for (const node of this.text.children) {
      if (Number(node.dataset.step) >= index) break;
      last = node.textContent;
    }
    return last || "prompt";
  }

  #token({ delta, token_ids: ids, finish_reason: reason }) {
    const thought = delta.reasoning_content ?? "", text = thought + (delta.content ?? "");
    this.content += delta.content ?? "";
    this.shown += text;
    if (reason) this.reason = reason;
    const step = this.steps.at(-1), path = step?.accepted_path ?? [];
    const source = ids?.length && this.at < path.length ? step.sources[path[this.at]] : "";
    if (ids?.length) {
      this.at += 1;
      if (this.kind === "speculative") count(source);
    }
    if (!text) return;
    const node = make("span", { text, cls: `token ${source ? styleOf(source) : "own"}${thought ? " thought" : ""}`,
      tabindex: this.text.childElementCount ? "-1" : "0", "data-step": String(this.steps.length - 1), "aria-describedby": "step-words" });
    node.title = source ? `drafted by ${source}, accepted` : "the model's own token";
    this.text.append(node);
  }

  // Rates are from step to step: between two of them, tokens come all at once or not at all.
  #timed(count) {
    const now = performance.now() / 1e3;
    const tokens = count + (this.arrivals.at(-1)?.tokens ?? 0);
    if (!this.arrivals.length) this.state.textContent = "writes …";
    this.arrivals.push({ at: now, tokens });
    const [first] = this.arrivals, since = this.arrivals.findLast(({ at }) => at <= now - WINDOW) ?? first;
    if (now - since.at < LEAST) return;
    const rate = (tokens - since.tokens) / (now - since.at);
    this.rates.push([now - first.at, rate]);
    this.#showRate(rate);
  }

  #showRate(rate) {
    this.rate.replaceChildren(make("b", { text: short(rate) }), " tokens/s");
  }

  // One stop for Tab; arrow keys, Home and End go from token to token.
  #listen(onStep) {
    const show = (event) => {
      if (event.target.dataset.step) onStep(this, Number(event.target.dataset.step));
    };
    this.text.addEventListener("pointerover", show);
    this.text.addEventListener("focusin", (event) => {
      for (const node of this.text.querySelectorAll("[tabindex='0']")) node.tabIndex = -1;
      event.target.tabIndex = 0;
      show(event);
    });
    this.text.addEventListener("keydown", (event) => {
      const tokens = [...this.text.children], here = tokens.indexOf(event.target);
      const there = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: tokens.length - 1 }[event.key];
      if (there === undefined || !tokens[there]) return;
      event.preventDefault();
      tokens[there].focus();
    });
  }
}

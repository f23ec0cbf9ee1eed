// The page: asks the server for two answers to each message, and shows how they came about.

import { Answer } from "./answer.js";
import { ServerError, chat, health, setKey } from "./api.js";
import { byId, make, short } from "./dom.js";
import { linePlot, stepPlot } from "./plots.js";
import { showServer } from "./server.js";
import { resetCounts, showLegend, styleOf } from "./sources.js";
import { drawTree, inWords } from "./tree.js";

// How far a ratio of rates may lie past the tokens per step before the page says that the machine was not steady.
const UNSTEADY = 1.05;
const TYPED = "forerun.typed";
const ORDERS = {
  apart: "The two answers are written one after the other, the plain one first, so that neither slows the other down; nothing is drafted "
    + "from the plain one, and rates leave out the first step, which reads the prompt. Earlier answers with speculation do help "
    + "the drafts, so ask something new for a fair look.",
  together: "The two answers are written at the same time and share this machine: a fair look at the texts, not at the speeds.",
};

const prompt = byId("prompt"), error = byId("error"), send = byId("send"), stop = byId("stop");
const finished = [];
const askedBefore = new Set();
let running = null, current = null, pending = false, invariant = true;

async function refresh() {
  try {
    const told = await health();
    byId("key-form").hidden = told.model !== undefined;
    if (told.model === undefined) return byId("model-line").replaceChildren("This server asks for an API key.");
    showServer(told);
    invariant = told.batch_invariant;
    for (const draft of told.speculation.drafts) draft.split("+").forEach(styleOf);
    showLegend();
  } catch (failure) {
    fail(failure.message);
  }
}

function fail(words) {
  error.textContent = `${words[0].toUpperCase()}${words.slice(1)}`;
  error.hidden = false;
}

const say = (words) => { byId("status").textContent = words; };

function settings() {
  const number = (id) => Number(byId(id).value);
  return {
    temperature: number("temperature"),
    // Both answers need the same seed, so an empty field means one drawn here.
    seed: byId("seed").value === "" ? Math.floor(Math.random() * 2 ** 31) : number("seed"),
    max_tokens: number("max-tokens"),
    draft: byId("draft").value,
    order: byId("order").value,
  };
}

function describe() {
  const { temperature, max_tokens: most, draft } = settings();
  const seed = byId("seed").value === "" ? "a new one each time" : byId("seed").value;
  byId("settings-line").textContent = `temperature ${temperature}, seed ${seed}, at most ${most} tokens, ${draft || "no draft"}`;
  byId("honest").textContent = ORDERS[byId("order").value];
}

// One message, its two answers, and what they show together.
function newTurn(text, asked) {
  const answers = { plain: new Answer("plain", inspect), speculative: new Answer("speculative", inspect) };
  const verdict = make("p", { cls: "verdict" });
  const element = make("section", { cls: "turn" },
    make("div", { cls: "said" }, make("p", { text }), make("p", { cls: "soft", text: `temperature ${asked.temperature}, seed ${asked.seed}` })),
    make("div", { cls: "pair" }, answers.plain.element, answers.speculative.element), verdict);
  byId("turns").append(element);
  return { text, asked, answers, verdict, element };
}

async function write(turn, kind, signal) {
  const answer = turn.answers[kind], { temperature, seed, max_tokens, draft } = turn.asked;
  const messages = finished.flatMap((one) => [{ role: "user", content: one.text }, { role: "assistant", content: one.answers[kind].content }]);
  const speculation = { trace: true, enabled: kind === "speculative", ...(kind === "speculative" && draft ? { draft } : {}) };
  answer.begin();
  say(`${answer.title}: being written.`);
  try {
    const body = { messages: [...messages, { role: "user", content: turn.text }], temperature, seed, max_tokens, speculation, return_token_ids: true };
    for await (const chunk of chat(body, signal)) {
      answer.add(chunk);
      redraw();
    }
    answer.finish();
  } catch (failure) {
    answer.broke(failure.name === "AbortError" ? "stopped" : "failed");
    throw failure;
  }
}

async function answerTwice() {
  if (running || !prompt.value.trim()) return;
  const abort = (running = new AbortController()), typed = prompt.value;
  const turn = (current = newTurn(typed, settings()));
  error.hidden = true;
  resetCounts();
  busy(true);
  turn.element.scrollIntoView({ block: "start" });
  try {
    if (turn.asked.order === "together") {
      await Promise.all(["plain", "speculative"].map((kind) => write(turn, kind, abort.signal)));
    } else {
      await write(turn, "plain", abort.signal);
      await write(turn, "speculative", abort.signal);
    }
    judge(turn);
    askedBefore.add(typed);
    finished.push(turn);
    if (prompt.value === typed) prompt.value = "";
    keep();
  } catch (failure) {
    abort.abort();
    gaveUp(turn, failure);
  } finally {
    running = null;
    busy(false);
    redraw();
    if (byId("key-form").hidden) refresh();
  }
}

function gaveUp(turn, failure) {
  turn.element.classList.add("dropped");
  const stopped = failure.name === "AbortError";
  turn.verdict.textContent = `${stopped ? "Stopped" : "Failed"}: these answers are not part of the conversation. Your message is still in the box.`;
  say(turn.verdict.textContent);
  for (const answer of Object.values(turn.answers)) if (!answer.end && !answer.element.matches(".broken")) answer.broke("not asked");
  if (stopped) return;
  if (!(failure instanceof ServerError)) console.error(failure);
  fail(failure.message);
  if (failure.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
  }
}

function judge({ text: message, answers: { speculative, plain }, asked, verdict }) {
  const same = speculative.shown === plain.shown && speculative.reason === plain.reason;
  verdict.classList.add(same ? "same" : "different");
  const times = speculative.perSecond && plain.perSecond ? speculative.perSecond / plain.perSecond : null;
  const why = speculative.told.lossy || speculative.told.verifier !== "keyed"
    ? `the rule in force (${speculative.told.lossy || speculative.told.verifier}) does not keep the text of a seed.`
    : invariant ? "that should not be: please report it."
      : "this backend is not batch-invariant, so a pass over several tokens may round otherwise than several passes over one.";
  const text = same ? "Same text, character by character." : `The texts differ; ${why}`;
  const speed = asked.order === "together" ? "Written at the same time, so their speeds say little."
    : times === null ? "Too short to compare their speeds."
    : times >= 1 ? `With speculation it was written ${short(times)} times as fast.`
      : `Speculation did not pay here: ${short(times)} times the speed of plain decoding.`;
  verdict.replaceChildren(make("b", { text: `${same ? "✓" : "✗"} ${text}` }), ` ${speed}`,
    // A step with a draft costs no less than one without, so a gain past the tokens per step is not speculation's.
    times > UNSTEADY * speculative.perStep && asked.order === "apart"
      ? ` Its ${short(speculative.perStep)} tokens per step explain less than that: this machine was busier during the plain answer.` : "",
    askedBefore.has(message) ? " You asked this before, and the earlier answer is a good draft for this one." : "");
  say(verdict.textContent);
}

function busy(yes) {
  const focused = document.activeElement;
  send.disabled = yes;
  stop.hidden = !yes;
  byId("examples").hidden = byId("turns").childElementCount > 0;
  byId("new").hidden = yes || !byId("turns").childElementCount;
  if (yes && focused === send) stop.focus();
  if (!yes && focused === stop) send.focus();
}

// Legend and plots, at most once a frame, or twice a second where motion is unwanted.
function redraw() {
  if (pending) return;
  pending = true;
  const soon = matchMedia("(prefers-reduced-motion: reduce)").matches ? (work) => setTimeout(work, 500) : requestAnimationFrame;
  soon(() => {
    pending = false;
    if (!current) return;
    showLegend();
    const { speculative, plain } = current.answers;
    byId("plots").hidden = !speculative.steps.length && !plain.steps.length;
    linePlot(byId("rate-plot"), [
      { name: "plain", cls: "plain", points: plain.rates },
      { name: "speculation", cls: "speculative", points: speculative.rates },
    ], "seconds since the first token", "Tokens per second over the last second, of both answers");
    stepPlot(byId("step-plot"), speculative.steps);
  });
}

let marked = null;

function inspect(answer, index) {
  marked?.mark(null);
  marked = answer;
  answer?.mark(index);
  byId("inspector").hidden = !answer;
  if (!answer) return;
  const step = answer.steps[index];
  byId("inspector-title").textContent = `Step ${index + 1} of ${answer.steps.length}, ${answer.title.toLowerCase()}`;
  byId("step-words").textContent = inWords(step);
  drawTree(byId("tree"), step, answer.before(index));
}

const keep = () => sessionStorage.setItem(TYPED, prompt.value);

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); answerTwice(); });
byId("ask").addEventListener("invalid", (event) => { if (event.target !== prompt) byId("settings").open = true; }, true);
byId("settings").addEventListener("input", describe);
prompt.addEventListener("input", keep);
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else inspect(null);
});
byId("examples").addEventListener("click", (event) => {
  if (event.target.matches("button")) prompt.value = event.target.textContent;
  keep();
  prompt.focus();
});
stop.addEventListener("click", () => running?.abort());
byId("close").addEventListener("click", () => inspect(null));
byId("new").addEventListener("click", () => {
  finished.length = 0;
  current = null;
  inspect(null);
  byId("turns").replaceChildren();
  byId("plots").hidden = true;
  busy(false);
  prompt.focus();
});
byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setKey(byId("key").value);
  byId("key").value = "";
  error.hidden = true;
  await refresh();
  if (byId("key-form").hidden) prompt.focus();
  else fail("That key is not one of this server's.");
});

prompt.value = sessionStorage.getItem(TYPED) ?? "";
await refresh();
describe();

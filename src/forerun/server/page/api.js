// What the server is asked: its health, and answers as streams of server-sent events.

const KEY = "forerun.key";

export const setKey = (key) => sessionStorage.setItem(KEY, key);

// A failure that can be shown: its message is a sentence.
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function health() {
  const answer = await ask("health", {});
  // A server that is stopping or stalled answers 503, and says all the same what it is.
  return answer.json();
}

// The chunks of a streamed answer. Ends early with an AbortError when `signal` says so.
export async function* chat(body, signal) {
  const answer = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!answer.ok) throw await failure(answer);
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(answer.status, chunk.error.message);
    yield chunk;
  }
  throw new ServerError(0, "the connection ended before the answer did; is the server still running?");
}

async function ask(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "the server cannot be reached; is it still running?");
  }
}

async function failure(answer) {
  let message = `the server answered ${answer.status} ${answer.statusText}`;
  try {
    message = (await answer.json()).error.message;
  } catch { /* not every proxy in between answers in JSON */ }
  const wait = answer.headers.get("Retry-After");
  return new ServerError(answer.status, wait ? `${message} (try again in ${wait} s)` : message);
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (kept + value).split("\n\n");
      kept = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "the connection broke off; is the server still running?");
  } finally {
    reader.cancel().catch(() => {});
  }
}

import { keyed } from "/web/key.js";

// Yields the data and the id of each server-sent event of a fetch response.
export async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let id = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      // The server sends one data line per message, after its id.
      for (const line of lines) {
        if (line.startsWith("id:")) id = line.slice(3).trim();
        if (!line.startsWith("data:")) continue;
        yield { id, data: line.slice(5).trim() };
        id = "";
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const patience = 30000; // how long to reconnect after a lost connection, in ms

// stream posts a chat request and yields its chunks. It throws an Error with the server's message. If
// the connection is lost it resumes the answer on a new one, if the server supports that. Otherwise an
// answer without [DONE] is incomplete.
export async function* stream(request, signal) {
  let response = await keyed("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true }, stream_resume: "auto" }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  const path = response.headers.has("Millrace-Id") && `/v1/streams/${response.headers.get("Millrace-Id")}`;
  let last = ""; // id of the last complete event
  let since = 0; // chunks after it, which a resumed stream repeats
  let ended = false;
  try {
    for (;;) {
      let skip = response.again ? since : 0;
      try {
        for await (const { id, data } of messages(response.body)) {
          if (data === "[DONE]") {
            ended = true;
            return;
          }
          const chunk = JSON.parse(data);
          if (chunk.error?.code === "moved") break;
          if (chunk.error) {
            ended = true;
            throw new Error(chunk.error.message);
          }
          if (skip > 0) {
            skip--;
            continue;
          }
          [last, since] = id ? [id, 0] : [last, since + 1];
          yield chunk;
        }
      } catch (error) {
        if (ended || !path || error.name === "AbortError") throw error;
      }
      if (!path) throw new Error("The connection was lost before the answer's end.");
      response = await again(path, last, signal);
    }
  } finally {
    if (path && !ended) keyed(path, { method: "DELETE", keepalive: true }).catch(() => {});
  }
}

// again requests the rest of an answer until the server responds.
async function again(path, last, signal) {
  for (const begin = Date.now(); ; await new Promise((done) => setTimeout(done, 500))) {
    try {
      const response = await keyed(path, { headers: last ? { "Last-Event-ID": last } : {}, signal });
      if (response.ok) return Object.assign(response, { again: true });
      if (response.status < 500 || Date.now() - begin > patience) throw Object.assign(await refusal(response), { said: true });
    } catch (error) {
      if (error.said || error.name === "AbortError" || Date.now() - begin > patience) throw error;
    }
  }
}

async function refusal(response) {
  let words = `The server answered ${response.status}.`;
  try {
    words = (await response.json()).error.message;
  } catch {
    // not in the expected form: report the status only
  }
  const wait = response.headers.get("Retry-After");
  return new Error(wait ? `${words} (try again in ${wait} s)` : words);
}

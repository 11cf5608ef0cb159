// Server-sent events from a fetch response: yields the data of each message.
export async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      // The server sends one data line per message, so a line is a message.
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// stream posts a chat request and yields its chunks. It throws an Error with the
// server's own words; one that ends without [DONE] was cut.
export async function* stream(request, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of messages(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  throw new Error("The connection was lost before the answer's end.");
}

async function refusal(response) {
  let words = `The server answered ${response.status}.`;
  try {
    words = (await response.json()).error.message;
  } catch {
    // not in the expected shape: the status is all there is to say
  }
  const wait = response.headers.get("Retry-After");
  return new Error(wait ? `${words} (try again in ${wait} s)` : words);
}

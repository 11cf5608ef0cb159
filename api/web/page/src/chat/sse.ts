// Server-sent events, as Millrace sends them: an optional id, then one data line, for each message.

export interface Message {
  id: string; // "": none
  data: string;
}

/** messages yields the events of a body. */
export async function* messages(body: ReadableStream<Uint8Array>): AsyncGenerator<Message> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  let id = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
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

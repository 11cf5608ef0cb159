// Requests an answer and reads it to its end, over several connections if the server keeps it.
import { keyed, refusal, Refusal } from "../key";
import { messages } from "./sse";

export interface ChatDelta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
  completion_tokens_details?: { reasoning_tokens?: number } | null;
}

export interface Chunk {
  id: string;
  choices: { delta: ChatDelta; finish_reason: string | null }[];
  usage?: Usage | null;
  error?: { message: string; code?: string };
}

/** Reader is notified of what a stream has besides chunks. */
export interface Reader {
  signal: AbortSignal;
  /** resumable gets the id of a call that the server keeps, "" of another one. */
  resumable(id: string): void;
  /** waiting says that the connection is lost and a new one is being opened, or that it is there. */
  waiting(on: boolean): void;
}

const patience = 30_000; // how long to reconnect after a lost connection, in ms

/** Numbered is a chunk with the number of the last event in it, 0 if it is not known. */
export interface Numbered {
  chunk: Chunk;
  events: number;
}

/** ask posts a chat request and yields the chunks of its answer. It throws a Refusal with the server's message. */
export async function* ask(request: object, reader: Reader): AsyncGenerator<Numbered> {
  const response = await keyed("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true }, stream_resume: "auto" }),
    signal: reader.signal,
  });
  if (!response.ok) throw await refusal(response);
  const id = response.headers.get("Millrace-Id") ?? "";
  reader.resumable(id);
  yield* follow(id, response, reader);
}

/** resume yields all chunks of an answer that the server keeps, from the first one. */
export async function* resume(id: string, reader: Reader): AsyncGenerator<Numbered> {
  yield* follow(id, await open(id, "", reader), reader);
}

/** follow reads an answer. A lost connection is replaced if the answer has an id; otherwise the answer is incomplete. */
async function* follow(id: string, response: Response, reader: Reader): AsyncGenerator<Numbered> {
  let last = ""; // id of the last complete event
  let since = 0; // chunks after it, which a resumed stream repeats
  let again = false;
  let ended = false;
  try {
    for (;;) {
      let skip = again ? since : 0;
      try {
        for await (const m of messages(response.body!)) {
          if (m.data === "[DONE]") {
            ended = true;
            return;
          }
          const chunk: Chunk = JSON.parse(m.data);
          if (chunk.error?.code === "moved") break;
          if (chunk.error) {
            ended = true;
            throw new Refusal(200, chunk.error.message);
          }
          if (skip > 0) {
            skip--;
            continue;
          }
          [last, since] = m.id ? [m.id, 0] : [last, since + 1];
          yield { chunk, events: Number(last) };
        }
      } catch (error) {
        if (ended || !id || reader.signal.aborted) throw error;
      }
      if (!id) throw new Error("The connection was lost before the end of the answer.");
      reader.waiting(true);
      response = await open(id, last, reader);
      reader.waiting(false);
      again = true;
    }
  } finally {
    if (id && !ended) cancel(id);
  }
}

/** cancel ends an answer that nobody reads any more. */
function cancel(id: string): void {
  keyed(`/v1/streams/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
}

/** open requests the rest of an answer until a server responds. */
async function open(id: string, last: string, reader: Reader): Promise<Response> {
  const headers: HeadersInit = last ? { "Last-Event-ID": last } : {};
  for (const begin = Date.now(); ; await new Promise((done) => setTimeout(done, 500))) {
    const late = () => Date.now() - begin > patience;
    try {
      const response = await keyed(`/v1/streams/${id}`, { headers, signal: reader.signal });
      if (response.ok) return response;
      if (response.status < 500 || late()) throw await refusal(response);
    } catch (error) {
      if (error instanceof Refusal || reader.signal.aborted || late()) throw error;
    }
  }
}

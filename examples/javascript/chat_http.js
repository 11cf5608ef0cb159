// Chats over HTTP with OpenAI's client: a stream, a stream that is cancelled, and a stream that survives its connection.
//
//   npm install openai
//   node examples/javascript/chat_http.js [http://127.0.0.1:8080]

import { randomUUID } from "node:crypto";
import OpenAI from "openai";

const url = process.argv[2] ?? "http://127.0.0.1:8080";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" }); // or an API key, where the server has some
const model = (await client.models.list()).data[0].id;
const print = (text) => process.stdout.write(text);

// question returns a streamed request of one question. Temperature 0 takes the most likely token every time.
// Fields that OpenAI's API does not have, such as ignore_eos, are sent as they are.
function question(text, fields = {}) {
  return { model, messages: [{ role: "user", content: text }], temperature: 0, stream: true, ...fields };
}

// textOf returns the text that a chunk adds. The first chunk (the role) and the last one (finish_reason) add none.
function textOf(chunk) {
  return chunk.choices[0]?.delta.content ?? "";
}

// stream prints an answer while the server makes it.
async function stream() {
  print("stream: ");
  for await (const chunk of await client.chat.completions.create(question("What is the capital of the US?"))) {
    print(textOf(chunk));
  }
  print("\n");
}

// cancel reads the beginning of a long answer. Leaving the loop, or answer.controller.abort(), cancels the request.
async function cancel() {
  const answer = await client.chat.completions.create(question("Tell me a story.", { max_tokens: 2000, ignore_eos: true }));
  for await (const chunk of answer) {
    if (textOf(chunk)) {
      print(`cancel: ${textOf(chunk)}\n`);
      break;
    }
  }
}

// resume reads one answer over two connections. The server keeps the answer of a request with stream_resume when the
// connection is lost. The same request with the same request_id does not run again, here or at another gateway: it
// returns the same answer from its beginning.
async function resume() {
  const request = question("Count from 1 to 10.", { stream_resume: true, request_id: randomUUID() });
  print("resume: ");
  let seen = "";
  for await (const chunk of await client.chat.completions.create(request)) {
    seen += textOf(chunk);
    if (seen) break; // the connection is lost: a program catches OpenAI.APIConnectionError
  }
  print(seen);

  let again = 0;
  for await (const chunk of await client.chat.completions.create(request)) {
    const text = textOf(chunk);
    print(text.slice(Math.max(seen.length - again, 0)));
    again += text.length;
  }
  print("\n");
}

await stream();
await cancel();
await resume();

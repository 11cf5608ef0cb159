// Chats over NATS: a stream, a stream that is cancelled, and a stream that survives its connection.
// docs/api.md describes the subjects and the headers.
//
//   npm install @nats-io/transport-node
//   node examples/javascript/chat_nats.js [nats://127.0.0.1:4222]

import { connect, createInbox } from "@nats-io/transport-node";

const servers = process.argv[2] ?? "nats://127.0.0.1:4222";
const chat = "millrace.v1.chat.completions";
const print = (text) => process.stdout.write(text);

// question returns a streamed request of one question. Temperature 0 takes the most likely token every time.
function question(text, fields = {}) {
  return { messages: [{ role: "user", content: text }], temperature: 0, stream: true, ...fields };
}

// receive sends a request and yields the headers and the text of each message of the answer.
async function* receive(nc, subject, request) {
  const inbox = nc.subscribe(createInbox(), { timeout: 10_000 }); // a server that lives is silent for one second at most
  try {
    nc.publish(subject, JSON.stringify(request), { reply: inbox.getSubject() });
    let last;
    for await (const message of inbox) {
      const { headers } = message;
      if (headers?.code === 503) throw new Error(`no server listens on ${subject}`);
      if (headers?.has("Nats-Service-Error-Code")) throw new Error(message.json().error.message);
      if (headers?.has("Millrace-Ping")) continue;
      const number = Number(headers.get("Millrace-Seq"));
      if (last !== undefined && number !== last + 1) { // NATS delivers at most once
        throw new Error(`found message ${number}, expected ${last + 1}`);
      }
      last = number;
      const choices = message.data.length > 0 ? message.json().choices : [];
      yield { headers, text: choices.map((choice) => choice.delta.content ?? "").join("") };
      if (headers.has("Millrace-End")) return;
    }
  } finally {
    inbox.unsubscribe();
  }
}

// stream prints an answer while the server makes it.
async function stream(nc) {
  print("stream: ");
  for await (const { text } of receive(nc, chat, question("What is the capital of the US?"))) print(text);
  print("\n");
}

// cancel reads the beginning of a long answer, then cancels the request.
async function cancel(nc) {
  let subject;
  for await (const { headers, text } of receive(nc, chat, question("Tell me a story.", { max_tokens: 2000, ignore_eos: true }))) {
    subject ??= headers.get("Millrace-Cancel"); // of the first message
    if (text) {
      print(`cancel: ${text}\n`);
      nc.publish(subject);
      break;
    }
  }
}

// resume reads one answer over two connections: the server keeps the answer of a request with stream_resume.
async function resume() {
  print("resume: ");
  let nc = await connect({ servers });
  let id, after;
  for await (const { headers, text } of receive(nc, chat, question("Count from 1 to 10.", { stream_resume: true }))) {
    id ??= headers.get("Millrace-Id"); // of the first message
    after = Number(headers.get("Millrace-Seq"));
    print(text);
    if (text) break;
  }
  await nc.close(); // as if the connection were lost

  nc = await connect({ servers });
  for await (const { text } of receive(nc, "millrace.v1.streams.resume", { id, after })) print(text);
  print("\n");
  await nc.close();
}

const nc = await connect({ servers });
await stream(nc);
await cancel(nc);
await nc.close();
await resume();

// Starts the processes that the browser talks to, on free ports of the loopback interface.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";

const root = path.resolve(import.meta.dirname, "../../../..");
const program = process.env.MILLRACE ?? path.join(root, "bin/millrace");
const patience = 60_000; // ms until a server is ready

export const until = async (what, check, limit = patience) => {
  for (const end = Date.now() + limit; ; await new Promise((done) => setTimeout(done, 50))) {
    if (await check()) return;
    if (Date.now() > end) throw new Error(`not within ${limit} ms: ${what}`);
  }
};

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Servers are the processes of a test. */
export class Servers {
  #all = [];
  #proxies = [];

  static async open() {
    const s = new Servers();
    s.dir = await mkdtemp(path.join(tmpdir(), "millrace-page-"));
    return s;
  }

  /** start runs `millrace serve` with the demo model's tokenizer until it is ready. */
  async start(...args) {
    const [http, nats] = [await freePort(), await freePort()];
    const s = { url: `http://127.0.0.1:${http}`, port: http, nats: `nats://127.0.0.1:${nats}`, log: "" };
    const flags = ["serve", "--model", path.join(root, "models/tiny-chat"), "--listen", `127.0.0.1:${http}`, "--kv-memory", "64MiB", "--data-dir", path.join(this.dir, String(http))];
    if (!args.includes("--nats")) flags.push("--nats-listen", `127.0.0.1:${nats}`);
    s.process = spawn(program, [...flags, ...args], { stdio: ["ignore", "ignore", "pipe"] });
    s.process.stderr.on("data", (text) => (s.log += text));
    s.ended = once(s.process, "exit");
    this.#all.push(s);
    await until(`${s.url} is ready; its log:\n${s.log}`, async () => {
      if (s.process.exitCode !== null) throw new Error(`the server ended with ${s.process.exitCode}; its log:\n${s.log}`);
      return fetch(`${s.url}/health/ready`).then((r) => r.ok, () => false);
    });
    return s;
  }

  async kill(s) {
    s.process.kill("SIGKILL");
    await s.ended;
  }

  /** slow writes the file of a simulated device, for --device: about 70 tokens a second, and no answer ends by itself. */
  async slow() {
    const file = path.join(this.dir, "slow.json");
    await writeFile(file, JSON.stringify({ base: "cpu", gbps: 1, tflops: 0.1, answer_tokens: 0 }));
    return file;
  }

  /** balance listens at a port and passes connections to the first server that accepts them. */
  async balance(...servers) {
    const proxy = net.createServer((client) => {
      const join = ([s, ...rest]) => {
        if (!s) return void client.destroy();
        const server = net.connect(s.port, "127.0.0.1");
        let connected = false;
        server.on("connect", () => {
          connected = true;
          client.pipe(server).pipe(client);
        });
        server.on("error", () => !connected && join(rest));
        server.on("close", () => connected && client.destroy());
        client.on("close", () => server.destroy());
      };
      client.on("error", () => client.destroy());
      join(servers);
    }).listen(0, "127.0.0.1");
    await once(proxy, "listening");
    this.#proxies.push(proxy);
    return `http://127.0.0.1:${proxy.address().port}`;
  }

  async close() {
    for (const proxy of this.#proxies) proxy.close();
    await Promise.all(this.#all.filter((s) => s.process.exitCode === null && s.process.signalCode === null).map((s) => this.kill(s)));
    await rm(this.dir, { recursive: true, force: true });
  }
}

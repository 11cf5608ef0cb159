// Runs the cases of a suite against the server of BASE_URL. A case is a function, sync or async, that asserts.
import { readFileSync } from "node:fs";

export const baseURL = (process.env.BASE_URL ?? "http://127.0.0.1:8080") + "/v1";
export const model = process.env.MODEL ?? "tiny-chat";
export const apiKey = "none";
export const question = "What is the capital of France?";
export const answer = "Paris";
export const turns = [{ role: "system", content: "You are helpful." }, { role: "user", content: question }];

// run runs all cases, prints those that failed, and sets the exit code to 1 if there are any.
export async function run(name, cases) {
  let failed = 0;
  for (const [what, check] of Object.entries(cases)) {
    try {
      await check();
    } catch (e) {
      failed++;
      console.log(`FAILED ${name}: ${what}\n${e.stack}`);
    }
  }
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
  console.log(`${name} ${version}: ${Object.keys(cases).length} cases, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}

// The API key, if the server requires one. It is kept for this tab only and sent to the page's own server only.
import { signal } from "@preact/signals";
import { read, write } from "./stored";

const name = "millrace.key";

export const key = signal(read("session", name));

export function keepKey(value: string): void {
  key.value = value.trim();
  write("session", name, key.value);
}

/** keyed is fetch with the API key. */
export function keyed(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  if (key.value) headers.set("Authorization", `Bearer ${key.value}`);
  return fetch(path, { ...options, headers });
}

/** Refusal is an answer of the server that is an error. */
export class Refusal extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

/** refusal reads the server's message, and when to try again. */
export async function refusal(response: Response): Promise<Refusal> {
  let words = `The server answered ${response.status}.`;
  const text = (await response.text().catch(() => "")).trim();
  try {
    words = JSON.parse(text).error.message ?? words;
  } catch {
    if (text && text.length < 500) words = text;
  }
  const wait = response.headers.get("Retry-After");
  return new Refusal(response.status, wait ? `${words} (try again in ${wait} s)` : words);
}

/** reason is the text of anything that was thrown. */
export function reason(error: unknown): string {
  if (error instanceof TypeError) return "The server does not answer.";
  return error instanceof Error ? error.message : String(error);
}

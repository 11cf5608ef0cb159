// Conversations in the browser's IndexedDB. Without it they last until the page is closed.
import { readSettings } from "./settings";
import type { Conversation } from "./tree";

const name = "millrace";
const store = "conversations";

let opened: Promise<IDBDatabase | null> | undefined;

function database(): Promise<IDBDatabase | null> {
  opened ??= new Promise((done) => {
    try {
      const request = indexedDB.open(name, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(store, { keyPath: "id" });
      request.onsuccess = () => done(request.result);
      request.onerror = () => done(null);
      request.onblocked = () => done(null);
    } catch {
      done(null);
    }
  });
  return opened;
}

/** run resolves with the result of a request to the store, undefined if it fails. */
async function run<T>(mode: IDBTransactionMode, request: (s: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> {
  const db = await database();
  if (!db) return undefined;
  return new Promise((done) => {
    const r = request(db.transaction(store, mode).objectStore(store));
    r.onsuccess = () => done(r.result);
    r.onerror = () => done(undefined);
  });
}

/** all returns the conversations, the one that changed last first. */
export async function all(): Promise<Conversation[]> {
  const list = (await run<Conversation[]>("readonly", (s) => s.getAll())) ?? [];
  return list.map((c) => ({ ...c, settings: readSettings(c.settings) })).sort((a, b) => b.updated - a.updated);
}

export async function put(c: Conversation): Promise<void> {
  await run("readwrite", (s) => s.put(c));
}

export async function remove(id: string): Promise<void> {
  await run("readwrite", (s) => s.delete(id));
}

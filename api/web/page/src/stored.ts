// What the page keeps in the browser besides conversations. Without storage, values last until the page is closed.

export function read(storage: "local" | "session", name: string): string {
  try {
    return (storage === "local" ? localStorage : sessionStorage).getItem(name) ?? "";
  } catch {
    return "";
  }
}

export function write(storage: "local" | "session", name: string, value: string): void {
  try {
    const s = storage === "local" ? localStorage : sessionStorage;
    if (value) s.setItem(name, value);
    else s.removeItem(name);
  } catch {
    // no storage
  }
}

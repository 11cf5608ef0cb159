// Text files as quoted text of a message. All functions are pure but quoted, which reads the file.

const most = 256 * 1024; // bytes of a file: more than the context of most models

const languages: Record<string, string> = { py: "python", js: "javascript", ts: "typescript", rs: "rust", sh: "bash", yml: "yaml", h: "c", cc: "cpp", hpp: "cpp", md: "markdown" };

/** fenced quotes a text as a block of code with the file's name before it. The fence is longer than any in the text. */
export function fenced(name: string, text: string): string {
  const longest = Math.max(0, ...[...text.matchAll(/`+/g)].map((m) => m[0].length));
  const fence = "`".repeat(Math.max(3, longest + 1));
  const end = /\.([a-z0-9]{1,10})$/i.exec(name)?.[1]?.toLowerCase() ?? "";
  return `${name}:\n\n${fence}${languages[end] ?? end}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** refused says why a file is not read; "": it is. */
export function refused(name: string, type: string, size: number): string {
  if (/^(image|audio|video)\//.test(type)) return `${name}: found ${type}, expected text: the model reads text only`;
  if (size > most) return `${name}: found ${Math.ceil(size / 1024).toLocaleString()} KiB, expected at most ${most / 1024} KiB`;
  return "";
}

/** textOf decodes a file. It throws an Error if the file is no text. */
export function textOf(name: string, bytes: Uint8Array): string {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes).replace(/\r\n?/g, "\n");
    if (!text.includes("\0")) return text;
  } catch {
    // the same as a text with a zero
  }
  throw new Error(`${name}: found bytes that are not UTF-8 text, expected a text file`);
}

/** quoted reads a file and quotes it. A file that is too large is not read. */
export async function quoted(file: File): Promise<string> {
  const name = file.name.replace(/[\r\n`]+/g, " ");
  const wrong = refused(name, file.type, file.size);
  if (wrong) throw new Error(wrong);
  return fenced(name, textOf(name, new Uint8Array(await file.arrayBuffer())));
}

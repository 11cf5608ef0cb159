// Conversations as files.
import { branch, title, type Conversation, type Turn } from "./tree";

const names: Record<Turn["role"], string> = { user: "You", assistant: "Model", tool: "Tool" };

/** markdown is the shown branch of a conversation as a document. */
export function markdown(c: Conversation): string {
  const parts = [`# ${title(c)}`];
  if (c.settings.system.trim()) parts.push("## System prompt", c.settings.system.trim());
  for (const t of branch(c)) {
    parts.push(`## ${names[t.role]}${t.model ? ` (${t.model})` : ""}`);
    if (t.reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${t.reasoning.trim()}\n\n</details>`);
    if (t.content) parts.push(t.content.trim());
    for (const call of t.calls ?? []) parts.push(`\`${call.name}\`\n\n\`\`\`json\n${call.arguments}\n\`\`\``);
    if (t.error) parts.push(`*Error: ${t.error}*`);
  }
  return `${parts.join("\n\n")}\n`;
}

/** fileName is the name of a conversation's file, without its end. */
export function fileName(c: Conversation): string {
  const words = title(c).toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
  return words.slice(0, 50) || "conversation";
}

/** save offers a text as a download. */
export function save(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const a = document.createElement("a");
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

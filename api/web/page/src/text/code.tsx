// A block of code, with colors and a button that copies it.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Icon } from "../icons";

type Colored = ComponentChildren;
type Highlighter = (text: string, lang: string) => Colored | undefined;

let highlighter: Promise<Highlighter> | undefined;
const longest = 50_000; // characters of code with colors
const longestLive = 4_000; // of code that still grows

/** CodeBlock shows code. The highlighter is loaded with the first block. */
export function CodeBlock({ text, lang, live = false }: { text: string; lang: string; live?: boolean }) {
  const name = lang.trim().split(/[\s{,]/)[0]!.toLowerCase();
  const [highlight, setHighlight] = useState<{ run: Highlighter }>();
  useEffect(() => {
    if (!name) return;
    highlighter ??= import("./highlight").then((m) => m.highlight);
    let there = true;
    highlighter.then((run) => there && setHighlight({ run }), () => {});
    return () => {
      there = false;
    };
  }, [name]);
  const colored = name && text.length < (live ? longestLive : longest) ? highlight?.run(text, name) : undefined;
  return (
    <div class="code">
      <div class="bar">
        <span>{name || "text"}</span>
        <CopyButton text={text} label="Copy code" />
      </div>
      <pre tabIndex={0} aria-label={name ? `Code, ${name}` : "Code"}>
        <code>{colored ?? text}</code>
      </pre>
    </div>
  );
}

/** CopyButton copies a text, and says so for a moment. */
export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async () => setCopied(await toClipboard(text));
  return (
    <button type="button" class="tiny" aria-label={copied ? "Copied" : label} title={copied ? "Copied" : label} onClick={copy}>
      <Icon name={copied ? "check" : "copy"} />
    </button>
  );
}

/** toClipboard also works without a secure context, where browsers have no clipboard interface. */
async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

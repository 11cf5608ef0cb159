// Markdown as tokens: GitHub's form, with math between $, $$, \( \) and \[ \]. It must not know the document.
import { Marked, type MarkedExtension, type Token, type Tokens } from "marked";

export interface MathToken extends Tokens.Generic {
  type: "math";
  text: string;
  display: boolean;
}

export const math: MarkedExtension = {
  extensions: [
    {
      name: "displayMath",
      level: "block",
      start: (src) => src.match(/(^|\n) {0,3}(\$\$|\\\[)/)?.index,
      tokenizer: (src) => {
        const m = /^ {0,3}(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n|$)/.exec(src);
        return m ? { type: "math", raw: m[0], text: (m[1] ?? m[2])!.trim(), display: true } : undefined;
      },
    },
    {
      name: "inlineMath",
      level: "inline",
      start: (src) => src.match(/\$|\\[([]/)?.index,
      tokenizer: (src) => {
        // A dollar sign before a digit and with none after it is money: the text has no space inside of the signs.
        const m =
          /^\$\$([^$]+?)\$\$/.exec(src) ?? /^\\\[([^]+?)\\\]/.exec(src) ?? /^\$(?!\s)((?:[^$\\\n]|\\.)+?)(?<!\s)\$(?!\d)/.exec(src) ?? /^\\\(([^]+?)\\\)/.exec(src);
        if (!m) return undefined;
        return { type: "math", raw: m[0], text: m[1]!.trim(), display: m[0].startsWith("$$") || m[0].startsWith("\\[") };
      },
    },
  ],
};

const marked = new Marked({ gfm: true, breaks: false, async: false }, math);

/** lex returns the blocks of a text. A text that the parser cannot take is one paragraph. */
export function lex(text: string): Token[] {
  try {
    return marked.lexer(text);
  } catch {
    return [{ type: "text", raw: text, text }];
  }
}

/** address returns the address of a link if a page may offer it, undefined otherwise. */
export function address(href: string): string | undefined {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : undefined;
  } catch {
    return undefined; // relative ones would lead into this server
  }
}

const entities: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", mdash: "—", ndash: "–", hellip: "…" };

/** decoded replaces the character references that models write. The result is text, not markup. */
export function decoded(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,6}));/gi, (all, decimal, hex, name) => {
    if (name) return entities[name.toLowerCase()] ?? all;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : all;
  });
}

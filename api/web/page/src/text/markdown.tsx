// Markdown of a model, which is hostile text. Its tokens become elements one by one: no markup is ever parsed, so there is
// nothing to sanitize. HTML is shown as text, images are links, and links lead to web and mail addresses only.
import type { Token, Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { memo } from "preact/compat";
import { useMemo } from "preact/hooks";
import { CodeBlock } from "./code";
import { Formula } from "./math";
import { address, decoded, lex, type MathToken } from "./tokens";

const deepest = 24; // levels of nested blocks; deeper text is shown as it is

/** Markdown shows a text. Blocks that have not changed are not drawn again while it grows. */
export function Markdown({ text, live = false }: { text: string; live?: boolean }) {
  const blocks = useMemo(() => lex(text).filter((t) => t.type !== "space"), [text]);
  return (
    <div class="md">
      {blocks.map((t, i) => (
        <Block key={i} raw={t.raw} token={t} live={live && i === blocks.length - 1} />
      ))}
    </div>
  );
}

const Block = memo(
  ({ token, live }: { raw: string; token: Token; live: boolean }) => <>{block(token, 0, live)}</>,
  (a, b) => a.raw === b.raw && a.token.type === b.token.type && a.live === b.live,
);

function blocks(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return tokens?.map((t) => block(t, depth));
}

function block(token: Token, depth: number, live = false): ComponentChildren {
  if (depth > deepest) return token.raw;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      const H = `h${Math.min((token as Tokens.Heading).depth + 2, 6)}` as "h3";
      return <H class={`h${(token as Tokens.Heading).depth}`}>{inline(token.tokens, depth)}</H>;
    }
    case "paragraph":
      return <p>{inline(token.tokens, depth)}</p>;
    case "code":
      return <CodeBlock text={token.text} lang={(token as Tokens.Code).lang ?? ""} live={live} />;
    case "math":
      return <Formula text={(token as MathToken).text} display={(token as MathToken).display} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens, depth + 1)}</blockquote>;
    case "hr":
      return <hr />;
    case "list": {
      const list = token as Tokens.List;
      const items = list.items.map((item, i) => (
        <li key={i} class={item.task ? "task" : undefined}>
          {item.task && <input type="checkbox" disabled checked={item.checked} aria-label={item.checked ? "done" : "to do"} />}
          {blocks(item.tokens.filter((t) => t.type !== "checkbox"), depth + 1)}
        </li>
      ));
      return list.ordered ? <ol start={list.start === "" ? 1 : list.start}>{items}</ol> : <ul>{items}</ul>;
    }
    case "table":
      return <Table token={token as Tokens.Table} depth={depth} />;
    case "text":
      return token.tokens ? inline(token.tokens, depth) : decoded(token.text);
    default: // html, and what an extension may add
      return <p>{token.raw.trim()}</p>;
  }
}

function Table({ token, depth }: { token: Tokens.Table; depth: number }) {
  const align = (i: number) => (token.align[i] ? `to-${token.align[i]}` : undefined);
  return (
    <div class="table" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>{token.header.map((cell, i) => <th key={i} scope="col" class={align(i)}>{inline(cell.tokens, depth)}</th>)}</tr>
        </thead>
        <tbody>
          {token.rows.map((row, k) => (
            <tr key={k}>{row.map((cell, i) => <td key={i} class={align(i)}>{inline(cell.tokens, depth)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return tokens?.map((t) => inlineOne(t, depth + 1));
}

function inlineOne(token: Token, depth: number): ComponentChildren {
  if (depth > deepest) return token.raw;
  switch (token.type) {
    case "text":
      return token.tokens ? inline(token.tokens, depth) : decoded(token.text);
    case "escape":
      return token.text;
    case "strong":
      return <strong>{inline(token.tokens, depth)}</strong>;
    case "em":
      return <em>{inline(token.tokens, depth)}</em>;
    case "del":
      return <del>{inline(token.tokens, depth)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "math":
      return <Formula text={(token as MathToken).text} display={(token as MathToken).display} />;
    case "link":
      return <Link href={token.href}>{inline(token.tokens, depth)}</Link>;
    case "image":
      return <Link href={token.href}>{token.text || "image"}</Link>;
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw.trim()) ? <br /> : token.raw;
    default:
      return token.raw;
  }
}

function Link({ href, children }: { href: string; children: ComponentChildren }) {
  const to = address(href);
  if (!to) return <span title={href}>{children}</span>;
  return (
    <a href={to} target="_blank" rel="noopener noreferrer nofollow" title={to}>
      {children}
    </a>
  );
}

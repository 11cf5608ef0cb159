import { useSignal } from "@preact/signals";
import { memo } from "preact/compat";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../icons";
import { CodeBlock, CopyButton } from "../text/code";
import { Markdown } from "../text/markdown";
import { describe, speed, total } from "./answer";
import { fit } from "./composer";
import { again, busy, edit, proceedWith, results, running, showBranch } from "./store";
import type { Settings } from "./settings";
import { continuable, siblings, type Conversation, type ToolCall, type Turn } from "./tree";

/** Message is a turn: a running answer as it is now, others as the conversation has them. */
export function Message({ c, turn }: { c: Conversation; turn: Turn }) {
  const live = running.value.get(turn.id);
  const now = live?.turn.value ?? turn;
  const others = siblings(c, turn);
  if (turn.role === "user") return <Question turn={turn} others={others} />;
  if (turn.role === "tool") return <Result c={c} turn={turn} />;
  const answered = c.turns.some((t) => t.parent === turn.id);
  return <Answer turn={now} others={others} running={live !== undefined} waiting={live?.waiting.value ?? false} answered={answered} format={c.settings.format} />;
}

function Question({ turn, others }: { turn: Turn; others: Turn[] }) {
  const editing = useSignal(false);
  if (editing.value) return <Editor turn={turn} close={() => (editing.value = false)} />;
  return (
    <article class="turn user" aria-label="You">
      <div class="bubble">{turn.content}</div>
      <div class="actions">
        <Branches turn={turn} others={others} />
        <CopyButton text={turn.content} label="Copy question" />
        <button type="button" class="tiny" data-edit aria-label="Edit question" title="Edit; the answer begins a new branch" disabled={busy.value} onClick={() => (editing.value = true)}>
          <Icon name="edit" />
        </button>
      </div>
    </article>
  );
}

function Editor({ turn, close }: { turn: Turn; close: () => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    fit(field.current!);
    field.current!.focus();
    field.current!.setSelectionRange(turn.content.length, turn.content.length);
  }, []);
  const send = (e: Event) => {
    e.preventDefault();
    edit(turn, field.current!.value);
    close();
  };
  return (
    <article class="turn user editing" aria-label="You, editing">
      <form onSubmit={send}>
        <textarea ref={field} aria-label="Question" defaultValue={turn.content} rows={1} onInput={(e) => fit(e.currentTarget)}
          onKeyDown={(e) => {
            if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e);
            if (e.key === "Escape") {
              e.stopPropagation();
              close();
            }
          }} />
        <div class="buttons">
          <button type="button" class="quiet" onClick={close}>Cancel</button>
          <button type="submit" class="main">Send</button>
        </div>
      </form>
    </article>
  );
}

/** Branches switches between the variants of a turn. */
function Branches({ turn, others }: { turn: Turn; others: Turn[] }) {
  if (others.length < 2) return null;
  const at = others.findIndex((t) => t.id === turn.id);
  const to = (i: number, name: string, icon: "left" | "right") => (
    <button type="button" class="tiny" aria-label={name} title={name} disabled={busy.value || !others[i]} onClick={() => showBranch(others[i]!)}>
      <Icon name={icon} />
    </button>
  );
  return (
    <span class="branches" role="group" aria-label="Variants">
      {to(at - 1, "Earlier variant", "left")}
      <span aria-label={`${at + 1} of ${others.length}`}>{at + 1}/{others.length}</span>
      {to(at + 1, "Later variant", "right")}
    </span>
  );
}

interface AnswerProps {
  turn: Turn;
  others: Turn[];
  running: boolean;
  waiting: boolean;
  answered: boolean;
  format: Settings["format"];
}

function Answer({ turn, others, running, waiting, answered, format }: AnswerProps) {
  const more = !answered && continuable(turn, format);
  const empty = !turn.content && !turn.reasoning && !turn.calls;
  return (
    <article class={`turn assistant${running ? " live" : ""}`} aria-label="Model" aria-busy={running}>
      {turn.reasoning && <Reasoning text={turn.reasoning} running={running && !turn.content && !turn.calls} />}
      {turn.content && <Body text={turn.content} live={running} />}
      {turn.calls?.map((call, i) => <Call key={i} call={call} running={running} />)}
      {running && empty && <p class="thinking" aria-hidden="true"><span /><span /><span /></p>}
      {running && waiting && <p class="waiting">The connection is lost. Reconnecting…</p>}
      {turn.state === "failed" && (
        <div class="error" role="alert">
          <span>{turn.error}</span>
          <button type="button" disabled={busy.value} onClick={() => (more ? proceedWith(turn) : again(turn))}>Try again</button>
        </div>
      )}
      {!running && turn.calls && !answered && <Results turn={turn} />}
      <div class="actions">
        {running ? <Progress turn={turn} /> : (
          <>
            <Branches turn={turn} others={others} />
            {turn.content && <CopyButton text={turn.content} label="Copy answer" />}
            <button type="button" class="tiny" aria-label="Regenerate answer" title="Regenerate; the first answer stays as a variant" disabled={busy.value} onClick={() => again(turn)}>
              <Icon name="again" />
            </button>
            {more && turn.state !== "failed" && (
              <button type="button" class="small" disabled={busy.value} title="The model continues the text at its end" onClick={() => proceedWith(turn)}>Continue</button>
            )}
            <span class="stats">
              {[turn.state === "stopped" ? "stopped" : "", ...describe(turn.stats ?? {})].filter(Boolean).join(" · ")}
            </span>
          </>
        )}
      </div>
    </article>
  );
}

const Body = memo(({ text, live }: { text: string; live: boolean }) => <Markdown text={text} live={live} />);

function Progress({ turn }: { turn: Turn }) {
  const s = turn.stats ?? {};
  const rate = speed(s);
  const parts = [total(s) ? `${total(s)} tokens` : "", rate ? `${rate.toFixed(1)} tokens/s` : "", s.firstToken ? `first token after ${(s.firstToken / 1000).toFixed(2)} s` : ""];
  return <span class="stats">{parts.filter(Boolean).join(" · ") || "waits for the first token"}</span>;
}

function Reasoning({ text, running }: { text: string; running: boolean }) {
  return (
    <details class="reasoning">
      <summary>
        <Icon name="thought" /> {running ? <span class="shimmer">Reasoning…</span> : "Reasoning"}
      </summary>
      <Body text={text} live={running} />
    </details>
  );
}

/** pretty indents JSON that is complete. */
function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Call({ call, running }: { call: ToolCall; running: boolean }) {
  return (
    <details class="call" open>
      <summary>
        <Icon name="tool" /> Calls <code>{call.name}</code>
      </summary>
      <CodeBlock text={running ? call.arguments : pretty(call.arguments)} lang="json" live={running} />
    </details>
  );
}

/** Results takes what the called tools return. The page does not run tools. */
function Results({ turn }: { turn: Turn }) {
  const send = (e: Event) => {
    e.preventDefault();
    const data = new FormData(e.currentTarget as HTMLFormElement);
    results(turn, (turn.calls ?? []).map((_, i) => String(data.get(`result-${i}`) ?? "")));
  };
  return (
    <form class="results" onSubmit={send}>
      {turn.calls!.map((call, i) => (
        <label key={i}>
          Result of <code>{call.name}</code>
          <textarea name={`result-${i}`} rows={2} placeholder="Text or JSON" />
        </label>
      ))}
      <button type="submit" class="main" disabled={busy.value}>Send results</button>
    </form>
  );
}

function Result({ c, turn }: { c: Conversation; turn: Turn }) {
  const call = c.turns.flatMap((t) => t.calls ?? []).find((k) => k.id === turn.call);
  return (
    <article class="turn tool" aria-label="Tool">
      <details class="call" open>
        <summary>
          <Icon name="check" /> Result of <code>{call?.name ?? "a tool"}</code>
        </summary>
        <CodeBlock text={pretty(turn.content)} lang="json" />
      </details>
    </article>
  );
}

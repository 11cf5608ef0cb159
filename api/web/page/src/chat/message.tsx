import { useSignal } from "@preact/signals";
import { memo } from "preact/compat";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../icons";
import { CodeBlock, CopyButton } from "../text/code";
import { Markdown } from "../text/markdown";
import { describe, speed, total } from "./answer";
import { fit, focusComposer } from "./composer";
import { again, busy, edit, editAnswer, proceedWith, removeTurn, results, running, showBranch } from "./store";
import { continuable, following, siblings, type Conversation, type ToolCall, type Turn } from "./tree";

/** Message is a turn: a running answer as it is now, others as the conversation has them. */
export function Message({ c, turn }: { c: Conversation; turn: Turn }) {
  const live = running.value.get(turn.id);
  const now = live?.turn.value ?? turn;
  const others = siblings(c, turn);
  if (turn.role === "user") return <Question c={c} turn={turn} others={others} />;
  if (turn.role === "tool") return <Result c={c} turn={turn} />;
  const answered = c.turns.some((t) => t.parent === turn.id);
  return <Answer c={c} turn={now} others={others} running={live !== undefined} waiting={live?.waiting.value ?? false} answered={answered} />;
}

function Question({ c, turn, others }: { c: Conversation; turn: Turn; others: Turn[] }) {
  const mode = useSignal<Mode>("");
  const close = () => (mode.value = "");
  if (mode.value === "edit") return <Editor turn={turn} label="Question" button="Send" save={(text) => edit(turn, text)} close={close} />;
  return (
    <article class="turn user" aria-label="You">
      <div class="bubble">{turn.content}</div>
      <div class="actions">
        {mode.value === "remove" ? <Remove c={c} turn={turn} close={close} /> : (
          <>
            <Branches turn={turn} others={others} />
            <CopyButton text={turn.content} label="Copy question" />
            <button type="button" class="tiny" data-edit aria-label="Edit question" title="Edit; the answer begins a new branch" disabled={busy.value} onClick={() => (mode.value = "edit")}>
              <Icon name="edit" />
            </button>
            <button type="button" class="tiny" aria-label="Delete question" title="Delete it and all after it" disabled={busy.value} onClick={() => (mode.value = "remove")}>
              <Icon name="trash" />
            </button>
          </>
        )}
      </div>
    </article>
  );
}

/** Mode is what is being done to a turn. */
type Mode = "" | "edit" | "remove";

/** Remove requests a confirmation: the turns after a removed one go with it. */
function Remove({ c, turn, close }: { c: Conversation; turn: Turn; close: () => void }) {
  const button = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => button.current!.focus(), []);
  const more = following(c, turn.id).length - 1;
  const what = more === 0 ? "Delete it?" : `Delete it and ${more === 1 ? "the message" : `the ${more} messages`} after it?`;
  return (
    <span class="sure" role="group" aria-label={what} onKeyDown={(e) => e.key === "Escape" && (e.stopPropagation(), close())}>
      <span>{what}</span>
      <button type="button" class="small bad" ref={button} disabled={busy.value} onClick={() => { removeTurn(turn); focusComposer(); }}>Delete</button>
      <button type="button" class="small quiet" onClick={close}>Keep</button>
    </span>
  );
}

interface EditorProps {
  turn: Turn;
  label: string;
  button: string;
  save: (text: string) => void;
  close: () => void;
}

/** Editor changes the text of a turn. Enter sends a question; in an answer it begins a line, and Ctrl+Enter saves. */
function Editor({ turn, label, button, save, close }: EditorProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    fit(field.current!);
    field.current!.focus();
    field.current!.setSelectionRange(turn.content.length, turn.content.length);
  }, []);
  const send = (e: Event) => {
    e.preventDefault();
    save(field.current!.value);
    close();
  };
  const sends = (e: KeyboardEvent) => e.key === "Enter" && !e.isComposing && (turn.role === "user" ? !e.shiftKey : e.ctrlKey || e.metaKey);
  return (
    <article class={`turn ${turn.role} editing`} aria-label={turn.role === "user" ? "You, editing" : "Model, editing"}>
      <form onSubmit={send}>
        <textarea ref={field} aria-label={label} defaultValue={turn.content} rows={1} onInput={(e) => fit(e.currentTarget)}
          onKeyDown={(e) => {
            if (sends(e)) send(e);
            if (e.key === "Escape") {
              e.stopPropagation();
              close();
            }
          }} />
        <div class="buttons">
          <button type="button" class="quiet" onClick={close}>Cancel</button>
          <button type="submit" class="main">{button}</button>
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
  c: Conversation;
  turn: Turn;
  others: Turn[];
  running: boolean;
  waiting: boolean;
  answered: boolean;
}

function Answer({ c, turn, others, running, waiting, answered }: AnswerProps) {
  const mode = useSignal<Mode>("");
  const close = () => (mode.value = "");
  const more = !answered && continuable(turn, c.settings.format);
  const empty = !turn.content && !turn.reasoning && !turn.calls;
  if (mode.value === "edit" && !running) return <Editor turn={turn} label="Answer" button="Save" save={(text) => editAnswer(turn, text)} close={close} />;
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
        {running ? <Progress turn={turn} /> : mode.value === "remove" ? <Remove c={c} turn={turn} close={close} /> : (
          <>
            <Branches turn={turn} others={others} />
            {turn.content && <CopyButton text={turn.content} label="Copy answer" />}
            <button type="button" class="tiny" aria-label="Regenerate answer" title="Regenerate; the first answer stays as a variant" disabled={busy.value} onClick={() => again(turn)}>
              <Icon name="again" />
            </button>
            {turn.content && !turn.calls?.length && (
              <button type="button" class="tiny" aria-label="Edit answer" title="Edit; the first answer stays as a variant" disabled={busy.value} onClick={() => (mode.value = "edit")}>
                <Icon name="edit" />
              </button>
            )}
            <button type="button" class="tiny" aria-label="Delete answer" title="Delete it and all after it" disabled={busy.value} onClick={() => (mode.value = "remove")}>
              <Icon name="trash" />
            </button>
            {more && turn.state !== "failed" && (
              <button type="button" class="small" disabled={busy.value} title="The model continues the text at its end" onClick={() => proceedWith(turn)}>Continue</button>
            )}
            <span class="stats">
              {[turn.edited ? "edited" : "", turn.state === "stopped" ? "stopped" : "", ...describe(turn.stats ?? {}), twin(turn, others)].filter(Boolean).join(" · ")}
            </span>
          </>
        )}
      </div>
    </article>
  );
}

/** twin names an earlier variant with the same text: a model without sampling answers the same again. */
function twin(turn: Turn, others: Turn[]): string {
  const at = others.findIndex((t) => t.id !== turn.id && t.content !== "" && t.content === turn.content && t.reasoning === turn.reasoning);
  return at >= 0 && at < others.findIndex((t) => t.id === turn.id) ? `the same as variant ${at + 1}` : "";
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

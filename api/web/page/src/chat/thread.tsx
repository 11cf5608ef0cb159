import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Icon } from "../icons";
import { Message } from "./message";
import { answerLast, busy, conversation, current, model, running, say, server } from "./store";
import { branch, title } from "./tree";

const demo = "tiny-chat"; // the model that comes with the program: the ideas are what it has learned
const ideas = ["What is the capital of the US?", "What is 7 plus 5?", "Hello! Who are you?"];
const near = 80; // pixels from the end at which the page follows a growing answer

export function Thread() {
  const log = useRef<HTMLDivElement>(null);
  const end = useRef<HTMLDivElement>(null);
  const follow = useRef(true);
  const away = useSignal(false); // from the end
  const c = conversation.value;
  const turns = c ? branch(c) : [];

  const toEnd = () => {
    log.current!.scrollTop = log.current!.scrollHeight;
  };
  // A new conversation, and a new turn, are shown at their end. A growing answer is followed if its end was in sight.
  useLayoutEffect(() => {
    follow.current = true;
    toEnd();
  }, [current.value, turns.length]);
  useEffect(() => {
    const grows = new ResizeObserver(() => follow.current && toEnd());
    grows.observe(end.current!);
    return () => grows.disconnect();
  }, []);
  const scrolled = () => {
    const e = log.current!;
    follow.current = e.scrollHeight - e.scrollTop - e.clientHeight < near;
    away.value = !follow.current;
  };
  return (
    <div class="log" ref={log} onScroll={scrolled} tabIndex={0} role="region" aria-label="Conversation" aria-busy={running.value.size > 0}>
      <div class="turns" ref={end}>
        {c && <h2 class="offscreen">{title(c)}</h2>}
        {turns.map((t) => <Message key={t.id} c={c!} turn={t} />)}
        {turns.length > 0 && turns.at(-1)!.role !== "assistant" && !busy.value && (
          <button type="button" class="missing" onClick={answerLast}><Icon name="again" /> Request an answer</button>
        )}
        {turns.length === 0 && (
          <section class="empty" aria-label="Start">
            <img src="/web/icon.svg" alt="" width="56" height="56" />
            <h2>What shall we talk about?</h2>
            {model.value === demo && (
              <div class="ideas">
                {ideas.map((text) => <button key={text} type="button" disabled={server.value === "key"} onClick={() => say(text)}>{text}</button>)}
              </div>
            )}
          </section>
        )}
      </div>
      {away.value && (
        <button type="button" class="down" aria-label="To the end of the conversation" onClick={() => { follow.current = true; toEnd(); }}>
          <Icon name="send" />
        </button>
      )}
    </div>
  );
}

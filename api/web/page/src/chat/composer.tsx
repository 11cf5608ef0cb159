import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../icons";
import { ContextMeter } from "./contextmeter";
import { busy, current, say, server, stop } from "./store";

const draft = signal("");
const wanted = signal(0); // times that the field shall have the focus
const mouse = matchMedia("(pointer: fine)"); // on a phone the focus opens its keyboard

export function focusComposer(): void {
  wanted.value++;
}

/** fit gives a text field the height of its text. */
export function fit(e: HTMLTextAreaElement): void {
  e.style.height = "auto";
  e.style.height = `${e.scrollHeight + e.offsetHeight - e.clientHeight}px`;
}

export function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => fit(field.current!), [draft.value]);
  useEffect(() => {
    if (mouse.matches) field.current!.focus({ preventScroll: true });
  }, [wanted.value, current.value]);
  const send = (e: Event) => {
    e.preventDefault();
    if (busy.value || !draft.value.trim() || server.value === "key") return;
    say(draft.value);
    draft.value = "";
  };
  const press = (e: KeyboardEvent) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e);
    if (e.key === "ArrowUp" && draft.value === "") {
      const edits = document.querySelectorAll<HTMLButtonElement>("[data-edit]");
      edits[edits.length - 1]?.click();
    }
  };
  return (
    <form class="composer" autocomplete="off" onSubmit={send}>
      <div class="box">
        <label class="offscreen" for="input">Message</label>
        <textarea id="input" ref={field} rows={1} placeholder="Ask something" value={draft.value}
          onInput={(e) => (draft.value = e.currentTarget.value)} onKeyDown={press} />
        {busy.value ? (
          <button type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick={stop}><Icon name="stop" /></button>
        ) : (
          <button type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled={!draft.value.trim() || server.value === "key"}><Icon name="send" /></button>
        )}
      </div>
      <div class="below">
        <p class="hint"><kbd>Enter</kbd> sends · <kbd>Shift Enter</kbd> starts a line · <kbd>↑</kbd> edits the last question · <kbd>Esc</kbd> stops</p>
        <ContextMeter />
      </div>
    </form>
  );
}

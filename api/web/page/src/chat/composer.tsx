import { signal, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../icons";
import { quoted } from "./attach";
import { ContextMeter } from "./contextmeter";
import { busy, current, say, server, stop } from "./store";

const draft = signal("");
const refusals = signal<string[]>([]); // files that are not in the draft, and why
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

/** attach adds files to the draft as quoted text. */
async function attach(files: Iterable<File>): Promise<void> {
  const wrong: string[] = [];
  for (const file of files) {
    try {
      const text = await quoted(file);
      draft.value = draft.value.trim() ? `${draft.value.trimEnd()}\n\n${text}\n` : `${text}\n`;
    } catch (error) {
      wrong.push((error as Error).message);
    }
  }
  refusals.value = wrong;
  focusComposer();
}

/** drop attaches files that are dropped or pasted. A text with its picture, as office programs copy it, stays with the field. */
function drop(event: Event, data: DataTransfer | null): void {
  const pictures = [...(data?.files ?? [])].every((f) => f.type.startsWith("image/"));
  if (!data || data.files.length === 0 || (pictures && data.types.includes("text/plain"))) return;
  event.preventDefault();
  void attach([...data.files]);
}

export function Composer() {
  const file = useRef<HTMLInputElement>(null);
  const over = useSignal(false); // files are dragged over the message
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
    refusals.value = [];
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
      {refusals.value.length > 0 && (
        <div class="error" role="alert">
          <span>{refusals.value.join("; ")}</span>
          <button type="button" class="tiny" aria-label="Close the message" onClick={() => (refusals.value = [])}><Icon name="close" /></button>
        </div>
      )}
      <div class={over.value ? "box over" : "box"} onPaste={(e) => drop(e, e.clipboardData)} onDragLeave={() => (over.value = false)}
        onDragOver={(e) => e.dataTransfer?.types.includes("Files") && (e.preventDefault(), (over.value = true))}
        onDrop={(e) => ((over.value = false), drop(e, e.dataTransfer))}>
        <input ref={file} type="file" multiple hidden aria-label="Text files" onChange={() => void attach([...file.current!.files!]).then(() => (file.current!.value = ""))} />
        <button type="button" class="tiny attach" aria-label="Attach text files" title="Attach text files; or paste or drop them" onClick={() => file.current!.click()}><Icon name="clip" /></button>
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

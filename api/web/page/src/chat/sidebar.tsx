import { signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../icons";
import { closeOnPhone, sidebarOpen } from "./app";
import { fileName, markdown, save } from "./export";
import { add, conversations, current, loaded, open, remove, rename, running } from "./store";
import { found, title, type Conversation } from "./tree";

const search = signal("");
const imported = signal<{ text: string; wrong: boolean }>(); // what the last import did
const wanted = signal(0); // times that the search field shall have the focus

export function focusSearch(): void {
  wanted.value++;
}

const days: [string, number][] = [["Today", 0], ["Yesterday", 1], ["Last 7 days", 7], ["Last 30 days", 30], ["Older", Infinity]];

/** group is the heading of a conversation that changed at a time. */
function group(at: number): string {
  const today = new Date().setHours(0, 0, 0, 0);
  const ago = Math.ceil((today - at) / 86_400_000);
  return days.find(([, most]) => ago <= most)![0];
}

export function Sidebar({ newChat }: { newChat: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (wanted.value) field.current?.focus();
  }, [wanted.value]);
  if (!sidebarOpen.value) return null;
  const hits = conversations.value.flatMap((c) => {
    const where = found(c, search.value);
    return where === undefined ? [] : [{ c, where }];
  });
  const groups = days.map(([name]) => ({ name, hits: hits.filter(({ c }) => group(c.updated) === name) })).filter((g) => g.hits.length > 0);
  const stop = [focused.value, current.value].find((id) => hits.some(({ c }) => c.id === id)) ?? hits[0]?.c.id;
  const active = new Set([...running.value.values()].map((r) => r.conversation));
  return (
    <nav class="sidebar" aria-label="Conversations">
      <div class="brand">
        <img src="/web/icon.svg" alt="" width="26" height="26" />
        <h1>Millrace</h1>
        <span class="spacer" />
        <button type="button" class="quiet" aria-label="Hide conversations" title="Hide" aria-expanded={true} onClick={() => (sidebarOpen.value = false)}>
          <Icon name="menu" />
        </button>
      </div>
      <button type="button" class="new" onClick={newChat} title="Alt+N">
        <Icon name="plus" /> New chat
      </button>
      <label class="search">
        <span class="offscreen">Search conversations</span>
        <Icon name="search" />
        <input ref={field} type="search" placeholder="Search" title="Ctrl+K" value={search.value} onInput={(e) => (search.value = e.currentTarget.value)} />
      </label>
      <div class="list" onKeyDown={walk} onFocusIn={entered}>
        {groups.map((g) => (
          <section key={g.name} aria-label={g.name}>
            <h2>{g.name}</h2>
            <ul>{g.hits.map(({ c, where }) => <Entry key={c.id} c={c} where={where} active={active.has(c.id)} stop={c.id === stop} />)}</ul>
          </section>
        ))}
        {loaded.value && hits.length === 0 && <p class="note">{search.value ? "Nothing found." : "Conversations are kept in this browser only."}</p>}
      </div>
      {imported.value && (
        <p class={imported.value.wrong ? "imported wrong" : "imported"} role={imported.value.wrong ? "alert" : "status"}>
          <span>{imported.value.text}</span>
          <button type="button" class="tiny" aria-label="Close the message" onClick={() => (imported.value = undefined)}><Icon name="close" /></button>
        </p>
      )}
      <div class="foot">
        <a href="/debug/pipeline"><Icon name="pulse" /> Pipeline</a>
        <span class="spacer" />
        <Import />
        <button type="button" class="quiet" aria-label="Export all conversations" title="Export all as JSON" disabled={conversations.value.length === 0} onClick={exportAll}>
          <Icon name="download" />
        </button>
      </div>
    </nav>
  );
}

/** Import takes the file of an export. */
function Import() {
  const file = useRef<HTMLInputElement>(null);
  const take = async () => {
    const f = file.current!.files?.[0];
    if (!f) return;
    try {
      imported.value = { text: add(await f.text()), wrong: false };
    } catch (error) {
      imported.value = { text: `${f.name}: ${(error as Error).message}`, wrong: true };
    }
    file.current!.value = "";
  };
  return (
    <>
      <input ref={file} type="file" accept=".json,application/json" hidden aria-label="Exported file" onChange={take} />
      <button type="button" class="quiet" aria-label="Import conversations" title="Import an exported JSON file" onClick={() => file.current!.click()}>
        <Icon name="upload" />
      </button>
    </>
  );
}

const focused = signal(""); // id of the entry that had the focus last

/** entered makes the entry with the focus the one that Tab comes back to. */
function entered(event: FocusEvent): void {
  const id = (event.target as Element).closest("li")?.dataset.id;
  if (id) focused.value = id;
}

/** walk moves the focus with the arrow keys: up and down between conversations, left and right in one. Tab leaves the list. */
function walk(event: KeyboardEvent): void {
  const at = event.target as HTMLElement;
  const item = at.closest("li");
  if (!item?.dataset.id || at.tagName === "INPUT") return;
  const entries = [...(event.currentTarget as Element).querySelectorAll<HTMLElement>(".entry")];
  const parts = [...item.querySelectorAll<HTMLElement>("button")];
  const [i, k] = [entries.findIndex((e) => item.contains(e)), parts.indexOf(at)];
  const name = { F2: "rename", Delete: "remove" }[event.key];
  const to = name ? item.querySelector<HTMLElement>(`[data-do=${name}]`)
    : { ArrowDown: entries[i + 1], ArrowUp: entries[i - 1], Home: entries[0], End: entries.at(-1), ArrowRight: parts[k + 1], ArrowLeft: parts[k - 1] }[event.key];
  if (!to) return;
  event.preventDefault();
  if (name) to.click();
  else to.focus();
}

/** Entry is a conversation. Only the entry where Tab stops can have the focus by Tab, and its buttons by the arrow keys. */
function Entry({ c, where, active, stop }: { c: Conversation; where: string; active: boolean; stop: boolean }) {
  const mode = useSignal<"" | "rename" | "remove">("");
  const name = title(c);
  const shown = current.value === c.id;
  const entry = useRef<HTMLButtonElement>(null);
  const left = useRef(false); // for another mode, which had the focus
  useEffect(() => {
    if (left.current && !mode.value && document.activeElement === document.body) entry.current?.focus();
    left.current = mode.value !== "";
  }, [mode.value]);
  const close = () => (mode.value = "");
  if (mode.value === "rename") return <Rename c={c} close={close} />;
  if (mode.value === "remove") return <Remove c={c} close={close} />;
  return (
    <li class={shown ? "shown" : undefined} data-id={c.id}>
      <button ref={entry} type="button" class="entry" tabIndex={stop ? 0 : -1} aria-keyshortcuts="F2 Delete" aria-current={shown ? "page" : undefined} title={name} onClick={() => (open(c.id), closeOnPhone())} onDblClick={() => (mode.value = "rename")}>
        <span class="name">{active && <span class="dot running" role="img" aria-label="running" />}{name}</span>
        {where && <span class="where">{where}</span>}
      </button>
      <span class="actions">
        <button type="button" class="tiny" tabIndex={-1} data-do="rename" aria-label={`Rename ${name}`} title="Rename" onClick={() => (mode.value = "rename")}><Icon name="edit" /></button>
        <button type="button" class="tiny" tabIndex={-1} aria-label={`Export ${name}`} title="Export as Markdown" onClick={() => save(`${fileName(c)}.md`, "text/markdown", markdown(c))}><Icon name="download" /></button>
        <button type="button" class="tiny" tabIndex={-1} data-do="remove" aria-label={`Delete ${name}`} title="Delete" onClick={() => (mode.value = "remove")}><Icon name="trash" /></button>
      </span>
    </li>
  );
}

function Rename({ c, close }: { c: Conversation; close: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  const over = useRef(false); // the field also loses the focus when it is removed
  useEffect(() => field.current!.select(), []);
  const end = (keep: boolean) => {
    if (over.current) return;
    over.current = true;
    if (keep) rename(c.id, field.current!.value);
    close();
  };
  return (
    <li>
      <form class="rename" onSubmit={(e) => (e.preventDefault(), end(true))} onKeyDown={(e) => e.key === "Escape" && (e.stopPropagation(), end(false))}>
        <input ref={field} aria-label="Name of the conversation" defaultValue={title(c)} onBlur={() => end(true)} />
      </form>
    </li>
  );
}

function Remove({ c, close }: { c: Conversation; close: () => void }) {
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => button.current!.focus(), []);
  return (
    <li>
      <div class="sure" role="group" aria-label={`Delete ${title(c)}?`}>
        <span>Delete it?</span>
        <button type="button" class="bad" ref={button} onClick={() => void remove(c.id)}>Delete</button>
        <button type="button" class="quiet" onClick={close}>Keep</button>
      </div>
    </li>
  );
}

function exportAll(): void {
  save("millrace-conversations.json", "application/json", JSON.stringify(conversations.value, null, 2));
}

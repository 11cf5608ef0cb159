import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Icon } from "../icons";
import { ThemeButton } from "../themebutton";
import { Composer, focusComposer } from "./composer";
import { KeyDialog } from "./keydialog";
import { SettingsPanel } from "./settingspanel";
import { changed } from "./settings";
import { ModelInfo } from "./modelinfo";
import { Sidebar, focusSearch } from "./sidebar";
import { busy, chooseModel, conversation, model, models, needsKey, open, server, settings, spoken, stop } from "./store";
import { Thread } from "./thread";
import { title } from "./tree";

const wide = matchMedia("(min-width: 900px)");
export const sidebarOpen = signal(wide.matches);
export const settingsOpen = signal(false);
wide.addEventListener("change", () => {
  sidebarOpen.value = wide.matches;
});

/** closeOnPhone closes the panels where they cover the conversation. */
export function closeOnPhone(): void {
  if (wide.matches) return;
  sidebarOpen.value = false;
  settingsOpen.value = false;
}

function newChat(): void {
  open("");
  closeOnPhone();
  focusComposer();
}

/** skip moves the focus to the message. The hash of the address names the conversation, so the link must not change it. */
function skip(event: Event): void {
  event.preventDefault();
  closeOnPhone();
  document.getElementById("input")!.focus();
}

function keys(event: KeyboardEvent): void {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (!wide.matches && (sidebarOpen.value || settingsOpen.value)) closeOnPhone();
    else if (busy.value) stop();
    else if (settingsOpen.value) settingsOpen.value = false;
  } else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    newChat();
  } else if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    sidebarOpen.value = true;
    focusSearch();
  }
}

export function App() {
  useEffect(() => {
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  }, []);
  const c = conversation.value;
  useEffect(() => {
    document.title = c ? `${title(c)} · Millrace` : "Millrace";
  }, [c]);
  const covered = !wide.matches && (sidebarOpen.value || settingsOpen.value);
  const count = changed(settings.value);
  return (
    <div class={`app${sidebarOpen.value ? " with-sidebar" : ""}${settingsOpen.value ? " with-settings" : ""}`}>
      <a class="skip" href="#input" onClick={skip}>Skip to the message</a>
      <Sidebar newChat={newChat} />
      <div class="middle" inert={covered}>
        <header class="top">
          {!sidebarOpen.value && <h1 class="offscreen">Millrace</h1>}
          {!sidebarOpen.value && (
            <button type="button" class="quiet" aria-label="Show conversations" title="Conversations" aria-expanded={false} onClick={() => (sidebarOpen.value = true)}>
              <Icon name="menu" />
            </button>
          )}
          <ModelPicker />
          {server.value === "ready" && <ModelInfo />}
          <span class="spacer" />
          {!sidebarOpen.value && (
            <button type="button" class="quiet" aria-label="New chat" title="New chat (Alt+N)" onClick={newChat}>
              <Icon name="plus" />
            </button>
          )}
          <ThemeButton />
          <button type="button" class="quiet" aria-label={count ? `Settings, ${count} changed` : "Settings"} title="Settings"
            aria-expanded={settingsOpen.value} aria-controls="settings" onClick={() => (settingsOpen.value = !settingsOpen.value)}>
            <Icon name="sliders" />
            {count > 0 && <span class="badge" aria-hidden="true">{count}</span>}
          </button>
        </header>
        <main>
          <Thread />
          <Composer />
        </main>
      </div>
      <SettingsPanel />
      {covered && <div class="shade" aria-hidden="true" onClick={closeOnPhone} />}
      {needsKey.value && <KeyDialog />}
      <p class="offscreen" role="status">{spoken.value}</p>
    </div>
  );
}

function ModelPicker() {
  const list = models.value;
  if (server.value !== "ready") {
    const words = { loading: "Waiting for a model…", key: "API key needed", away: "Server not reached" }[server.value];
    return (
      <span class="model-state" role="status">
        <span class={`dot ${server.value}`} aria-hidden="true" /> {words}
        {server.value === "key" && <button type="button" class="link" onClick={() => (needsKey.value = true)}>Enter it</button>}
      </span>
    );
  }
  return (
    <label class="picker">
      <span class="offscreen">Model</span>
      <select value={model.value} disabled={list.length < 2} onChange={(e) => chooseModel(e.currentTarget.value)}>
        {list.map((m) => <option key={m.id} value={m.id}>{m.id}</option>)}
      </select>
    </label>
  );
}

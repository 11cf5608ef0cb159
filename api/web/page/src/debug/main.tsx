import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ThemeButton } from "../themebutton";
import { Icon } from "../icons";
import { keepKey, key } from "../key";
import "../style/base.css";
import "../style/debug.css";
import { KVView } from "./kv";
import { PipelineView } from "./pipeline";
import { needsKey, paused, problem, watch } from "./state";

const view = location.pathname.endsWith("/kv") ? "kv" : "pipeline";
document.title = view === "kv" ? "KV cache · Millrace" : "Pipeline · Millrace";

function App() {
  const tab = (name: typeof view, words: string) => (
    <a href={`/debug/${name}`} aria-current={view === name ? "page" : undefined}>{words}</a>
  );
  return (
    <>
      <header class="top">
        <a class="home" href="/" aria-label="Millrace, the chat page" title="Chat"><img src="/web/icon.svg" alt="" width="26" height="26" /></a>
        <h1 class="offscreen">{view === "kv" ? "KV cache" : "Pipeline"}</h1>
        <nav class="tabs" aria-label="Pages">{tab("pipeline", "Pipeline")}{tab("kv", "KV cache")}</nav>
        <span class="spacer" />
        <button type="button" class="quiet" aria-pressed={paused.value} title={paused.value ? "Continue" : "Pause"} onClick={() => (paused.value = !paused.value)}>
          <Icon name={paused.value ? "play" : "pause"} /> <span class="word">{paused.value ? "Paused" : "Live"}</span>
        </button>
        <ThemeButton />
      </header>
      <main>
        {problem.value && <p class="error" role="alert">{problem.value}</p>}
        {needsKey.value && <Access />}
        {view === "kv" ? <KVView /> : <PipelineView />}
      </main>
    </>
  );
}

function Access() {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current!.focus(), []);
  const done = (e: Event) => {
    e.preventDefault();
    keepKey(field.current!.value);
  };
  return (
    <form class="access" autocomplete="off" onSubmit={done}>
      <label for="key">API key</label>
      <input id="key" ref={field} type="password" autocomplete="off" spellcheck={false} defaultValue={key.value} />
      <button type="submit" class="main">Show</button>
      <p class="note">Kept in this tab until it is closed, and sent to this server only.</p>
    </form>
  );
}

render(<App />, document.getElementById("app")!);
watch(() => view);

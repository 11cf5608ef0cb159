import { useEffect, useRef } from "preact/hooks";
import { keepKey, key } from "../key";
import { keyIsWrong, loadModels, needsKey } from "./store";

/** KeyDialog requests the API key that the server needs. */
export function KeyDialog() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current!.showModal(), []);
  const done = (e: Event) => {
    e.preventDefault();
    keepKey(new FormData(e.currentTarget as HTMLFormElement).get("key") as string);
    void loadModels();
  };
  return (
    <dialog ref={dialog} class="key" aria-labelledby="key-title" onClose={() => (needsKey.value = false)}>
      <form autocomplete="off" onSubmit={done}>
        <h2 id="key-title">API key</h2>
        <p>{keyIsWrong.value ? "The server does not accept this key." : "This server answers requests with an API key only."}</p>
        <label class="field">
          Key
          <input name="key" type="password" autocomplete="off" spellcheck={false} placeholder="mr-…" defaultValue={key.value} required aria-invalid={keyIsWrong.value} />
        </label>
        <p class="note">Kept in this tab until it is closed, and sent to this server only.</p>
        <div class="buttons">
          <button type="button" class="quiet" onClick={() => dialog.current!.close()}>Later</button>
          <button type="submit" class="main">Use the key</button>
        </div>
      </form>
    </dialog>
  );
}

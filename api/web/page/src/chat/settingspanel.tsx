import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../icons";
import { key, keepKey } from "../key";
import { settingsOpen } from "./app";
import { efforts, noSettings, numberFields, same, type NumberField, type Settings } from "./settings";
import { changeSettings, defaults, keyIsWrong, loadModels, settings, useAsDefaults } from "./store";

const set = (part: Partial<Settings>) => changeSettings({ ...settings.value, ...part });

const schemaExample = `{
  "type": "object",
  "properties": { "city": { "type": "string" } },
  "required": ["city"]
}`;
const toolsExample = `[{
  "name": "get_weather",
  "description": "The weather of a city",
  "parameters": {
    "type": "object",
    "properties": { "city": { "type": "string" } },
    "required": ["city"]
  }
}]`;

export function SettingsPanel() {
  const close = useRef<HTMLButtonElement>(null);
  const open = settingsOpen.value;
  useEffect(() => {
    if (open) close.current?.focus();
  }, [open]);
  if (!open) return null;
  const s = settings.value;
  return (
    <aside id="settings" class="settings" aria-label="Settings">
      <div class="head">
        <h2>Settings</h2>
        <span class="spacer" />
        <button ref={close} type="button" class="quiet" aria-label="Close settings" onClick={() => (settingsOpen.value = false)}><Icon name="close" /></button>
      </div>
      <p class="note">They belong to this conversation. An empty field leaves the choice to the model's own settings.</p>
      <label class="field">
        System prompt
        <textarea id="system" rows={4} placeholder="None" value={s.system} onInput={(e) => set({ system: e.currentTarget.value })} />
      </label>

      <h3>Sampling</h3>
      <div class="numbers">
        {numberFields.map((f) => <NumberInput key={f.name} field={f} value={s.numbers[f.name] ?? ""} />)}
      </div>
      <label class="field">
        Stop strings, one on each line
        <textarea rows={2} placeholder="None" value={s.stop} onInput={(e) => set({ stop: e.currentTarget.value })} />
      </label>
      <label class="field">
        Reasoning effort
        <select value={s.effort} onChange={(e) => set({ effort: e.currentTarget.value })}>
          <option value="">the model's own</option>
          {efforts.map((e) => <option key={e} value={e}>{e}</option>)}
        </select>
      </label>

      <h3>Form of the answer</h3>
      <label class="field">
        Format
        <select id="format" value={s.format} onChange={(e) => set({ format: e.currentTarget.value as Settings["format"] })}>
          <option value="text">Text</option>
          <option value="json_object">A JSON object</option>
          <option value="json_schema">JSON of a schema</option>
        </select>
      </label>
      {s.format === "json_schema" && <JSONField id="schema" label="JSON schema" example={schemaExample} value={s.schema} change={(schema) => set({ schema })} />}
      <JSONField id="tools" label="Tools, a JSON list of functions" example={toolsExample} value={s.tools} change={(tools) => set({ tools })} />
      <div class="reset">
        <button type="button" disabled={same(s, noSettings)} onClick={() => changeSettings({ ...noSettings, numbers: {} })}>Reset settings</button>
        <button type="button" disabled={same(s, defaults.value)} onClick={useAsDefaults}>Use for new chats</button>
      </div>
      <p class="note" role="status">{beginning(s)}</p>

      <h3>Access</h3>
      <form class="field" autocomplete="off" onSubmit={(e) => e.preventDefault()}>
        <label for="key">API key</label>
        <input id="key" type="password" autocomplete="off" spellcheck={false} placeholder="None" value={key.value} aria-invalid={keyIsWrong.value}
          onChange={(e) => { keepKey(e.currentTarget.value); void loadModels(); }} />
        <p class="note">Kept in this tab until it is closed, and sent to this server only.</p>
      </form>
    </aside>
  );
}

/** beginning says what new conversations begin with. */
function beginning(s: Settings): string {
  if (same(defaults.value, noSettings)) return "New chats begin without settings.";
  return same(s, defaults.value) ? "New chats begin with these settings." : "New chats begin with other settings, chosen earlier.";
}

function NumberInput({ field, value }: { field: NumberField; value: string }) {
  const change = (e: { currentTarget: HTMLInputElement }) => {
    const numbers = { ...settings.value.numbers, [field.name]: e.currentTarget.value };
    if (!e.currentTarget.value) delete numbers[field.name];
    set({ numbers });
  };
  return (
    <label class={value ? "number changed" : "number"}>
      {field.label}
      <input id={field.name} type="number" inputMode="decimal" min={field.min} max={field.max} step={field.step} placeholder={field.hint} value={value} onInput={change} />
    </label>
  );
}

function JSONField({ id, label, example, value, change }: { id: string; label: string; example: string; value: string; change: (v: string) => void }) {
  let wrong = "";
  try {
    if (value.trim()) JSON.parse(value);
  } catch (error) {
    wrong = (error as Error).message;
  }
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <textarea id={id} class="mono" rows={value ? 8 : 3} spellcheck={false} placeholder="None" value={value} aria-invalid={wrong !== ""} aria-describedby={wrong ? `${id}-wrong` : undefined}
        onInput={(e) => change(e.currentTarget.value)} />
      {wrong && <p id={`${id}-wrong`} class="wrong">{wrong}</p>}
      {!value && <button type="button" class="link" onClick={() => change(example)}>Insert an example</button>}
    </div>
  );
}

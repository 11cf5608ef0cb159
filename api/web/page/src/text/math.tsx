// A formula, by KaTeX, which is loaded with the first one.
import { useEffect, useRef, useState } from "preact/hooks";

type Render = (text: string, into: HTMLElement, display: boolean) => void;

let renderer: Promise<Render> | undefined;

/** Formula shows TeX. What KaTeX cannot read is shown as it is. */
export function Formula({ text, display }: { text: string; display: boolean }) {
  const at = useRef<HTMLSpanElement>(null);
  const [drawn, setDrawn] = useState(false);
  useEffect(() => {
    renderer ??= import("./katex").then((m) => m.render);
    let there = true;
    renderer.then((render) => {
      if (!there || !at.current) return;
      render(text, at.current, display);
      setDrawn(true);
    }).catch(() => there && setDrawn(false));
    return () => {
      there = false;
    };
  }, [text, display]);
  return (
    <span class={display ? "formula display" : "formula"} tabIndex={display ? 0 : undefined}>
      <span ref={at} hidden={!drawn} />
      {!drawn && <code>{text}</code>}
    </span>
  );
}

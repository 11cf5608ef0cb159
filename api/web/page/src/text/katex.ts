import katex from "katex";
import "katex/dist/katex.css";

const longest = 4000; // characters

/** render draws TeX into an element. It throws an Error if it cannot. The bounds keep hostile TeX small. */
export function render(text: string, into: HTMLElement, display: boolean): void {
  if (text.length > longest) throw new Error("too long");
  katex.render(text, into, { displayMode: display, throwOnError: true, strict: "ignore", trust: false, maxSize: 20, maxExpand: 300 });
}

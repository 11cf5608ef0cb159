// Colors of code: highlight.js as a tree, whose nodes become elements.
import { common, createLowlight } from "lowlight";
import type { ComponentChildren } from "preact";

const lowlight = createLowlight(common);

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

/** highlight returns the code with colors, undefined for a language that is not known. */
export function highlight(text: string, lang: string): ComponentChildren | undefined {
  if (!lowlight.registered(lang)) return undefined;
  return lowlight.highlight(lang, text).children.map(element);
}

function element(node: Node): ComponentChildren {
  if (node.type === "text") return node.value;
  if (node.type !== "element") return null;
  const classes = node.properties.className;
  return <span class={Array.isArray(classes) ? classes.join(" ") : undefined}>{(node.children as Node[]).map(element)}</span>;
}

// A browser whose pages must be quiet: nothing on the console, nothing from another server, nothing wrong for axe.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const patience = 20_000;
/** plainHost is a name of this machine that is no secure context without TLS: browsers have fewer interfaces there. */
export const plainHost = "millrace.test";

export async function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [...(process.getuid() === 0 ? ["--no-sandbox"] : []), "--disable-background-networking", "--disable-dev-shm-usage", `--host-resolver-rules=MAP ${plainHost} 127.0.0.1`],
  });
}

export const sizes = { wide: { width: 1280, height: 860 }, phone: { width: 390, height: 844 } };

/** visit opens a page in a profile of its own. expected are texts of errors that the test causes. */
export async function visit(browser, t, url, { size = "wide", dark = false, expected = [] } = {}) {
  const context = await browser.newContext({ viewport: sizes[size], colorScheme: dark ? "dark" : "light", hasTouch: size === "phone", permissions: ["clipboard-read", "clipboard-write"], reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(patience);
  const wrong = [];
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && wrong.push(`${m.type()}: ${m.text()} ${m.location().url}`));
  page.on("pageerror", (e) => wrong.push(`error: ${e.stack}`));
  page.on("request", (r) => new URL(r.url()).origin !== new URL(url).origin && !r.url().startsWith("blob:") && wrong.push(`request to ${r.url()}`));
  t.after(async () => {
    if (!t.passed && process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/${t.name.replace(/\W+/g, "-")}.png` }).catch(() => {});
    await context.close();
  });
  await page.goto(url);
  return Object.assign(page, {
    /** quiet fails if the page complained. */
    quiet() {
      assert.deepEqual(wrong.filter((w) => !expected.some((e) => w.includes(e))), []);
    },
    /** fits fails if the page, or a part that shall scroll up and down only, is wider than its window. */
    async fits() {
      const wide = await page.evaluate(() => [...document.querySelectorAll("html, main, .log, .list, .settings")].filter((e) => e.scrollWidth > e.clientWidth)
        .map((e) => `${e.tagName} ${e.className}: ${e.scrollWidth} of ${e.clientWidth} pixels`));
      assert.deepEqual(wide, []);
    },
    /** accessible fails if axe finds something. The policy of the page does not hold for scripts of the debugger. */
    async accessible() {
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document));
      assert.deepEqual(violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.html).join(" ")}`), []);
    },
    async shot(name) {
      if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/${name}.png` });
    },
  });
}

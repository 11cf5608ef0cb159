import { defineConfig } from "vite";

// KaTeX names each font in three formats. Every browser that the page supports reads the first one.
const woff2Only = {
  name: "woff2-only",
  enforce: "pre",
  transform(code, id) {
    if (id.endsWith("katex.css")) return code.replace(/,\s*url\([^)]*\.(woff|ttf)\) format\("[^"]*"\)/g, "");
  },
};

// The output is committed and embedded in the program: names have no hash, so that a change of one file is a change of one
// file, and nothing becomes a data: URL, which the page's policy forbids.
export default defineConfig({
  base: "/web/",
  plugins: [woff2Only],
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: ["chrome123", "firefox125", "safari17.5"],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    license: { fileName: "licenses.md" },
    rolldownOptions: {
      checks: { pluginTimings: false },
      input: { chat: "index.html", debug: "debug.html" },
      output: {
        codeSplitting: { groups: [{ name: "shared", test: /preact|src\/(key|stored|theme|icons|style\/base|debug\/pool)/ }] },
        entryFileNames: "[name].js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]",
      },
    },
  },
});

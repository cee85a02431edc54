// The page is one bundle and one worker: no polyfills, no inlined files, so that the strict policy of the server holds.
import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

const SHIPPED = ["preact", "@preact/signals", "@preact/signals-core", "uplot"];
const SCHEDULER = process.env.GPUYARD_URL ?? "http://127.0.0.1:8080";

/** The licenses of the libraries in the bundle ask for a copy of their notices. */
function notices(): Plugin {
  return {
    name: "notices",
    generateBundle() {
      const parts = SHIPPED.map((name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}\n`);
      this.emitFile({ type: "asset", fileName: "licenses.txt", source: parts.join(`\n${"-".repeat(78)}\n\n`) });
    },
  };
}

export default defineConfig({
  plugins: [notices()],
  build: {
    outDir: "../src/gpuyard/page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 1000,
    reportCompressedSize: true,
  },
  worker: { format: "es" },
  server: {
    fs: { allow: [".."] }, // the sample workload is a file of the Python package
    // `npm run dev` beside a running scheduler, whose origin check wants its own address
    proxy: { "/api": { target: SCHEDULER, changeOrigin: true, headers: { origin: SCHEDULER } } },
  },
});

// Smoke tests in the real workbench: open a .cu, see the lens, optimise on the emulator, see the diff, accept; then with
// the editor's own language model, first without one, then with an extension that brings one (test/model-provider); and with an endpoint whose key the editor keeps.
// usage: node test/workbench.mjs        (after test/setup.sh, `make` and `npm run package`)

import { spawn, spawnSync } from "node:child_process";
import * as fs from "node:fs";
import * as http from "node:http";
import * as net from "node:net";
import * as os from "node:os";
import * as path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.resolve(HERE, "../..");
const CODE_SERVER = process.env.CODE_SERVER ?? path.join(ROOT, "build/code-server");
const ENTRY = path.join(CODE_SERVER, "node_modules/code-server/out/node/entry.js");
const VSIX = path.join(ROOT, "client-vscode/dist/cuda-agent.vsix");
const PICTURES = process.env.PICTURES;

const results = { passed: 0, failed: 0 };
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "cuda-agent-workbench-"));
const folder = path.join(scratch, "project");
const user = path.join(scratch, "user");
const extensions = path.join(scratch, "extensions");
const file = path.join(folder, "softmax_rows.cu");
const withModel = path.join(scratch, "with-model");
const withKey = path.join(scratch, "with-key");
const KEY = "sk-workbench-5b1f";

function settings(endpoint) {
  fs.mkdirSync(folder, { recursive: true });
  fs.copyFileSync(path.join(ROOT, "tests/corpus/softmax_rows.cu"), file);
  for (const [where, model] of [[withModel, "editor"], [withKey, `endpoint:scripted@${endpoint}`]]) {
    fs.mkdirSync(path.join(where, ".vscode"), { recursive: true });
    fs.copyFileSync(file, path.join(where, "softmax_rows.cu"));
    fs.writeFileSync(path.join(where, ".vscode/settings.json"), JSON.stringify({ "cudaAgent.model": model, "cudaAgent.policy": "model" }));
  }
  const values = {
    "cudaAgent.serverCommand": [path.join(ROOT, ".venv/bin/cuda-agent")],
    "cudaAgent.device": "emulator",
    "cudaAgent.arguments": "256 96 1",
    "chat.disableAIFeatures": true,
    "workbench.startupEditor": "none",
    "editor.minimap.enabled": false,
    "diffEditor.renderSideBySide": false,
    "workbench.colorTheme": "Default Light Modern",
  };
  for (const place of ["Machine", "User"]) {
    fs.mkdirSync(path.join(user, place), { recursive: true });
    fs.writeFileSync(path.join(user, place, "settings.json"), JSON.stringify(values));
  }
}

const holds = (file) => {
  try {
    return fs.readFileSync(file).includes(KEY);
  } catch {
    return false; // gone, or another user's
  }
};
const holding = (folder, wanted, file) => fs.readdirSync(folder).filter(wanted).map((name) => path.join(folder, name, file)).filter(holds);
const logs = (folder) => fs.readdirSync(folder, { recursive: true, withFileTypes: true }).filter((one) => one.isFile()).map((one) => path.join(one.parentPath ?? one.path, one.name)).filter(holds);

const freePort = () =>
  new Promise((resolve) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

async function waitFor(port, seconds) {
  for (let i = 0; i < seconds * 10; i++) {
    if (await fetch(`http://127.0.0.1:${port}/healthz`).then((r) => r.ok, () => false)) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("code-server did not start");
}

async function step(name, run) {
  try {
    await run();
    results.passed++;
    console.log(`ok   ${name}`);
  } catch (error) {
    results.failed++;
    console.log(`FAIL ${name}: ${error.message.split("\n")[0]}`);
    throw error;
  }
}

async function picture(page, name) {
  if (PICTURES) {
    fs.mkdirSync(PICTURES, { recursive: true });
    await page.screenshot({ path: path.join(PICTURES, `${name}.png`) });
  }
}

// An endpoint that refuses every key and repeats it.
const keysSeen = [];
const endpoint = http.createServer((request, response) => {
  keysSeen.push(request.headers.authorization);
  request.resume();
  response.writeHead(401, { "content-type": "application/json" });
  response.end(JSON.stringify({ error: { message: `no such key: ${request.headers.authorization}` } }));
});
await new Promise((resolve) => endpoint.listen(0, "127.0.0.1", resolve));
settings(`http://127.0.0.1:${endpoint.address().port}/v1`);
const env = { ...process.env, EXTENSIONS_GALLERY: '{"serviceUrl":""}', CUDA_AGENT_CACHE: process.env.CUDA_AGENT_CACHE ?? path.join(scratch, "cache") };
const common = [ENTRY, "--config", path.join(scratch, "config.yaml"), "--user-data-dir", user, "--extensions-dir", extensions];
fs.writeFileSync(path.join(scratch, "config.yaml"), "");
function run(command, more = {}) {
  const done = spawnSync(process.execPath, command, { env, encoding: "utf-8", ...more });
  if (done.status !== 0) {
    throw new Error(`${command.join(" ")}\n${done.stdout}${done.stderr}`);
  }
}
const install = (vsix) => run([...common, "--install-extension", vsix]);
function installModel() {
  const vsix = path.join(scratch, "scripted-model.vsix");
  const vsce = path.join(ROOT, "client-vscode/node_modules/@vscode/vsce/vsce");
  const quiet = ["--no-dependencies", "--skip-license", "--allow-missing-repository", "--out", vsix];
  run([vsce, "package", ...quiet], { cwd: path.join(HERE, "model-provider") });
  install(vsix);
}
install(VSIX);
const port = await freePort();
const flags = ["--auth", "none", "--bind-addr", `127.0.0.1:${port}`, "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust", "--disable-getting-started-override"];
const server = spawn(process.execPath, [...common, ...flags], { env, stdio: ["ignore", "pipe", "pipe"], detached: true });
let log = "";
for (const stream of [server.stdout, server.stderr]) stream.on("data", (data) => (log += data));

let browser;
try {
  await waitFor(port, 60);
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const open = (where) => {
    const opened = `vscode-remote://127.0.0.1:${port}${path.join(where, "softmax_rows.cu")}`;
    return page.goto(`http://127.0.0.1:${port}/?folder=${where}&payload=${encodeURIComponent(JSON.stringify([["openFile", opened]]))}`);
  };
  const lens = (text) => page.locator(".codelens-decoration a, .codelens-decoration span", { hasText: text }).first();
  // A lens that is being redrawn swallows the click.
  const press = async (text, begun) => {
    for (let tries = 0; tries < 5 && !(await begun.isVisible()); tries++) {
      await lens(text).click();
      await begun.waitFor({ timeout: 15_000 }).catch(() => {});
    }
    await begun.waitFor({ timeout: 1_000 });
  };
  const said = (text) => page.locator(".notification-toast", { hasText: text }).first();
  await open(folder);

  await step("the lens stands above the kernel", () => lens("Optimise").waitFor({ timeout: 60_000 }));
  await picture(page, "lens");
  await step("optimising on the emulator ends with a proposal", async () => {
    await press("Optimise", lens("Cancel").or(lens("Accept")).first());
    await lens("Accept").waitFor({ timeout: 240_000 });
  });
  await picture(page, "proposal");
  await step("Show diff opens the diff", async () => {
    await lens("Show diff").click();
    await page.locator(".monaco-diff-editor").first().waitFor({ timeout: 30_000 });
    await page.locator(".view-line", { hasText: "__shfl_xor_sync" }).first().waitFor({ timeout: 30_000 });
  });
  await picture(page, "diff");
  await step("Accept changes the text", async () => {
    await page.keyboard.press("Control+W");
    await page.locator(".monaco-diff-editor").first().waitFor({ state: "detached", timeout: 10_000 });
    const changed = page.locator(".view-line", { hasText: "__shfl_xor_sync" }).first();
    for (let tries = 0; tries < 5 && !(await changed.isVisible()); tries++) {
      await page.waitForTimeout(1000);
      await lens("Accept").click({ timeout: 10_000 });
      await changed.waitFor({ timeout: 5_000 }).catch(() => {});
    }
    await changed.waitFor({ timeout: 1_000 });
  });
  await step("one undo brings it back", async () => {
    await page.locator(".monaco-editor .view-lines").first().click();
    await page.keyboard.press("Control+Z");
    await page.locator(".view-line", { hasText: "__shfl_xor_sync" }).first().waitFor({ state: "detached", timeout: 10_000 });
  });

  await step("without a language model in the editor the action says so", async () => {
    await open(withModel);
    await lens("Optimise").waitFor({ timeout: 60_000 });
    await press("Optimise", said("the editor has no language model"));
    await lens("Optimise").waitFor({ timeout: 10_000 });
  });
  installModel();
  const allow = page.getByRole("button", { name: "Allow", exact: true }).first();
  await step("with one the person is asked, and only after the action", async () => {
    await open(withModel);
    await lens("Optimise").waitFor({ timeout: 60_000 });
    await page.waitForTimeout(3000);
    if (await allow.isVisible()) throw new Error("asked before any action");
    await press("Optimise", lens("Cancel").or(allow).first());
    await allow.waitFor({ timeout: 120_000 });
    await picture(page, "consent");
    await allow.click();
  });
  await step("the model's rewrite is a proposal that says who wrote it", async () => {
    await lens("written by editor:scripted-1").waitFor({ timeout: 240_000 });
    await picture(page, "written");
    await lens("Show diff").click();
    await page.locator(".view-line", { hasText: "largest) / sum" }).first().waitFor({ timeout: 30_000 });
  });

  await step("the key that the editor keeps goes to the endpoint, and nowhere else", async () => {
    await open(withKey);
    await lens("Optimise").waitFor({ timeout: 60_000 });
    await page.keyboard.press("F1");
    await page.keyboard.type("CUDA Agent: Set the API Key");
    await page.keyboard.press("Enter");
    await page.locator(".quick-input-title", { hasText: "API key" }).waitFor({ timeout: 10_000 });
    await page.keyboard.type(KEY);
    await page.keyboard.press("Enter");
    await page.waitForTimeout(3000); // the server starts again
    await lens("Optimise").waitFor({ timeout: 60_000 });
    await press("Optimise", said("no such key").or(lens("Cancel")).first());
    await said("no such key").waitFor({ timeout: 120_000 });
    const told = await said("no such key").innerText();
    if (told.includes(KEY)) throw new Error(`the key is shown: ${told}`);
    if (!keysSeen.length || keysSeen.some((seen) => seen !== `Bearer ${KEY}`)) throw new Error(`the endpoint got ${keysSeen}`);
    const leaks = [...holding("/proc", (name) => /^\d+$/.test(name), "environ"), ...logs(user), ...logs(env.CUDA_AGENT_CACHE)];
    if (leaks.length) throw new Error(`the key stands in ${leaks}`);
  });
} catch (error) {
  if (results.failed === 0) results.failed++;
  console.error(error.stack);
  console.error(log.split("\n").slice(-20).join("\n"));
  const page = browser?.contexts()[0]?.pages()[0];
  if (page) await page.screenshot({ path: path.join(ROOT, "build/workbench-failure.png") });
} finally {
  endpoint.closeAllConnections();
  endpoint.close();
  await browser?.close();
  try {
    process.kill(-server.pid, "SIGKILL");
  } catch (gone) {
    if (gone.code !== "ESRCH") throw gone;
  }
  fs.rmSync(scratch, { recursive: true, force: true });
}
console.log(`${results.passed} passed, ${results.failed} failed`);
process.exit(results.failed === 0 ? 0 : 1);

// Starts the server for .cu and .cuh files and adds what the protocol leaves to the client. No telemetry.

import * as vscode from "vscode";
import {
  type ClientCapabilities,
  type FeatureState,
  LanguageClient,
  type LanguageClientOptions,
  type StaticFeature,
  TransportKind,
} from "vscode-languageclient/node";
import { environment, setApiKey } from "./apiKey";
import { available, chooseModel, reply } from "./languageModel";
import { askRunCommand, Proposals, SCHEME } from "./proposals";
import { findServer } from "./server";
import { StatusItem } from "./status";

const SELECTOR = [{ scheme: "file", pattern: "**/*.{cu,cuh}" }, { scheme: "vscode-remote", pattern: "**/*.{cu,cuh}" }];

let client: LanguageClient | undefined;

/** Tells the server which of its own requests and notifications we answer. */
class Announce implements StaticFeature {
  fillClientCapabilities(capabilities: ClientCapabilities): void {
    const ours = { job: true, status: true, showDiff: true, askRunCommand: true, "model/reply": available() };
    capabilities.experimental = { ...(capabilities.experimental as object | undefined), cudaAgent: ours };
  }
  initialize(): void {}
  getState(): FeatureState {
    return { kind: "static" };
  }
  clear(): void {}
}

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const log = vscode.window.createOutputChannel("CUDA Agent", { log: true });
  const trace = vscode.window.createOutputChannel("CUDA Agent Trace", { log: true });
  const status = new StatusItem(SELECTOR);
  const proposals = new Proposals(() => client);
  const command = (name: string, run: () => unknown) => vscode.commands.registerCommand(name, run);
  const restart = async () => {
    await stop();
    await start(context, log, trace, status, proposals);
  };
  context.subscriptions.push(
    log,
    trace,
    status,
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, proposals),
    vscode.workspace.onDidChangeTextDocument((event) => event.document.uri.scheme === "file" && proposals.refresh()),
    vscode.workspace.onDidGrantWorkspaceTrust(() => client?.sendNotification("cudaAgent/trust", { trusted: true })),
    command("cudaAgent.restart", restart),
    command("cudaAgent.showLogs", () => log.show()),
    command("cudaAgent.setRunCommand", askRunCommand),
    command("cudaAgent.chooseModel", chooseModel),
    command("cudaAgent.setApiKey", async () => (await setApiKey(context)) && restart()),
    command("cudaAgent.printDebugInformation", async () => {
      const found = await client?.sendRequest("cudaAgent/debugInformation", {});
      const document = await vscode.workspace.openTextDocument({ language: "json", content: JSON.stringify(found ?? null, null, 2) });
      await vscode.window.showTextDocument(document);
    }),
  );
  await start(context, log, trace, status, proposals);
}

async function start(
  context: vscode.ExtensionContext,
  log: vscode.LogOutputChannel,
  trace: vscode.LogOutputChannel,
  status: StatusItem,
  proposals: Proposals,
): Promise<void> {
  const server = await findServer(context);
  if (!server) {
    const message = "cuda-agent was not found: pip install cuda-agent-lsp, or set cudaAgent.serverCommand";
    status.failed(message);
    void vscode.window.showErrorMessage(`CUDA Agent: ${message}`);
    return;
  }
  log.info(`server: ${server.command} (from ${server.from})`);
  const options: LanguageClientOptions = {
    documentSelector: SELECTOR,
    initializationOptions: { trusted: vscode.workspace.isTrusted },
    outputChannel: log,
    traceOutputChannel: trace,
  };
  const env = await environment(context);
  const executable = { command: server.command, args: server.args, transport: TransportKind.stdio, options: { env } };
  client = new LanguageClient("cudaAgent", "CUDA Agent", executable, options);
  client.registerFeature(new Announce());
  client.onNotification("cudaAgent/status", (params) => status.update(params));
  client.onNotification("cudaAgent/job", (params) => status.job(params));
  client.onNotification("cudaAgent/showDiff", (params) => proposals.show(params));
  client.onRequest("cudaAgent/askRunCommand", askRunCommand);
  client.onRequest("cudaAgent/model/reply", reply);
  try {
    await client.start();
  } catch (error) {
    status.failed(String(error));
    throw error;
  }
}

async function stop(): Promise<void> {
  const running = client;
  client = undefined;
  await running?.stop();
}

export async function deactivate(): Promise<void> {
  await stop();
}

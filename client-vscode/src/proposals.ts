// Proposals as virtual documents: "Show diff" compares the file with what it would be after accepting.

import * as vscode from "vscode";
import type { BaseLanguageClient } from "vscode-languageclient/node";

export const SCHEME = "cuda-agent-proposal";

interface ChangedFile {
  uri: string;
  candidate: string;
}

interface ShowDiff extends ChangedFile {
  proposal: string;
  title: string;
  files: ChangedFile[];
}

interface Proposal {
  text: string;
}

export class Proposals implements vscode.TextDocumentContentProvider {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;
  private readonly shown = new Set<string>();

  constructor(private readonly client: () => BaseLanguageClient | undefined) {}

  async provideTextDocumentContent(uri: vscode.Uri): Promise<string> {
    const proposal = await this.client()?.sendRequest<Proposal | null>("cudaAgent/proposal", { uri: uri.toString() });
    return proposal?.text ?? "This proposal is gone: optimise the kernel again.\n";
  }

  async show(params: ShowDiff): Promise<void> {
    const files = params.files.map(({ uri, candidate }) => ({ uri: vscode.Uri.parse(uri), candidate: vscode.Uri.parse(candidate) }));
    files.forEach(({ candidate }) => this.shown.add(candidate.toString()));
    if (files.length > 1) {
      const changes = files.map(({ uri, candidate }) => [uri, uri, candidate]);
      await vscode.commands.executeCommand("vscode.changes", params.title, changes);
      return;
    }
    const candidate = vscode.Uri.parse(params.candidate);
    await vscode.commands.executeCommand("vscode.diff", vscode.Uri.parse(params.uri), candidate, params.title, {
      preview: true,
      preserveFocus: false,
    });
  }

  /** The text under a shown proposal moved: fetch it again. */
  refresh(): void {
    for (const uri of this.shown) {
      this.changed.fire(vscode.Uri.parse(uri));
    }
  }
}

/** Ask once for the command that runs the program, and keep it in the workspace's settings. */
export async function askRunCommand(): Promise<{ command: string | null }> {
  const command = await vscode.window.showInputBox({
    title: "CUDA Agent: how is your program run?",
    prompt: "The command that runs your program, as you type it in a terminal in this folder. Its kernel launches are captured as inputs.",
    placeHolder: "make run",
    ignoreFocusOut: true,
  });
  if (!command) {
    return { command: null };
  }
  await vscode.workspace.getConfiguration("cudaAgent").update("runCommand", command, vscode.ConfigurationTarget.Workspace);
  return { command };
}

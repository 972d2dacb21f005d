// Finds the server: the setting, one bundled with the extension, the selected Python environment, PATH.

import * as fs from "node:fs";
import * as path from "node:path";
import * as vscode from "vscode";

export interface ServerCommand {
  command: string;
  args: string[];
  from: string;
}

const EXECUTABLE = process.platform === "win32" ? "cuda-agent.exe" : "cuda-agent";
const SCRIPTS = process.platform === "win32" ? "Scripts" : "bin";

/** The first server there is; undefined when there is none. */
export async function findServer(context: vscode.ExtensionContext): Promise<ServerCommand | undefined> {
  const setting = vscode.workspace.getConfiguration("cudaAgent").get<string[]>("serverCommand") ?? [];
  if (setting.length > 0) {
    return { command: setting[0], args: [...setting.slice(1), "serve"], from: "the setting cudaAgent.serverCommand" };
  }
  const bundled = path.join(context.extensionPath, "bundled", SCRIPTS, EXECUTABLE);
  if (fs.existsSync(bundled)) {
    return { command: bundled, args: ["serve"], from: "the extension" };
  }
  const environment = await selectedPython();
  if (environment) {
    return { command: environment, args: ["serve"], from: "the selected Python environment" };
  }
  const onPath = (process.env.PATH ?? "").split(path.delimiter).map((folder) => path.join(folder, EXECUTABLE));
  const found = onPath.find((file) => fs.existsSync(file));
  return found ? { command: found, args: ["serve"], from: "PATH" } : undefined;
}

/** cuda-agent beside the interpreter that the Python extension has selected for the first folder. */
async function selectedPython(): Promise<string | undefined> {
  const extension = vscode.extensions.getExtension("ms-python.python");
  if (!extension) {
    return undefined;
  }
  const api = extension.isActive ? extension.exports : await extension.activate();
  const interpreter = api?.environments?.getActiveEnvironmentPath(vscode.workspace.workspaceFolders?.[0]?.uri)?.path;
  if (typeof interpreter !== "string") {
    return undefined;
  }
  const folder = fs.existsSync(path.join(interpreter, SCRIPTS)) ? path.join(interpreter, SCRIPTS) : path.dirname(interpreter);
  const file = path.join(folder, EXECUTABLE);
  return fs.existsSync(file) ? file : undefined;
}

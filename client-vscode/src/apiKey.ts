// The key of a model's endpoint: kept in the editor's secret store, handed to the server in its environment at start.

import * as vscode from "vscode";

const SECRET = "cudaAgent.apiKey";

/** Ask for the key and keep it; an empty one forgets it. False: the person changed nothing. */
export async function setApiKey(context: vscode.ExtensionContext): Promise<boolean> {
  const key = await vscode.window.showInputBox({
    title: "CUDA Agent: the API key of the model's endpoint",
    prompt: "Kept in the editor's secret store and sent to the endpoint in cudaAgent.model only. Leave it empty to forget the key.",
    password: true,
    ignoreFocusOut: true,
  });
  if (key === undefined) {
    return false;
  }
  await (key ? context.secrets.store(SECRET, key) : context.secrets.delete(SECRET));
  return true;
}

/** The server's environment; the server takes the key out of it before it starts anything. */
export async function environment(context: vscode.ExtensionContext): Promise<NodeJS.ProcessEnv> {
  const key = await context.secrets.get(SECRET);
  return key ? { ...process.env, CUDA_AGENT_API_KEY: key } : process.env;
}

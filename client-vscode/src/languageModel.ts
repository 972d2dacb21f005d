// The editor's own language model (`vscode.lm`), asked by the server while a search that the person started runs.

import * as vscode from "vscode";

interface Call {
  id: string;
  name: string;
  arguments: object;
}

interface Message {
  role: "system" | "user" | "assistant" | "tool";
  text: string;
  calls: Call[];
  call: string;
  tool: string;
}

interface Question {
  id: string;
  messages: Message[];
  tools: { name: string; description: string; inputSchema: object }[];
  force: boolean;
  tokens: number;
}

interface Reply {
  text: string;
  calls: Call[];
  cut: boolean;
  usage?: { prompt: number; completion: number };
}

type Kind = "noProvider" | "noPermission" | "quota" | "tooLong" | "cancelled" | "other";
type Answer = ({ model: { name: string; context: number; tools: boolean } } & Partial<Reply>) | { error: { kind: Kind; message: string } };

const WHY = "CUDA Agent sends the kernel's file, to have it rewritten. Every rewrite is checked before it is shown.";
const CHARACTERS = 8; // a token has fewer: a longer reply is past its limit
const COUNT_MS = 2000;

/** Models that refuse `Required` (some take one tool only in that mode). */
const unforced = new Set<string>();

export function available(): boolean {
  return typeof vscode.lm?.selectChatModels === "function";
}

/** `cudaAgent/model/reply`. Never fails: what went wrong is an answer too. */
export async function reply(question: Question, token: vscode.CancellationToken): Promise<Answer> {
  if (!vscode.workspace.isTrusted) {
    return failed("noPermission", "this workspace is not trusted");
  }
  try {
    const model = await select(question.id);
    if (!model) {
      return failed("noProvider", question.id ? "no model has this id or family" : "no extension here brings one");
    }
    // Newer than our oldest editor, which says nothing and is believed to give tools.
    const { capabilities } = model as { capabilities?: { supportsToolCalling?: boolean | number } };
    const tools = capabilities?.supportsToolCalling ?? true;
    const named = { model: { name: model.id, context: model.maxInputTokens, tools: Boolean(tools) } };
    return question.messages.length === 0 ? named : { ...named, ...(await ask(model, question, token)) };
  } catch (error) {
    return failed(kindOf(error, token), error instanceof Error ? error.message : String(error));
  }
}

/** Let the person pick one of the editor's models for `cudaAgent.model`. */
export async function chooseModel(): Promise<void> {
  const models = available() ? await vscode.lm.selectChatModels() : [];
  if (models.length === 0) {
    void vscode.window.showWarningMessage(
      "CUDA Agent: no extension here brings a language model. Set cudaAgent.model to endpoint:NAME@URL or transformers:PATH.",
    );
    return;
  }
  const items = models.map((model) => ({ label: model.name, description: `${model.vendor} ${model.family}`, id: model.id }));
  const picked = await vscode.window.showQuickPick(items, { title: "CUDA Agent: the language model that proposes rewrites" });
  if (picked) {
    await vscode.workspace.getConfiguration("cudaAgent").update("model", `editor:${picked.id}`, vscode.ConfigurationTarget.Global);
  }
}

async function select(id: string): Promise<vscode.LanguageModelChat | undefined> {
  const selectors = id ? [{ id }, { family: id }] : [{}];
  for (const selector of selectors) {
    const [model] = await vscode.lm.selectChatModels(selector);
    if (model) {
      return model;
    }
  }
  return undefined;
}

async function ask(model: vscode.LanguageModelChat, question: Question, token: vscode.CancellationToken): Promise<Reply> {
  const force = question.force && question.tools.length > 0 && !unforced.has(model.id);
  let answer: Reply;
  try {
    answer = await send(model, question, force, token);
  } catch (error) {
    if (!force || kindOf(error, token) !== "other") {
      throw error;
    }
    answer = await send(model, question, false, token);
    unforced.add(model.id);
  }
  return { ...answer, usage: await usage(model, question, answer) };
}

async function send(
  model: vscode.LanguageModelChat,
  question: Question,
  force: boolean,
  token: vscode.CancellationToken,
): Promise<Reply> {
  const source = new vscode.CancellationTokenSource();
  const stopped = new Promise<never>((_, reject) => {
    const stop = () => reject(new vscode.CancellationError());
    if (token.isCancellationRequested) {
      stop();
    }
    token.onCancellationRequested(stop);
  });
  const mode = force ? vscode.LanguageModelChatToolMode.Required : vscode.LanguageModelChatToolMode.Auto;
  const options = question.tools.length > 0 ? { tools: question.tools, toolMode: mode } : {};
  const written = async (): Promise<Reply> => {
    const response = await model.sendRequest(messages(question), { ...options, justification: WHY }, source.token);
    const answer: Reply = { text: "", calls: [], cut: false };
    for await (const part of response.stream) {
      if (part instanceof vscode.LanguageModelTextPart) {
        answer.text += part.value;
      } else if (part instanceof vscode.LanguageModelToolCallPart) {
        answer.calls.push({ id: part.callId, name: part.name, arguments: part.input });
      }
      if (answer.text.length > question.tokens * CHARACTERS) {
        answer.cut = true;
        break;
      }
    }
    return answer;
  };
  try {
    // A provider that does not listen to its token must not keep us.
    return await Promise.race([written(), stopped]);
  } finally {
    source.cancel(); // ends the stream of a reply that was cut or is not waited for
    source.dispose();
  }
}

/** There is no system role: what it says comes first, as the person's. */
function messages(question: Question): vscode.LanguageModelChatMessage[] {
  return question.messages.map((message) => {
    if (message.role === "assistant") {
      const parts = message.calls.map((call) => new vscode.LanguageModelToolCallPart(call.id, call.name, call.arguments));
      const text = message.text || parts.length === 0 ? [new vscode.LanguageModelTextPart(message.text)] : [];
      return vscode.LanguageModelChatMessage.Assistant([...text, ...parts]);
    }
    if (message.role === "tool") {
      const text = new vscode.LanguageModelTextPart(message.text);
      return vscode.LanguageModelChatMessage.User([new vscode.LanguageModelToolResultPart(message.call, [text])]);
    }
    return vscode.LanguageModelChatMessage.User(message.text);
  });
}

/** Tokens by the model's own count; undefined where it does not count. */
async function usage(model: vscode.LanguageModelChat, question: Question, answer: Reply): Promise<Reply["usage"]> {
  const asked = JSON.stringify([question.messages.map((message) => [message.text, message.calls]), question.tools]);
  const written = answer.text + (answer.calls.length > 0 ? JSON.stringify(answer.calls) : "");
  const late = new Promise<undefined>((resolve) => setTimeout(() => resolve(undefined), COUNT_MS));
  try {
    const counted = await Promise.race([Promise.all([model.countTokens(asked), model.countTokens(written)]), late]);
    return counted && { prompt: counted[0], completion: counted[1] };
  } catch {
    return undefined; // not every provider counts; the budget then counts for itself
  }
}

function kindOf(error: unknown, token: vscode.CancellationToken): Kind {
  if (token.isCancellationRequested || error instanceof vscode.CancellationError) {
    return "cancelled";
  }
  const kinds: Record<string, Kind> = { NotFound: "noProvider", NoPermissions: "noPermission", Blocked: "quota" };
  const known = error instanceof vscode.LanguageModelError ? kinds[error.code] : undefined;
  const text = error instanceof Error ? `${error.name} ${error.message}` : String(error);
  return known ?? (/quota|rate.?limit/i.test(text) ? "quota" : /context (length|window)|too (long|many tokens)|token limit/i.test(text) ? "tooLong" : "other");
}

function failed(kind: Kind, message: string): Answer {
  return { error: { kind, message } };
}

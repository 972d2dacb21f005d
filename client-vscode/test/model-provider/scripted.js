// A language model that rewrites softmax_rows as a person would: one step for each answer that it got.

const vscode = require("vscode");

const WHY = "Each exponential is written once instead of written, read and written again.";
const BETTER = `__global__ void softmax_rows(const float *in, float *out, int rows, int cols)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;

    float largest = in[row * cols];
    for (int c = 1; c < cols; c++)
        largest = fmaxf(largest, in[row * cols + c]);

    float sum = 0.0f;
    for (int c = 0; c < cols; c++)
        sum += expf(in[row * cols + c] - largest);

    for (int c = 0; c < cols; c++)
        out[row * cols + c] = expf(in[row * cols + c] - largest) / sum;
}`;
const STEPS = [
  ["replace_kernel", { code: BETTER, why: WHY }],
  ["verify", {}],
  ["submit", { why: WHY }],
];

const provider = {
  async provideLanguageModelResponse(messages, options, extension, progress) {
    if (extension !== "cuda-agent.cuda-agent") throw new Error(`asked by ${extension}`);
    const names = (options.tools ?? []).map((tool) => tool.name);
    if (options.toolMode === vscode.LanguageModelChatToolMode.Required && names.length > 1) {
      throw new Error("Required is for a single tool"); // as some models have it
    }
    // A result has a callId and content; its class is not the same in every version.
    const results = messages.flatMap((message) => message.content).filter((part) => part.callId && part.content);
    const made = results.filter((result) => result.callId.startsWith("scripted-")).length;
    const [name, input] = STEPS[Math.min(made, STEPS.length - 1)];
    if (!names.includes(name)) throw new Error(`there is no tool ${name} among ${names}`);
    progress.report({ index: 0, part: new vscode.LanguageModelTextPart("I try ") });
    progress.report({ index: 0, part: new vscode.LanguageModelTextPart("this.") });
    progress.report({ index: 0, part: new vscode.LanguageModelToolCallPart(`scripted-${made}`, name, input) });
  },
  async provideTokenCount(text) {
    return Math.ceil((typeof text === "string" ? text : JSON.stringify(text.content)).length / 4);
  },
};

exports.activate = (context) => {
  const metadata = {
    vendor: "scripted",
    name: "Scripted",
    family: "scripted",
    version: "1",
    maxInputTokens: 32000,
    maxOutputTokens: 8000,
    auth: { label: "Scripted Model" }, // the person is asked before another extension may use it
    capabilities: { toolCalling: true },
  };
  context.subscriptions.push(vscode.lm.registerChatModelProvider("scripted-1", provider, metadata));
};

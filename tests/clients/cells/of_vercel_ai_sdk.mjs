import * as c from "./cells.mjs";

const { createOpenAICompatible } = await c.load("@ai-sdk/openai-compatible");
const { Output, generateText, isStepCount, jsonSchema, streamText, tool } = await c.load("ai");

function model(name = c.model, apiKey = c.key) {
  return createOpenAICompatible({
    name: "ctxgate",
    baseURL: `${c.url}/v1`,
    apiKey,
    includeUsage: true,
    supportsStructuredOutputs: true,
  })(name);
}

const ask = async (apiKey, name, prompt) => (await generateText({ model: model(name, apiKey), prompt })).text;

await c.fill({
  chat: () => ask(c.key, c.model, c.HELLO),
  stream: async () => {
    let text = "";
    for await (const piece of streamText({ model: model(), prompt: c.HELLO }).textStream) text += piece;
    return text;
  },
  tools: async () => {
    let called;
    const get_weather = tool({
      description: c.FUNCTION.description,
      inputSchema: jsonSchema(c.PARAMETERS),
      execute: (input) => {
        called = input;
        return c.RESULT;
      },
    });
    const asked = { model: model(), prompt: c.QUESTION, tools: { get_weather }, stopWhen: isStepCount(3) };
    const { text } = await generateText(asked);
    return [called, text];
  },
  structured: async () => {
    const output = Output.object({ schema: c.Weather });
    return (await generateText({ model: model(), prompt: c.QUESTION, output })).output;
  },
  cancel: async () => {
    const abort = new AbortController();
    const { textStream } = streamText({ model: model(c.ENDLESS), prompt: c.HELLO, abortSignal: abort.signal });
    for await (const _ of textStream) {
      abort.abort();
      break;
    }
  },
  ask,
});

import * as c from "./cells.mjs";

const { OpenAI } = await c.load("openai");
const { zodResponseFormat } = await c.load("openai/helpers/zod");
const tools = [{ type: "function", function: c.FUNCTION }];
const chat = (apiKey = c.key) => new OpenAI({ baseURL: `${c.url}/v1`, apiKey }).chat.completions;
const { model } = c;

async function ask(apiKey, model, text) {
  return (await chat(apiKey).create({ model, messages: [c.user(text)] })).choices[0].message.content;
}

await c.fill({
  chat: () => ask(c.key, model, c.HELLO),
  stream: () => chat().stream({ model, messages: [c.user(c.HELLO)] }).finalContent(),
  tools: async () => {
    const stream = chat().stream({ model, messages: [c.user(c.QUESTION)], tools });
    const first = (await stream.finalChatCompletion()).choices[0].message;
    const call = first.tool_calls[0];
    const result = { role: "tool", tool_call_id: call.id, content: c.RESULT };
    const last = await chat().create({ model, messages: [c.user(c.QUESTION), first, result], tools });
    return [JSON.parse(call.function.arguments), last.choices[0].message.content];
  },
  structured: async () => {
    const response_format = zodResponseFormat(c.Weather, "weather");
    return (await chat().parse({ model, messages: [c.user(c.QUESTION)], response_format })).choices[0].message.parsed;
  },
  cancel: async () => {
    const stream = await chat().create({ model: c.ENDLESS, messages: [c.user(c.HELLO)], stream: true });
    for await (const _ of stream) break;
  },
  ask,
});

import * as c from "./cells.mjs";

const { ChatOpenAI } = await c.load("@langchain/openai");
const { HumanMessage, ToolMessage } = await c.load("@langchain/core/messages");

function chat(model = c.model, apiKey = c.key) {
  return new ChatOpenAI({ model, apiKey, configuration: { baseURL: `${c.url}/v1` } });
}

const ask = async (apiKey, name, text) => (await chat(name, apiKey).invoke(text)).text;

await c.fill({
  chat: () => ask(c.key, c.model, c.HELLO),
  stream: async () => {
    let text = "";
    for await (const chunk of await chat().stream(c.HELLO)) text += chunk.text;
    return text;
  },
  tools: async () => {
    const able = chat().bindTools([{ type: "function", function: c.FUNCTION }]);
    const first = await able.invoke([new HumanMessage(c.QUESTION)]);
    const [call] = first.tool_calls;
    const result = new ToolMessage({ content: c.RESULT, tool_call_id: call.id });
    return [call.args, (await able.invoke([new HumanMessage(c.QUESTION), first, result])).text];
  },
  structured: () => chat().withStructuredOutput(c.Weather, { method: "jsonSchema" }).invoke(c.QUESTION),
  cancel: async () => {
    const abort = new AbortController();
    try {
      for await (const _ of await chat(c.ENDLESS).stream(c.HELLO, { signal: abort.signal })) abort.abort();
    } catch (error) {
      if (!abort.signal.aborted) throw error;
    }
  },
  ask,
});

import { createRequire } from "node:module";

const [url, folder] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/node/package.json`)("openai").default;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const model = "tiny";
const user = (content) => ({ role: "user", content });
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, unit: { type: "string", enum: ["celsius", "fahrenheit"] } },
  required: ["city"],
};
const weather = { name: "get_weather", description: "Current weather in a city.", parameters };
const tools = [{ type: "function", function: weather }];
const question = user("What is the weather in Paris in celsius?");

const chat = client.chat.completions;
const plain = (await chat.create({ model, messages: [user("Hello")] })).choices[0].message.content;
const streamed = await chat.stream({ model, messages: [user("Hello")] }).finalContent();
const first = (await chat.stream({ model, messages: [question], tools }).finalChatCompletion()).choices[0].message;
const call = first.tool_calls[0];
const result = { role: "tool", tool_call_id: call.id, content: '{"temp_c": 21}' };
const last = (await chat.create({ model, messages: [question, first, result], tools })).choices[0].message.content;

// The same through Responses, streamed.
const offered = [{ type: "function", strict: false, ...weather }];
const stream = client.responses.stream({ model, input: question.content, tools: offered });
const response = await stream.finalResponse();
const [item] = response.output;
if (JSON.stringify(JSON.parse(item.arguments)) !== JSON.stringify(JSON.parse(call.function.arguments))) {
  throw new Error(`chat and responses differ: ${item.arguments}`);
}

// Files and batches.
const body = { model, messages: [user("Hello")] };
const line = JSON.stringify({ custom_id: "a", method: "POST", url: "/v1/chat/completions", body });
const file = await client.files.create({ file: new File([line], "in.jsonl"), purpose: "batch" });
let batch = await client.batches.create({
  input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h",
});
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 50));
  batch = await client.batches.retrieve(batch.id);
}
const output = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
if (output.response.body.choices[0].message.content !== plain) {
  throw new Error(`chat and batch differ: ${JSON.stringify(output)}`);
}

// Conversations.
const conversation = await client.conversations.create({ items: [user("Hi")] });
await client.responses.create({ model, input: "Hello", conversation: conversation.id });
const roles = [];
for await (const each of client.conversations.items.list(conversation.id, { order: "asc", limit: 2 })) {
  roles.push(each.role);
}
if (roles.join() !== "user,user,assistant") throw new Error(`the conversation has ${roles}`);
console.log(JSON.stringify({ plain, streamed, called: JSON.parse(call.function.arguments), result: last }));

import { createRequire } from "node:module";

const [url, folder, sentence] = process.argv.slice(2);
const { default: OpenAI, toFile } = createRequire(`${folder}/node/package.json`)("openai");
const { speech, transcriptions } = new OpenAI({ baseURL: url, apiKey: "unused", maxRetries: 0 }).audio;
const speak = (input, response_format) => speech.create({ model: "joe", voice: "joe", input, response_format });

const spoken = Buffer.from(await (await speak(sentence, "wav")).arrayBuffer());
const ask = async (more) => transcriptions.create({ model: "ears", file: await toFile(spoken, "a.wav"), ...more });
const heard = (await ask({})).text;
let streamed = "";
for await (const event of await ask({ stream: true })) if (event.type === "transcript.text.delta") streamed += event.delta;

// Of a text that takes minutes to speak, the first piece; then another text at once.
const reader = (await speak(`${sentence} `.repeat(1000), "pcm")).body.getReader();
await reader.read();
await reader.cancel();
const next = (await (await speak("Yes.", "mp3")).arrayBuffer()).byteLength;
console.log(JSON.stringify({ heard, streamed, next }));

// cells.py, for programs in node.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

export const [url, key, model, folder] = process.argv.slice(2);
export const WRONG_KEY = "wrong", ENDLESS = "endless", ABSENT = "gone";
export const HELLO = "Hello", QUESTION = "What is the weather in Paris in celsius?", RESULT = '{"temp_c": 21}';
const LONG = "word ".repeat(3000);
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" }, unit: { type: "string", enum: ["celsius", "fahrenheit"] } },
  required: ["city"],
};
export const FUNCTION = { name: "get_weather", description: "Current weather in a city.", parameters: PARAMETERS };
export const user = (content) => ({ role: "user", content });

const { resolve } = createRequire(`${folder}/node/package.json`);
/** A package of the installed clients. */
export const load = (name) => import(pathToFileURL(resolve(name)));

const { z } = await load("zod");
export const Weather = z.object({ city: z.enum(["Paris", "Oslo"]), unit: z.enum(["celsius", "fahrenheit"]) });

const tell = (line) => console.log(JSON.stringify(line));

function causes(error) {
  const found = [];
  for (let cause = error; cause && !found.includes(cause); cause = cause.cause ?? cause.lastError) found.push(cause);
  return found;
}

export async function fill({ ask, ...cells }) {
  const programs = {
    ...cells,
    overflow: () => ask(key, model, LONG),
    "wrong key": () => ask(WRONG_KEY, model, HELLO),
    "missing weights": () => ask(key, ABSENT, HELLO),
  };
  for (const [cell, program] of Object.entries(programs)) {
    const began = performance.now();
    const seconds = () => (performance.now() - began) / 1000;
    try {
      const got = await program();
      tell({ cell, got: got ?? null, seconds: seconds() });
    } catch (error) {
      const found = causes(error);
      const names = found.map((cause) => cause.constructor?.name ?? "Error");
      tell({ cell, error: names, text: found.map((cause) => `${cause.name}: ${cause.message}`).join("\n"), seconds: seconds() });
    }
    if (cell === "cancel") await new Promise((done) => createInterface({ input: process.stdin }).once("line", done));
  }
  process.exit(0);
}

// Payloads → the message that they make, and where the model's text and the client's differ. Pure.

const parsed = (text) => { try { return JSON.parse(text); } catch { return null; } };

// The first choice's message: {content, reasoning, calls, finish, error, told}. told: the answer's `ctxgate` field.
export function fold(payloads) {
  const made = {content: "", reasoning: "", calls: [], finish: null, error: null, told: null, choices: 0};
  for (const text of payloads) {
    const payload = parsed(text);
    if (!payload) { made.content += text; continue; }
    if (payload.error) made.error = payload.error;
    if (payload.ctxgate) made.told = payload.ctxgate;
    for (const choice of payload.choices || []) {
      made.choices = Math.max(made.choices, (choice.index || 0) + 1);
      if (choice.index) continue;
      add(made, choice.delta || choice.message || {});
      if (choice.finish_reason) made.finish = choice.finish_reason;
    }
  }
  return made;
}

function add(made, part) {
  if (part.content) made.content += part.content;
  made.reasoning += part.reasoning_content || part.reasoning || "";
  (part.tool_calls || []).forEach((call, at) => {
    const index = call.index === undefined ? at : call.index;
    const known = made.calls[index] || (made.calls[index] = {id: "", name: "", arguments: ""});
    const {name, arguments: text} = call.function || {};
    known.id = known.id || call.id || "";
    known.name += name || "";
    known.arguments += typeof text === "string" ? text : text ? JSON.stringify(text) : "";
  });
}

// [before, changed, after]: the middle of `raw` is what the client did not get as text.
export function difference(raw, clean) {
  let start = 0, end = 0;
  const most = Math.min(raw.length, clean.length);
  while (start < most && raw[start] === clean[start]) start++;
  while (end < most - start && raw[raw.length - 1 - end] === clean[clean.length - 1 - end]) end++;
  return [raw.slice(0, start), raw.slice(start, raw.length - end), raw.slice(raw.length - end)];
}

export function pretty(text) {
  const value = parsed(text);
  return value === null ? text : JSON.stringify(value, null, 2);
}

// What a message holds, as text; images by their size.
export function words(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content == null ? "" : JSON.stringify(content, null, 2);
  return content.map((part) => part.text !== undefined ? part.text : `[${part.type || "part"}: ${size(part)}]`).join("\n");
}

function size(part) {
  const text = JSON.stringify(part);
  return text.length < 400 ? text : `${Math.round(text.length / 1000)} kB`;
}

// Fields of the client's request that the engine got otherwise: [name, how].
export const changes = (asked, sent) => Object.entries(sent).map(([name, value]) =>
  [name, value === null ? "left out" : name in asked ? "changed" : "added"]);
